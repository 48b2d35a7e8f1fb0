"""Disks that are full or fail, at sampled writes: nothing acknowledged is lost, and the next command finishes."""

from __future__ import annotations

import errno
import os
import random
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection
from sqlalchemy.exc import OperationalError

from assay.answers import Identity, depots, find_answer, verdicts_of
from assay.runs import Done, Happened, OpenRun, Tally, collect, recover
from runs.worlds import World, make_dataset, opened, rows_of, run_settings, soaking, working

TASKS = 6
SAMPLES = 20
"""Of all writes; every one with ASSAY_SOAK=1."""


class Disk:
    """Counts writes, of rows and of workspaces, and fails them from one on: as many as it is told."""

    def __init__(self, run: OpenRun, first: int, how_many: int, error: int, patch: pytest.MonkeyPatch) -> None:
        self.writes = 0
        self._first, self._last, self._error = first, first + how_many, error
        self._lock = threading.Lock()
        submit, flush = run.store.database.submit, depots._flush

        def submitting(work: Callable[[Connection], Any]) -> Any:
            # Inside the transaction, as SQLite would: it is rolled back.
            def failing(connection: Connection) -> Any:
                work(connection)
                code = sqlite3.SQLITE_FULL if error == errno.ENOSPC else sqlite3.SQLITE_IOERR
                original = sqlite3.OperationalError("for a test")
                original.sqlite_errorcode = code
                raise OperationalError("INSERT", {}, original)

            return submit(failing if self._fails() else work)

        def flushing(path: Path) -> None:
            if self._fails():
                raise OSError(error, os.strerror(error))
            flush(path)

        patch.setattr(run.store.database, "submit", submitting)
        patch.setattr(depots, "_flush", flushing)

    def _fails(self) -> bool:
        with self._lock:
            self.writes += 1
            return self._first <= self.writes < self._last


async def at_work(
    folder: Path, world: World, told: list[Happened], disk: Callable[[OpenRun], Disk] | None = None, **given: Any
) -> tuple[Done, int]:
    with opened(folder, given.get("settings")) as run:
        made = disk(run) if disk is not None else None
        setting = working(folder, world, concurrency=2, watch=lambda tally, happened: told.append(happened))
        done = await collect(run, setting, name="run" if given.get("settings") else "resume")
        # Before it is closed, which writes, too.
        writes = made.writes if made is not None else 0
    return done, writes


def check(folder: Path, told: list[Happened], world: World) -> None:
    """What was told is there; what is there was made once."""
    rows = rows_of(folder)
    with opened(folder) as run:
        for happened in told:
            answer = find_answer(run.store.database, happened.identity)
            if happened.what == "answered":
                assert answer is not None
                assert answer.id == happened.about["answer_id"]
            if happened.what in ("graded", "masked"):
                assert answer is not None
                kept = {verdict.id for verdict in verdicts_of(run.store.database, answer.id)}
                assert happened.about["verdict_id"] in kept
    answered = {happened.identity for happened in told if happened.what == "answered"}
    assert len(answered) == sum(happened.what == "answered" for happened in told)
    assert answered <= {one for one, row in rows.items() if row.answer_id is not None}


async def count_writes(tmp_path: Path, dataset: Path, patch: pytest.MonkeyPatch) -> int:
    with patch.context() as own:
        _, writes = await at_work(
            tmp_path / "counted", World(), [], lambda run: Disk(run, 10**9, 0, 0, own), settings=run_settings(dataset)
        )
    return writes


@pytest.mark.slow
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO], ids=lambda error: errno.errorcode[error])
@pytest.mark.parametrize("how_many", [1, 10**9], ids=["once", "for good"])
async def test_a_disk_that_fails_at_a_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int, how_many: int
) -> None:
    """Once: the write is tried again and nobody notices. For good: the command ends early and says why, and the next goes on."""
    dataset = make_dataset(tmp_path / "data", TASKS)
    writes = await count_writes(tmp_path, dataset, monkeypatch)
    assert writes > 5 * TASKS
    seed = int(os.environ.get("ASSAY_SEED", str(random.SystemRandom().randrange(10**6))))
    print(f"ASSAY_SEED={seed}")
    # Both errors and both lengths together take the samples.
    chosen = (
        range(1, writes + 1) if soaking() else sorted(random.Random(seed).sample(range(1, writes + 1), SAMPLES // 4))
    )
    for first in chosen:
        folder, world, told = tmp_path / f"run-{first}" / "run", World(), list[Happened]()
        with monkeypatch.context() as patch:

            def disk(run: OpenRun, first: int = first, patch: pytest.MonkeyPatch = patch) -> Disk:
                return Disk(run, first, how_many, error, patch)

            done, seen = await at_work(folder, world, told, disk, settings=run_settings(dataset))
        assert not done.tally.bugs, (seed, first, done.tally.bugs)
        if how_many > 1 and seen >= first:
            assert done.tally.stopped is not None, (seed, first)
        check(folder, told, world)
        kept = {one for one, row in rows_of(folder).items() if row.answer_id is not None}
        before = dict(world.calls)
        done, _ = await at_work(folder, world, told, settings=run_settings(dataset))
        with opened(folder) as run:
            await recover(run, working(folder, world))
        check(folder, told, world)
        rows = rows_of(folder)
        assert {row.state for row in rows.values()} == {"scored"}, (seed, first)
        assert len(rows) == TASKS
        assert all(world.calls[one] == before[one] for one in kept), (seed, first)


def test_a_tally_says_that_it_ended_early() -> None:
    tally = Tally(todo=3, stopped="run.sqlite: the disk is full")
    tally.note(Happened("masked", Identity("t", 0), {"kind": "judge_failed"}))
    assert (tally.done, tally.masked, tally.open) == (1, {"judge_failed": 1}, {Identity("t", 0)})

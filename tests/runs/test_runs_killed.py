"""A run that is killed again and again: nothing that was kept is made anew, nothing acknowledged is lost."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from assay.answers import Identity, find_answer, verdicts_of
from assay.runs import export, find_place, read_run, summarise
from runs.worlds import make_dataset, rows_of, soaking

TASKS, KILLS = (200, 50) if soaking() else (30, 6)
SLOW_S = 0.06


class Process:
    """One command, and what it said before it ended."""

    def __init__(self, command: str, run: Path, dataset: Path) -> None:
        self.lines: list[str] = []
        self.is_open = threading.Event()
        script = Path(__file__).with_name("killable.py")
        words = [sys.executable, str(script), command, str(run), str(dataset), str(SLOW_S)]
        self._process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self._reading = threading.Thread(target=self._read)
        self._reading.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            # A line that was cut off was told to nobody.
            if line.endswith("\n"):
                self.lines.append(line.strip())
                self.is_open.set()
        self.is_open.set()

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)

    def end(self) -> int:
        _, stderr = self._process.communicate() if self._process.stdout is None else (None, self._process.stderr.read())  # type: ignore[union-attr]
        code = self._process.wait()
        self._reading.join()
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()
        assert code in (0, -signal.SIGKILL), stderr
        return code


@pytest.mark.slow
def test_a_run_killed_at_random_moments(tmp_path: Path) -> None:
    seed = int(os.environ.get("ASSAY_SEED", str(random.SystemRandom().randrange(10**6))))
    print(f"ASSAY_SEED={seed}")
    draw = random.Random(seed)
    dataset, run, calls = make_dataset(tmp_path / "data", TASKS), tmp_path / "run", tmp_path / "calls"
    told: list[str] = []
    kept: dict[Identity, str] = {}
    called = 0
    killed = 0
    while killed < KILLS:
        begun = killed == 0 or not (run / "run.sqlite").is_file() or not kept
        command = "run" if begun else draw.choice(["run", "resume", "resume", "recover"])
        process = Process(command, run, dataset)
        if draw.random() < 0.8:
            process.is_open.wait(60)
            time.sleep(draw.random() * 0.4)
        else:
            time.sleep(draw.random() * 1.5)
        process.kill()
        killed += process.end() != 0
        told += process.lines
        made = calls.read_text().splitlines() if calls.exists() else []
        fresh = [Identity(line.split()[0], int(line.split()[1])) for line in made[called:]]
        called = len(made)
        # What was kept before this command began was answered by nobody again.
        assert not set(fresh) & set(kept), (seed, command)
        assert len(set(fresh)) == len(fresh), (seed, command)
        if (run / "run.sqlite").is_file():
            kept = answers_of(run, kept)
        if len(kept) == TASKS and all(one.status for one in rows_of(run).values()) and killed < KILLS:
            # Nothing left to be killed at: the next round begins with another batch of tasks.
            make_more(dataset)
            kept = {}
            command = "run"
    for command in ("run", "resume", "recover"):
        process = Process(command, run, dataset)
        assert process.end() == 0
        told += process.lines
    check_told(run, told, seed)
    rows = rows_of(run)
    assert {one.state for one in rows.values()} == {"scored"}, seed
    assert len(rows) == len(list(dataset.iterdir()))
    with read_run(find_place(run)) as store:
        report = summarise(store.database)
        written = export(store.database, tmp_path / "out")
    assert (report.totals.graded, report.totals.mean, report.partial) == (len(rows), 1.0, False)
    assert written.graded == len((tmp_path / "out" / "rollouts.jsonl").read_text().splitlines()) == len(rows)


def make_more(dataset: Path) -> None:
    there = len(list(dataset.iterdir()))
    made = make_dataset(dataset.parent / f"more-{there}", TASKS)
    for number, task in enumerate(sorted(made.iterdir())):
        task.rename(dataset / f"t{there + number:03}")


def answers_of(run: Path, before: dict[Identity, str]) -> dict[Identity, str]:
    now = {one.identity: one.answer_id for one in rows_of(run).values() if one.answer_id is not None}
    assert before.items() <= now.items()
    return now


def check_told(run: Path, told: list[str], seed: int) -> None:
    """Everything that somebody was told is there."""
    with read_run(find_place(run)) as store:
        for line in told:
            what, *rest = line.split()
            if what not in ("answered", "graded", "masked"):
                continue
            one, about = Identity(rest[0], int(rest[1])), rest[2]
            answer = find_answer(store.database, one)
            assert answer is not None, (seed, line)
            if what == "answered":
                assert answer.id == about, (seed, line)
            else:
                assert about in {verdict.id for verdict in verdicts_of(store.database, answer.id)}, (seed, line)
    assert sum(line.startswith("graded") for line in told) > 0

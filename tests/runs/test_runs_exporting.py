"""A run as JSONL: every row in one file, each whole, the fields other tools go by."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from answers.making import failed, graded, new_answer
from assay.answers import Identity, Need, choice_of, open_store
from assay.failures import FailureEvent
from assay.grading import WrongArgument
from assay.runs import exporting
from assay.runs.exporting import FAILURES, ROWS, export


def lines(path: Path) -> list[dict[str, Any]]:
    text = path.read_text()
    assert text == "" or text.endswith("\n")
    return [json.loads(line) for line in text.splitlines()]


@pytest.fixture
async def run(tmp_path: Path) -> Path:
    """Graded, masked twice, agent failed, ungraded, missing: one each."""
    path = tmp_path / "run.sqlite"
    with open_store(path) as store:
        command = await store.begin_command("run", {})
        await store.plan([Identity(f"t{number}", 0) for number in range(5)])
        extra = {"expected": "4", "responses_create_params": {"input": "2+2?"}, "_assay_agent": {"seconds": 1.0}}
        good = new_answer("t0", extra=extra, snapshot="sha256:" + "0" * 64)
        await store.keep_answer(good)
        await store.keep_verdict(good.id, graded(0.75, task_id="t0"))
        bad = new_answer("t1")
        await store.keep_answer(bad)
        for name in ("resume", "recover"):
            again = await store.begin_command(name, {})
            await store.claim([Need.VERDICT, Need.RECOVERY], 9, command_id=again)
            attempt = await store.begin_attempt(bad.identity, stage="verification", command_id=again, answer_id=bad.id)
            kept = await store.keep_verdict(bad.id, failed("judge_failed", task_id="t1"), attempt_id=attempt)
            assert kept is not None
        await store.keep_answer(new_answer("t2"))
        attempt = await store.begin_attempt(Identity("t3", 0), stage="agent", command_id=command)
        await store.fail_agent(attempt, FailureEvent("agent_run_error", "it broke", stage="agent"))
    return path


async def test_every_row_is_in_one_file_or_counted(run: Path, tmp_path: Path) -> None:
    with open_store(run, writing=False) as store:
        written = export(store.database, tmp_path / "out")
    assert (written.graded, written.masked, written.agent_failed, written.ungraded, written.missing) == (1, 1, 1, 1, 1)
    (row,) = lines(tmp_path / "out" / ROWS)
    assert row["verdict"]["reward"] == row["reward"] == 0.75
    assert (row["mask_sample"], row["failure_kind"], row["failure_reason"]) == (False, None, None)
    assert (row["_ng_task_id"], row["_ng_task_index"], row["_ng_rollout_index"]) == ("t0", 0, 0)
    assert (row["expected"], row["responses_create_params"]) == ("4", {"input": "2+2?"})
    assert row["response"] == {"output": "x"}
    assert row["workspace"] == {"snapshot": "sha256:" + "0" * 64}


async def test_a_masked_row_says_what_recovery_goes_by(run: Path, tmp_path: Path) -> None:
    with open_store(run, writing=False) as store:
        export(store.database, tmp_path / "out")
    masked, unanswered = lines(tmp_path / "out" / FAILURES)
    assert (masked["reward"], masked["mask_sample"], masked["_ng_failure_terminal"]) == (0.0, True, False)
    assert (masked["failure_kind"], masked["_ng_failure_class"]) == ("judge_failed", "judge_failed")
    assert len(masked["_ng_failure_events"]) == 2
    assert masked["_ng_failure_events"][masked["_ng_failure_id"]]["kind"] == "judge_failed"
    assert masked["response"] == {"output": "x"}
    assert (unanswered["response"], unanswered["_ng_failure_class"], unanswered["_ng_failure_stage"]) == (
        None, "agent_run_error", "agent"
    )  # fmt: skip
    assert (unanswered["_ng_task_id"], unanswered["_ng_failure_message"]) == ("t3", "it broke")


async def test_what_was_there_stays_whole_when_writing_fails(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    with open_store(run, writing=False) as store:
        export(store.database, out)
        before = {path.name: path.read_bytes() for path in out.iterdir()}

        def full(descriptor: int) -> None:
            raise OSError(28, os.strerror(28))

        monkeypatch.setattr(exporting.os, "fsync", full)
        with pytest.raises(WrongArgument, match="No space left on device; nothing there was changed"):
            export(store.database, out)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


async def test_who_reads_an_older_export_reads_all_of_it(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with open_store(run, writing=False) as store:
        export(store.database, out)
        before = (out / ROWS).read_text()
        with (out / ROWS).open() as reader:
            export(store.database, out, choice=choice_of("t1"))
            assert (out / ROWS).read_text() == ""
            assert reader.read() == before
    assert sorted(path.name for path in out.iterdir()) == [ROWS, FAILURES]

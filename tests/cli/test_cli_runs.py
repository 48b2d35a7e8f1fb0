"""The commands of runs as a person or a program uses them: what is printed where, exit codes, signals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Select, func, select

from assay.answers import StoreUnusable, schema
from assay.cli.main import main
from assay.runs import find_place, read_run
from commands import ASSAY, assay, make_task

GRADING = "def verify(workspace):\n    return float((workspace / 'answer.txt').read_text())\n"
FAST = ["--sandbox", "process", "--no-control"]


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    for name in ("one", "two"):
        task = make_task(tmp_path / "data" / name, GRADING)
        (task / "solution").mkdir()
        (task / "solution" / "solve.sh").write_text("#!/bin/bash\necho 1 > answer.txt\n")
    return tmp_path / "data"


def run(tmp_path: Path, dataset: Path, *words: str, out: str = "run") -> tuple[int, dict[str, Any], str]:
    return assay("run", dataset, "--out", tmp_path / out, *FAST, "--json", *words, state=tmp_path / "state")


def said(*words: str | Path, state: Path) -> subprocess.CompletedProcess[str]:
    """A command for people."""
    environment = {**os.environ, "ASSAY_STATE": str(state)}
    done = subprocess.run([*ASSAY, *map(str, words)], capture_output=True, text=True, env=environment, timeout=120)
    assert "Traceback" not in done.stderr, done.stderr
    return done


def test_a_run_and_what_is_read_of_it(tmp_path: Path, dataset: Path) -> None:
    code, record, stderr = run(tmp_path, dataset, "--agent", "oracle", "--rollouts", "2")
    assert (code, record["graded"], record["report"]["mean"]) == (0, 4, 1.0)
    assert "graded 4" in stderr
    folder, state = tmp_path / "run", tmp_path / "state"
    code, status, _ = assay("status", folder, "--json", state=state)
    assert (code, status["states"]["scored"], status["masked"]) == (0, 4, {})
    code, report, _ = assay("report", folder, "--json", state=state)
    assert (report["denominator"], report["planned"], report["partial"], report["mixed"]) == (4, 4, False, False)
    assert report["pass_at"]["2"] == {"estimate": 1.0, "tasks": 2}
    code, written, _ = assay("export", folder, "--out", tmp_path / "out", "--json", state=state)
    assert (code, written["graded"]) == (0, 4)
    assert len((tmp_path / "out" / "rollouts.jsonl").read_text().splitlines()) == 4
    shown = said("report", folder, state=state).stdout
    assert "mean reward   1.0000" in shown
    assert "4 graded rows of 4, 2 tasks" in shown
    assert "scored" in said("status", folder, state=state).stdout
    assert "4 graded rows in" in said("export", folder, state=state).stdout


def test_a_row_without_a_reward_ends_with_3_and_is_in_the_report(tmp_path: Path, dataset: Path) -> None:
    script = 'if [ "$ASSAY_TASK" = one ]; then echo x > answer.txt; else exit 4; fi'
    code, record, stderr = run(tmp_path, dataset, "--agent", "command", "--command", script)
    assert code == 3
    assert (record["masked"], record["agent_failed"]) == ({"verifier_error": 1}, {"agent_run_error": 1})
    assert record["report"]["masked_by_cause"] == {"unknown": 1}
    assert "two, rollout 0: agent_run_error: the agent's command exited with code 4" in stderr
    shown = said("report", tmp_path / "run", state=tmp_path / "state").stdout
    assert "none: nothing is graded" in shown
    assert "PARTIAL" in shown
    assert "1 without an answer (agent_run_error 1)" in shown


def test_regrade_prints_what_changed(tmp_path: Path, dataset: Path) -> None:
    run(tmp_path, dataset, "--agent", "oracle")
    folder, state = tmp_path / "run", tmp_path / "state"
    (dataset / "one" / "tests" / "verifier.py").write_text("def verify():\n    return 0.25\n")
    code, record, _ = assay("regrade", folder, "--task", "o*", "--json", state=state)
    assert code == 0
    assert record["changes"]["counts"]["lower"] == 1
    (changed,) = record["changed"]
    assert (changed["task_id"], changed["before"]["reward"], changed["after"]["reward"]) == ("one", 1.0, 0.25)
    file = tmp_path / "verifier.py"
    file.write_text("def verify(workspace):\n    return 0.5 if (workspace / 'answer.txt').exists() else 0\n")
    done = said("regrade", folder, "--verifier", file, "--where", "status=graded", state=state)
    assert done.returncode == 0
    assert "lower 1, higher 1" in done.stdout or "higher 1, lower 1" in done.stdout
    assert "graded now by" in done.stdout
    done = said("compare", folder, folder, state=state)
    assert "0 better, 0 worse, 2 the same" in done.stdout


def test_compare_prints_a_line_for_each_row_and_a_summary(tmp_path: Path, dataset: Path) -> None:
    run(tmp_path, dataset, "--agent", "oracle")
    run(tmp_path, dataset, "--agent", "command", "--command", "echo 0.5 > answer.txt", out="other")
    done = said("compare", tmp_path / "run", tmp_path / "other", "--json", state=tmp_path / "state")
    *rows, last = map(json.loads, done.stdout.splitlines())
    assert [(row["task_id"], row["a"]["reward"], row["b"]["reward"]) for row in rows] == [
        ("one", 1.0, 0.5),
        ("two", 1.0, 0.5),
    ]
    assert last["summary"]["delta"] == -0.5
    shown = said("compare", tmp_path / "run", tmp_path / "other", state=tmp_path / "state").stdout
    assert "difference -0.5000" in shown


def test_replay_says_what_it_could_not_take(tmp_path: Path, dataset: Path) -> None:
    run(tmp_path, dataset, "--agent", "oracle")
    said("export", tmp_path / "run", state=tmp_path / "state")
    source = tmp_path / "run" / "rollouts.jsonl"
    source.write_text(source.read_text()[:-40])
    given = ["--from", str(source), "--snapshots", str(tmp_path / "run" / "snapshots")]
    code, record, stderr = run(tmp_path, dataset, "--agent", "replay", *given, out="again")
    assert code == 3
    assert (record["replayed"]["kept"], record["replayed"]["refused"], record["graded"]) == (1, 1, 1)
    assert "line 2: is torn" in stderr


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_command_that_is_stopped_leaves_a_run_that_resumes(
    tmp_path: Path, dataset: Path, number: int, code: int
) -> None:
    """While it verifies: no agent works again."""
    for name in ("one", "two"):
        (dataset / name / "tests" / "verifier.py").write_text("import time\n\n\ndef verify():\n    time.sleep(60)\n")
    words = ["run", dataset, "--agent", "command", "--command", "echo 1 > answer.txt", "--out", tmp_path / "run"]
    environment = {**os.environ, "ASSAY_STATE": str(tmp_path / "state")}
    # A shell that starts the tests in the background has them ignore Ctrl-C, and so would what they start.
    command = [
        "env",
        f"--default-signal={signal.Signals(number).name}",
        *ASSAY,
        *map(str, words),
        *FAST,
        "--concurrency",
        "2",
    ]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        deadline = time.monotonic() + 60
        while attempts(tmp_path / "run", "verification") < 2:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        process.send_signal(number)
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == code, stderr
    assert "`assay resume" in stderr
    assert "Traceback" not in stderr
    assert attempts(tmp_path / "run", "agent") == 2
    for name in ("one", "two"):
        (dataset / name / "tests" / "verifier.py").write_text(GRADING)
    ended, record, _ = assay("resume", tmp_path / "run", "--json", state=tmp_path / "state")
    assert (ended, record["report"]["mean"], record["report"]["denominator"]) == (0, 1.0, 2)
    assert attempts(tmp_path / "run", "agent") == 2


def attempts(folder: Path, stage: str) -> int:
    """How many were begun: noted before anything of one happens."""
    if not (folder / "run.sqlite").exists():
        return 0
    try:
        with read_run(find_place(folder)) as store:
            return store.database.read_now(lambda c: c.execute(counting(stage)).scalar_one())
    except StoreUnusable:
        return 0


def counting(stage: str) -> Select[tuple[int]]:
    return select(func.count()).select_from(schema.attempt).where(schema.attempt.c.stage == stage)


@pytest.mark.parametrize(
    ("words", "said_"),
    [
        (["run", "DATA", "--agent", "nobody", "--out", "RUN"], "there is none called 'nobody'"),
        (["run", "DATA", "--agent", "command", "--out", "RUN"], "give --command 'CMD'"),
        (["run", "DATA", "--agent", "oracle", "--model", "m", "--out", "RUN"], "has no use for --model"),
        (["run", "DATA", "--agent", "replay", "--from", "NONE", "--out", "RUN"], "there is no file or folder"),
        (["run", "DATA", "--agent", "oracle"], "Missing option '--out'"),
        (["run", "NONE", "--agent", "oracle", "--out", "RUN"], "there is no such folder"),
        (["run", "DATA", "--agent", "oracle", "--out", "RUN", "--judge", "x"], "write NAME=URL"),
        (["run", "DATA", "--agent", "oracle", "--out", "RUN", "--judge", "x=http://u:p@h/v1"], "would be kept"),
        (["run", "DATA", "--agent", "oracle", "--out", "RUN", "--sandbox", "none"], "there is no sandbox provider"),
        (["run", "DATA", "--agent", "oracle", "--out", "RUN", "--store", "mysql://x"], "a store is a file or postgresql://"),
        (["resume", "RUN"], "there is no run"),
        (["recover", "RUN"], "there is no run"),
        (["regrade", "RUN"], "there is no run"),
        (["regrade", "RUN", "--where", "colour=red"], "there is no field 'colour'"),
        (["status", "RUN"], "there is no run"),
        (["report", "RUN"], "there is no run"),
        (["report", "RUN", "--where", "status"], "write FIELD=VALUE"),
        (["export", "RUN"], "there is no run"),
        (["compare", "RUN", "RUN"], "there is no run"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(
    tmp_path: Path,
    dataset: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    said_: str,
) -> None:
    """In this process, since starting one for each takes a second."""
    places = {"DATA": str(dataset), "RUN": str(tmp_path / "run"), "NONE": str(tmp_path / "none")}
    monkeypatch.setenv("ASSAY_STATE", str(tmp_path / "state"))
    monkeypatch.setattr("sys.argv", ["assay", *(places.get(word, word) for word in words)])
    with pytest.raises(SystemExit) as ended:
        main()
    stderr = capsys.readouterr().err
    assert ended.value.code == 2, stderr
    assert said_ in stderr.replace("\n", " ")


def test_a_run_of_another_program_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.sqlite").write_text("this is no database, whatever its name says")
    for name in ("status", "resume"):
        done = said(name, tmp_path / "run", state=tmp_path / "state")
        assert done.returncode == 2
        assert "no SQLite database" in done.stderr.replace("\n", " ")

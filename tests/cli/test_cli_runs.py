"""The commands of runs as a person or a program uses them: what is printed where, exit codes, signals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Select, func, select

import commands
from assay.answers import StoreUnusable, schema
from assay.runs import find_place, read_run, verifying
from commands import ASSAY, Ended, assay, make_task

GRADING = "def verify(workspace):\n    return float((workspace / 'answer.txt').read_text())\n"
FAST = ["--sandbox", "process", "--no-control"]


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    for name in ("one", "two"):
        task = make_task(tmp_path / "data" / name, GRADING)
        (task / "solution").mkdir()
        (task / "solution" / "solve.sh").write_text("#!/bin/bash\necho 1 > answer.txt\n")
    return tmp_path / "data"


Commands = Callable[..., Ended]


@pytest.fixture
def inline(tmp_path: Path) -> Commands:
    """`commands.inline` with a state folder of the test's own."""
    return lambda *words: commands.inline(*words, state=tmp_path / "state")


@pytest.fixture
def run(inline: Commands, tmp_path: Path, dataset: Path) -> Commands:
    def begun(*words: str, out: str = "run") -> Ended:
        return inline("run", dataset, "--out", tmp_path / out, *FAST, "--json", *words)

    return begun


def test_a_run_and_what_is_read_of_it(tmp_path: Path, inline: Commands, run: Commands) -> None:
    done = run("--agent", "oracle", "--rollouts", "2")
    assert (done.code, done.record["graded"], done.record["report"]["mean"]) == (0, 4, 1.0)
    assert "graded 4" in done.stderr
    folder = tmp_path / "run"
    done = inline("status", folder, "--json")
    assert (done.code, done.record["states"]["scored"], done.record["masked"]) == (0, 4, {})
    report = inline("report", folder, "--json").record
    assert (report["denominator"], report["planned"], report["partial"], report["mixed"]) == (4, 4, False, False)
    assert report["pass_at"]["2"] == {"estimate": 1.0, "tasks": 2}
    done = inline("export", folder, "--out", tmp_path / "out", "--json")
    assert (done.code, done.record["graded"]) == (0, 4)
    assert len((tmp_path / "out" / "rollouts.jsonl").read_text().splitlines()) == 4
    shown = inline("report", folder).stdout
    assert "mean reward   1.0000" in shown
    assert "4 graded rows of 4, 2 tasks" in shown
    assert "scored" in inline("status", folder).stdout
    assert "4 graded rows in" in inline("export", folder).stdout


def test_a_row_without_a_reward_ends_with_3_and_is_in_the_report(
    tmp_path: Path, inline: Commands, run: Commands
) -> None:
    script = 'if [ "$ASSAY_TASK" = one ]; then echo x > answer.txt; else exit 4; fi'
    done = run("--agent", "command", "--command", script)
    assert done.code == 3
    assert (done.record["masked"], done.record["agent_failed"]) == ({"verifier_error": 1}, {"agent_run_error": 1})
    assert done.record["report"]["masked_by_cause"] == {"unknown": 1}
    # A row without an answer is not masked, in whatever words.
    assert "masked 1 (verifier_error 1)  no answer 1 (agent_run_error 1)" in done.stderr
    exported = inline("export", tmp_path / "run", "--out", tmp_path / "out")
    assert "1 masked row and 1 row without an answer in" in exported.stdout
    status = inline("status", tmp_path / "run").stdout.splitlines()
    assert [line.split()[:3] for line in status if "_error" in line] == [
        ["masked", "1", "verifier_error"],
        ["no", "answer", "1"],
    ]
    assert "two, rollout 0: agent_run_error: the agent's command exited with code 4" in done.stderr
    shown = inline("report", tmp_path / "run").stdout
    assert "none: nothing is graded" in shown
    assert "PARTIAL" in shown
    assert "1 without an answer (agent_run_error 1)" in shown


ASKS = "from assay.verifiers import ask_judge\n\n\ndef verify():\n    return ask_judge('is it?') == 'yes'\n"
"""Masked at once where no judge is given."""


@pytest.mark.parametrize(
    ("command", "verifier", "again", "by"),
    [
        ("exit 4", GRADING, "resume", {"resume": "resume"}),
        ("true", ASKS, "recover", {"recover": "recover", "resume": "recover"}),
    ],
    ids=["agents that fail", "a judge that is not there"],
)
def test_rows_that_were_tried_too_often_are_never_taken_for_well(
    tmp_path: Path,
    dataset: Path,
    inline: Commands,
    run: Commands,
    command: str,
    verifier: str,
    again: str,
    by: dict[str, str],
) -> None:
    (dataset / "two").rename(tmp_path / "two")
    (dataset / "one" / "tests" / "verifier.py").write_text(verifier)
    folder = tmp_path / "run"
    assert run("--agent", "command", "--command", command).record["exhausted"] == {}
    assert inline(again, folder, "--json", "--attempts", "2").record["exhausted"] == {again: 1}
    for name, taker in by.items():
        done = inline(name, folder, "--attempts", "2", "--json")
        assert (done.code, done.record["todo"], done.record["exhausted"]) == (3, 0, {taker: 1})
        told = " ".join(done.stderr.split())
        assert (
            f"1 row was tried as often as --attempts allows, and not again: `assay {taker} {folder} --attempts N`"
            in told
        )
    done = inline(again, folder, "--json")
    assert (done.code, done.record["todo"], done.record["done"]) == (3, 1, 1)
    assert "a greater N allows more" in inline("status", folder).stdout


def test_regrade_prints_what_changed(tmp_path: Path, dataset: Path, inline: Commands, run: Commands) -> None:
    run("--agent", "oracle")
    folder = tmp_path / "run"
    (dataset / "one" / "tests" / "verifier.py").write_text("def verify():\n    return 0.25\n")
    done = inline("regrade", folder, "--task", "o*", "--json")
    assert done.code == 0
    assert done.record["changes"]["counts"]["lower"] == 1
    (changed,) = done.record["changed"]
    assert (changed["task_id"], changed["before"]["reward"], changed["after"]["reward"]) == ("one", 1.0, 0.25)
    file = tmp_path / "verifier.py"
    file.write_text("def verify(workspace):\n    return 0.5 if (workspace / 'answer.txt').exists() else 0\n")
    done = inline("regrade", folder, "--verifier", file, "--where", "status=graded")
    assert done.code == 0
    assert "higher 1, lower 1" in done.stdout
    assert "graded now by" in done.stdout
    assert "0 better, 0 worse, 2 the same" in inline("compare", folder, folder).stdout


def test_compare_prints_a_line_for_each_row_and_a_summary(tmp_path: Path, inline: Commands, run: Commands) -> None:
    run("--agent", "oracle")
    run("--agent", "command", "--command", "echo 0.5 > answer.txt", out="other")
    *rows, last = map(json.loads, inline("compare", tmp_path / "run", tmp_path / "other", "--json").stdout.splitlines())
    found = [(row["task_id"], row["a"]["reward"], row["b"]["reward"]) for row in rows]
    assert found == [("one", 1.0, 0.5), ("two", 1.0, 0.5)]
    assert last["summary"]["delta"] == -0.5
    assert "difference -0.5000" in inline("compare", tmp_path / "run", tmp_path / "other").stdout


def test_replay_says_what_it_could_not_take(tmp_path: Path, inline: Commands, run: Commands) -> None:
    run("--agent", "oracle")
    inline("export", tmp_path / "run")
    source = tmp_path / "run" / "rollouts.jsonl"
    source.write_text(source.read_text()[:-40])
    given = ["--from", str(source), "--snapshots", str(tmp_path / "run" / "snapshots")]
    done = run("--agent", "replay", *given, out="again")
    assert done.code == 3
    replayed = done.record["replayed"]
    assert (replayed["kept"], replayed["refused"], done.record["graded"]) == (1, 1, 1)
    assert "line 2: is torn" in done.stderr


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
    ("words", "said"),
    [
        (["run", "DATA", "--agent", "nobody", "--out", "RUN"], "there is none called 'nobody'"),
        (["run", "DATA", "--agent", "command", "--out", "RUN"], "give --command 'CMD'"),
        (["run", "DATA", "--agent", "oracle", "--model", "m", "--out", "RUN"], "has no use for --model"),
        (["run", "DATA", "--agent", "replay", "--from", "NONE", "--out", "RUN"], "there is no file or folder"),
        (["run", "DATA", "--agent", "oracle"], "Missing option '--out'"),
        (["run", "NONE", "--agent", "oracle", "--out", "RUN"], "there is no such folder"),
        (["run", "DATA", "--agent", "oracle", "--out", "RUN", "--judge", "x"], "must be NAME=URL"),
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
def test_what_is_wrong_is_said(tmp_path: Path, dataset: Path, inline: Commands, words: list[str], said: str) -> None:
    places = {"DATA": str(dataset), "RUN": str(tmp_path / "run"), "NONE": str(tmp_path / "none")}
    done = inline(*(places.get(word, word) for word in words))
    assert done.code == 2, done
    assert said in done.stderr.replace("\n", " ")


def test_a_run_of_another_program_is_refused(tmp_path: Path, inline: Commands) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.sqlite").write_text("this is no database, whatever its name says")
    for name in ("status", "resume"):
        done = inline(name, tmp_path / "run")
        assert done.code == 2
        assert "no SQLite database" in done.stderr.replace("\n", " ")


@pytest.mark.parametrize(("words", "warm"), [((), True), (("--no-warm",), False)])
def test_no_warm_reaches_the_grading(
    tmp_path: Path, inline: Commands, run: Commands, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], warm: bool
) -> None:
    seen: list[object] = []
    grade = verifying.grade

    async def noted(*given: Any, **options: Any) -> Any:
        seen.append(options["warm"])
        return await grade(*given, **options)

    monkeypatch.setattr(verifying, "grade", noted)
    assert run("--agent", "oracle", *words).code == 0
    assert inline("regrade", tmp_path / "run", *words).code == 0
    assert seen == [warm] * 4

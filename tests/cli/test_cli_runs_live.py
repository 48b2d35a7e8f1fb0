"""What is told of a command while it works."""

from __future__ import annotations

import os
import pty
import subprocess
from pathlib import Path

import pytest

from assay.answers import Identity
from assay.cli.live import _TOLD_MAX, in_words, live
from assay.runs import Happened, Tally
from commands import ASSAY, make_task


def tally_of(**counts: int) -> Tally:
    tally = Tally(todo=20)
    for number in range(counts.get("graded", 0)):
        tally.note(Happened("graded", Identity("t", number), {"reward": number % 2}))
    for kind in ("judge_failed", "judge_failed", "b", "c", "d")[: counts.get("masked", 0)]:
        tally.note(Happened("masked", Identity("t", 0), {"kind": kind}))
    return tally


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ({}, "graded 0"),
        ({"graded": 4}, "graded 4  mean 0.5  "),
        ({"graded": 2, "masked": 2}, "graded 2  masked 2 (judge_failed 2)  mean 0.5  "),
        ({"masked": 5}, "graded 0  masked 5 (judge_failed 2, b 1, c 1, 1 more kind)  "),
    ],
)
def test_counts_in_words(counts: dict[str, int], expected: str) -> None:
    words = in_words(tally_of(**counts))
    assert words.startswith(expected)
    assert words.endswith(" left") == bool(counts)


def test_a_line_now_and_then_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    now = [0.0]
    failed = Happened("agent_failed", Identity("t", 1), {"kind": "agent_run_error", "reason": "it \x1b[31mbroke"})
    graded = Happened("graded", Identity("t", 0), {"reward": 1.0})
    with live(clock=lambda: now[0]) as shown:
        for now[0] in (1.0, 2.0, 11.0, 12.0, 20.0, 22.0):
            shown.watch(tally_of(graded=3), graded)
        for _ in range(_TOLD_MAX + 5):
            shown.watch(tally_of(), failed)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split("  ")[0] for line in lines[:2]] == ["3/20", "3/20"]
    # What a sandbox wrote drives no terminal.
    assert lines[2] == r"t, rollout 1: agent_run_error: it \x1b[31mbroke"
    assert len(lines) == 2 + _TOLD_MAX + 1


def test_a_bar_on_a_terminal_and_nothing_of_it_on_stdout(tmp_path: Path) -> None:
    task = make_task(tmp_path / "task", "def verify():\n    return 1\n")
    words = [*ASSAY, "run", task, "--agent", "nop", "--out", tmp_path / "run", "--sandbox", "process", "--json"]
    ours, theirs = pty.openpty()
    environment = {**os.environ, "ASSAY_STATE": str(tmp_path / "state"), "TERM": "xterm", "NO_COLOR": "1"}
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=theirs, env=environment) as process:
        stdout, _ = process.communicate(timeout=60)
    os.close(theirs)
    shown = os.read(ours, 65536).decode()
    os.close(ours)
    assert process.returncode == 0, shown
    assert stdout.count(b"\n") == 1
    assert "1/1" in shown
    assert "\x1b[3" not in shown

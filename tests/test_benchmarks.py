"""The benchmarks themselves: they measure what they say, a soak finds a leak, and a wrong argument gets a sentence."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from benchmarks import load, peers, profile, ratios, soak, turns
from benchmarks.__main__ import main as bench
from benchmarks.counts import count
from benchmarks.ratios import Ratio
from benchmarks.soak import MOST, Soaked

ROOT = Path(__file__).resolve().parent.parent
SPECIFIED = [
    "bwrap_runner_over_warm",
    "bwrap_python_over_warm",
    "warm_over_floor",
    "parked_over_floor",
    "warm_p99_over_median",
    "two_core_scaling",
    "floor_two_core_scaling",
    "files200_over_small",
    "mb100_over_small",
    "http_over_warm",
    "cold_over_bwrap_runner",
    "rewardkit_over_warm",
    "harbor_phase_over_warm",
]
QUICK = [
    "bwrap_runner_over_warm",
    "warm_over_floor",
    "parked_over_floor",
    "warm_p99_over_median",
    "floor_two_core_scaling",
    "files200_over_small",
    "http_over_warm",
    "cold_over_bwrap_runner",
    "launcher_true_over_bwrap_true",
]


def run(*words: str) -> subprocess.CompletedProcess[str]:
    """A benchmark, as somebody starts it."""
    argv = [sys.executable, "-m", *words]
    return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)


def test_a_run_has_every_ratio_and_its_raw_figures(tmp_path: Path) -> None:
    told = tmp_path / "told.json"
    only = [word for name in (*QUICK, "profile") for word in ("--only", name)]
    done = run("benchmarks", "--runs", "1", "--json", str(told), *only)
    assert done.returncode == 0, done.stderr
    found = json.loads(told.read_text())
    assert [name for name in found["ratios"] if not name.startswith("launcher_")] == SPECIFIED
    assert {name for name, value in found["ratios"].items() if value is not None} >= set(QUICK)
    assert found["ratios"]["warm_over_floor"] == pytest.approx(
        found["medians"][ratios.WARM] / found["medians"][ratios.FLOOR]
    )
    # What is measured back to back is measured more than once, whatever `--runs` says.
    assert len(found["seconds"][ratios.WARM]) > 1
    assert all(name in done.stdout for name in QUICK)
    # The steps leave nothing of a verification out.
    steps = found["profile"]
    assert list(steps) == [*(mark.step for mark in profile.MARKS), profile.ALL]
    assert all(taken > 0 for taken in steps.values())


@pytest.mark.parametrize(
    ("main", "words", "said"),
    [
        (bench, ["--runs", "0"], "whole number from 1 up"),
        (bench, ["--runs", "many"], "whole number from 1 up"),
        (bench, ["--only", "nothing*"], "nothing has such a name; there is bwrap_runner_over_warm"),
        (bench, ["--json", "/no/such/folder/told.json"], "there is no folder /no/such/folder"),
        (load.main, ["--cpus", "4095"], "this process may use"),
        (load.main, ["--at-once", "0"], "whole number from 1 up"),
        (profile.main, ["--runs", "-1"], "whole number from 1 up"),
        (soak.main, ["--verifications", "0"], "whole number from 1 up"),
        (soak.main, ["--json", "/no/such/folder/told.json"], "there is no folder /no/such/folder"),
    ],
)
def test_a_wrong_argument_gets_a_sentence(
    main: Callable[[list[str]], None], words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_names_to_choose_from_are_distinct() -> None:
    names = [*turns.names(), *(ratio.name for ratio in ratios.ALL)]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("ratio", "value", "judged"),
    [
        (Ratio("r", "a", "b", least=7), 7.0, "met"),
        (Ratio("r", "a", "b", least=7), 6.99, "missed"),
        (Ratio("r", "a", "b", most=1.0), 1.0, "met"),
        (Ratio("r", "a", "b", most=1.0), 1.01, "missed"),
        (Ratio("r", "a", "b", most=1.0), None, "not measured"),
        (Ratio("r", "a", "b"), 3.0, ""),
    ],
)
def test_a_target_is_met_or_missed(ratio: Ratio, value: float | None, judged: str) -> None:
    assert ratio.judged(value) == judged


def test_what_was_not_measured_is_said_with_its_reason() -> None:
    lines = ratios.table(ratios.ALL, {ratios.WARM: 0.003, ratios.FLOOR: 0.001}, {ratios.REWARDKIT: "not installed"})
    by_name = {line.split()[0]: line for line in lines.splitlines()}
    assert by_name["warm_over_floor"].split()[1:] == ["3.00", "<=", "9", "met"]
    assert by_name["rewardkit_over_warm"].endswith("not measured: not installed")


def test_a_peer_that_is_not_installed_is_not_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "PLACE", tmp_path / "none")
    for peer in (peers.Rewardkit, peers.HarborPhase):
        with pytest.raises(peers.NotHere, match="make bench-peers"):
            peer(tmp_path)


def test_without_a_newer_python_no_peer_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "PLACE", tmp_path / "none")
    monkeypatch.setattr(peers, "LEAST", (3, 90))
    assert "there is no Python 3.90 or newer" in (peers.install() or "")


def test_a_function_that_is_gone_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = profile.Mark("a step", "assay.grading.grade", "no_such_function", profile.LEFT)
    monkeypatch.setattr(profile, "MARKS", (gone,))
    with pytest.raises(profile.NoSuchFunction, match=r"there is no assay\.grading\.grade\.no_such_function"):
        profile.measure(1)


def test_a_function_that_is_not_come_by_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    unused = profile.Mark("a step", "assay.grading.grade", "failed_verdict", profile.LEFT)
    monkeypatch.setattr(profile, "MARKS", (unused,))
    with pytest.raises(profile.NoSuchFunction, match="failed_verdict is not called in a warm verification"):
        profile.measure(1)


def test_a_soak_counts_and_finds_nothing(tmp_path: Path) -> None:
    told = tmp_path / "told.json"
    done = run("benchmarks.soak", "--verifications", "40", "--warm-up", "16", "--json", str(told))
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(told.read_text())
    assert [tenth["verifications"] for tenth in found["during"]] == [4 * tenth for tenth in range(1, 11)]
    assert (found["grown"], found["unexpected"]) == ([], [])
    # While it goes on there are servers, and each has a uid and a group: at rest there is none.
    assert all(tenth["processes"] > 0 and tenth["servers_mb"] > 0 for tenth in found["during"])
    assert found["before"]["processes"] == found["after"]["processes"] == 0
    assert all(name.replace("_", " ") in done.stdout for name in MOST)


LEAKS = {
    "descriptors": "os.open('/dev/null', os.O_RDONLY)",
    "threads": "threading.Thread(target=threading.Event().wait, daemon=True).start()",
    # Ends with this process: then its input does.
    "processes": "subprocess.Popen(['cat'], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)",
    "uids": "lease_uid()",
    "scratch": "stack.enter_context(scratch_folder('leak'))",
    "mounts": "kernel.mount('tmpfs', mkdtemp(dir=place), 0, '')",
    "cgroups": "Group(usable_hierarchy(), Limits())",
}
OF_ANYBODY = ("descriptors", "threads", "processes", "scratch")
LEAKY = """
import os, subprocess, sys, threading
from contextlib import ExitStack
from tempfile import mkdtemp
from assay.sandbox import Limits
from assay.sandbox.cgroups import Group
from assay.sandbox.launcher import kernel
from assay.sandbox.machine import usable_hierarchy
from assay.sandbox.uids import lease_uid
from assay.workspaces import scratch_folder
from benchmarks import soak, work

kept, stack = [], ExitStack()
verify = work.verify

async def leaky(*arguments):
LEAK
    return await verify(*arguments)

work.verify = leaky
with scratch_folder("leaky") as place:
    try:
        soak.main(["--verifications", "20", "--warm-up", "8"])
    finally:
        for path in place.iterdir():
            kernel.detach(str(path))
        for group in kept:
            if isinstance(group, Group):
                group.remove()
"""


def test_a_soak_finds_what_leaks() -> None:
    planted = LEAKS if os.geteuid() == 0 else {name: LEAKS[name] for name in OF_ANYBODY}
    leak = "\n".join(f"    kept.append({planting})" for planting in planted.values())
    done = run_program(LEAKY.replace("LEAK", leak))
    assert done.returncode == 1, done.stdout + done.stderr
    assert [name for name in planted if f"{name} grew by" not in done.stdout] == [], done.stdout + done.stderr


def run_program(program: str) -> subprocess.CompletedProcess[str]:
    """A program that has the benchmarks at hand."""
    argv = [sys.executable, "-c", program]
    return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)


def test_a_soak_finds_a_wrong_verdict(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(soak.ANSWERS, "wrong", ("41", 1.0))
    with pytest.raises(SystemExit) as ended:
        soak.main(["--verifications", "8", "--warm-up", "4"])
    assert ended.value.code == 1
    assert "the answer that is 'wrong' must get the reward 1, and got the reward 0" in capsys.readouterr().out


def test_growth_of_servers_is_of_those_that_serve() -> None:
    now = count()
    during = ((1, now._replace(servers_mb=10.0)), (2, now._replace(servers_mb=19.0)))
    assert Soaked(now, during, now, (), 1.0).grown() == ["servers mb grew by 9, from 10 to 19; it may by 8"]

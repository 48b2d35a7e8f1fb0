"""Shared mode and multi-step tasks on the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from commands import assay, inline
from filesystem import make_bash_task, make_filesystem

REWARD = "/logs/verifier/reward.txt"
EXAMPLES = Path(__file__).resolve().parent.parent.parent / "examples"


@pytest.mark.parametrize("sandbox", ["namespaces", "bubblewrap", "process"])
def test_shared_mode(tmp_path: Path, sandbox: str) -> None:
    root = make_filesystem(tmp_path / "agent")
    (root / "etc" / "feature").write_text("on\n")
    task = make_bash_task(
        tmp_path / "task",
        f"grep -q on /etc/feature && echo off > /etc/feature && echo 1 > {REWARD} || echo 0 > {REWARD}",
    )
    command = ("verify", task, "--mode", "shared", "--rootfs", root, "--sandbox", sandbox, "--json")
    for _ in range(2):
        code, verdict, _ = assay(*command, state=tmp_path / "state")
        assert (code, verdict["reward"], verdict["base"]) == (0, 1.0, str(root)), verdict
        assert verdict["trust"] == "none" if sandbox == "process" else "shared"
    assert (root / "etc" / "feature").read_text() == "on\n"


def test_multi_step(tmp_path: Path) -> None:
    workspace = EXAMPLES / "workspaces" / "price-list" / "wrong"
    command = ("verify", EXAMPLES / "price-list", "--workspace", workspace, "--json")
    code, verdict, _ = assay(*command, state=tmp_path / "state")
    assert (code, verdict["reward"], verdict["proven"]) == (0, 0.25, True)
    assert verdict["metrics"] == {"clean/reward": 0.5, "clean/articles": 1.0, "clean/order": 0.0, "total/reward": 0.0}
    assert [(step["step"], step["reward"]) for step in verdict["steps"]] == [("clean", 0.5), ("total", 0.0)]


def test_a_step_without_a_workspace(tmp_path: Path) -> None:
    command = ("verify", EXAMPLES / "price-list", "--workspace", tmp_path, "--json")
    code, verdict, _ = assay(*command, state=tmp_path / "state")
    assert (code, verdict["failure"]["kind"]) == (2, "assay:workspace_invalid")
    assert str(tmp_path / "clean") in verdict["failure"]["reason"]


def test_steps_are_shown_to_a_person(tmp_path: Path) -> None:
    (tmp_path / "w" / "clean").mkdir(parents=True)
    done = inline("verify", EXAMPLES / "price-list", "--workspace", tmp_path / "w", state=tmp_path / "state")
    assert done.code == 0, done
    shown = done.stdout
    assert "clean  reward 0" in shown
    assert "total  not reached" in shown


USAGE = [
    (("--mode", "shared"), "--rootfs"),
    ((), "--workspace"),
    (("--mode", "odd"), "separate"),
]


@pytest.mark.parametrize(("options", "said"), USAGE)
def test_wrong_usage(tmp_path: Path, options: tuple[str, ...], said: str) -> None:
    task = make_bash_task(tmp_path / "task", "true")
    code, _, stderr = assay("verify", task, *options, state=tmp_path / "state", check_json=False)
    assert code == 2
    assert said in stderr


def test_shared_mode_against_the_tasks_word(tmp_path: Path) -> None:
    task = make_bash_task(tmp_path / "task", "true", '[verifier]\nenvironment_mode = "separate"\n')
    root = make_filesystem(tmp_path / "agent")
    command = ("verify", task, "--mode", "shared", "--rootfs", root)
    code, _, stderr = assay(*command, state=tmp_path / "state", check_json=False)
    assert code == 2
    assert "separate" in stderr

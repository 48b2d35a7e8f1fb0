"""Whatever a person gives by mistake: a sentence, exit code 2, and never "a bug in Assay"."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

import pytest

from commands import ASSAY, inline, make_task
from ordinary_user import run_as_ordinary_user

COMMANDS = {
    "check": ["check", "PLACE"],
    "lint": ["lint", "PLACE"],
    "publish": ["publish", "PLACE", "OUT"],
    "verify": ["verify", "PLACE", "--workspace", "."],
}
PLACES = ["absent", "file", "empty folder", "fifo", "empty text", "task.toml itself"]


def place(kind: str, folder: Path) -> str:
    match kind:
        case "file":
            (folder / "x").write_text("x")
        case "empty folder":
            (folder / "x").mkdir()
        case "fifo":
            os.mkfifo(folder / "x")
        case "empty text":
            return ""
        case "task.toml itself":
            return str(make_task(folder / "task", "def verify():\n    return 1\n") / "task.toml")
    return str(folder / "x")


@pytest.mark.parametrize("kind", PLACES)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_place_that_is_no_task(tmp_path: Path, command: str, kind: str) -> None:
    given = {"PLACE": place(kind, tmp_path), "OUT": str(tmp_path / "out")}
    words = [given.get(word, word) for word in COMMANDS[command]]
    done = inline(*words, state=tmp_path, cwd=tmp_path)
    assert done.code == 2, done
    assert done.stderr or "assay:task_invalid" in done.stdout


@pytest.mark.parametrize("where", ["environment", "tests", "solution"])
def test_a_task_with_a_fifo_in_it(tmp_path: Path, where: str) -> None:
    task = make_task(tmp_path / "task", "def verify():\n    return 1\n")
    (task / "solution").mkdir()
    (task / "solution" / "solve.sh").write_text("#!/bin/bash\n")
    (task / where).mkdir(exist_ok=True)
    os.mkfifo(task / where / "pipe")
    for words in (["verify", task, "--workspace", tmp_path, "--json"], ["check", task], ["lint", task]):
        done = inline(*words, state=tmp_path / "state")
        assert done.code in (0, 2, 3), done
        assert "pipe" in done.stdout + done.stderr or done.code == 0


def test_a_folder_that_may_not_be_listed_hides_no_other() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        make_task(folder / "open", "def verify(workspace):\n    return 1\n")
        closed = make_task(folder / "closed", "def verify(workspace):\n    return 1\n")
        closed.chmod(0o700)
        done = run_as_ordinary_user([*ASSAY, "check", name, "--json"])
        assert b"Traceback" not in done.stderr
        assert b'"task_id": "open"' in done.stdout
        if os.geteuid() == 0:
            assert b"closed" in done.stdout
            assert done.returncode == 3


WRONG = [
    (["--logs", "/proc/nothing"], "cannot be made"),
    (["--logs", "FULL"], "not an empty folder"),
    (["--response", "deep.json"], "deep.json"),
    (["--response", "nan.json"], "nan.json"),
    (["--task-data", "nan.json"], "nan.json"),
    (["--task-data", "list.json"], "must hold a JSON object"),
    (["--workspace", ""], "is empty"),
]


@pytest.mark.parametrize(("options", "said"), WRONG)
def test_options(tmp_path: Path, options: list[str], said: str) -> None:
    task = make_task(tmp_path / "task", "def verify():\n    return 1\n")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_text("")
    (tmp_path / "deep.json").write_text("[" * 100_000)
    (tmp_path / "nan.json").write_text('{"a": NaN}')
    (tmp_path / "list.json").write_text("[]")
    words = [str(tmp_path / "full") if word == "FULL" else word for word in options]
    done = inline("verify", task, "--workspace", tmp_path, *words, state=tmp_path / "state", cwd=tmp_path)
    assert done.code == 2, done
    assert said in done.stderr


def test_a_reader_that_goes_away_is_not_told_that_all_is_well(tmp_path: Path) -> None:
    task = make_task(tmp_path / "task", "def verify():\n    return 1\n")
    read_end, write_end = os.pipe()
    os.close(read_end)
    with os.fdopen(write_end, "wb") as nobody:
        done = subprocess.run(
            [*ASSAY, "verify", task, "--workspace", tmp_path, "--json"],
            stdout=nobody,
            stderr=subprocess.PIPE,
            env={**os.environ, "ASSAY_STATE": str(tmp_path / "state")},
        )
    assert done.returncode == 141, done
    assert b"bug in Assay" not in done.stderr

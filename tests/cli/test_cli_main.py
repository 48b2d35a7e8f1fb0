"""The command line itself: help, unknown commands, bugs, interruptions."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import click
import pytest

from assay.cli.main import cli
from commands import ASSAY, inline, make_task

COMMANDS = cli.list_commands(click.Context(cli))


def test_help_names_every_command() -> None:
    done = subprocess.run([*ASSAY, "--help"], capture_output=True, text=True, check=True)
    for command in COMMANDS:
        assert f"  {command}" in done.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(tmp_path: Path, command: str) -> None:
    done = inline(command, "--help", state=tmp_path)
    assert done.code == 0
    assert "Usage: assay" in done.stdout


def test_help_imports_nothing_heavy() -> None:
    script = (
        "import sys\nsys.argv = ['assay', '--help']\nfrom assay.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print([name for name in ('pydantic', 'rich', 'jinja2', 'asyncio', 'tomlkit') if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(("typed", "said"), [("verfy", "Did you mean 'verify'"), ("zzz", "The commands are")])
def test_a_command_that_does_not_exist(tmp_path: Path, typed: str, said: str) -> None:
    done = inline(typed, state=tmp_path)
    assert done.code == 2
    assert said in done.stderr


def test_a_bug_is_said_to_be_one() -> None:
    script = (
        "import sys\nimport assay.cli.main as m\n"
        "def broken(**_):\n    raise ZeroDivisionError('oops')\n"
        "m.cli.main = broken\nm.main()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 1
    assert "ZeroDivisionError: oops" in done.stderr
    assert "bug in Assay" in done.stderr


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupted_while_grading_it_leaves_nothing(tmp_path: Path, number: signal.Signals, code: int) -> None:
    """Once the runner is seen in the list of processes, the command is interrupted."""
    task = make_task(tmp_path / "task", "def verify(workspace):\n    while True: pass\n")
    workspace = tmp_path / "w"
    workspace.mkdir()
    with tempfile.TemporaryDirectory() as scratch:
        # Where the sandbox's own uid can pass, else the command chooses another place.
        os.chmod(scratch, 0o755)
        env = {**os.environ, "ASSAY_STATE": str(tmp_path / "state"), "TMPDIR": scratch}
        # A shell that starts the tests in the background has them ignore Ctrl-C, and so would what they start.
        command = ["env", f"--default-signal={number.name}", *ASSAY, "verify", task, "--workspace", workspace]
        running = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            runner = _wait_for_runner(running)
            assert os.listdir(scratch)
            running.send_signal(number)
            _, stderr = running.communicate(timeout=60)
        finally:
            running.kill()
            running.communicate()
        assert running.returncode == code
        assert b"Traceback" not in stderr
        assert not Path(f"/proc/{runner}").exists()
        assert os.listdir(scratch) == []


def _wait_for_runner(running: subprocess.Popen[bytes]) -> int:
    """The pid of the runner below a process, as soon as there is one."""
    deadline = time.monotonic() + 60
    while running.poll() is None and time.monotonic() < deadline:
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                command = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if command[0].endswith(b"python3") and b"/tests/.ng" in command and _is_below(entry, running.pid):
                return int(entry.name)
    running.kill()
    raise AssertionError(running.communicate())


def _is_below(entry: Path, ancestor: int) -> bool:
    pid = int(entry.name)
    while pid > 1:
        if pid == ancestor:
            return True
        try:
            pid = int((Path("/proc") / str(pid) / "stat").read_text().rsplit(")", 1)[1].split()[1])
        except (OSError, IndexError):
            return False
    return False

"""Running the command line, and making small tasks for it."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from assay.cli.main import main

ASSAY = [sys.executable, "-m", "assay.cli.main"]
"""As a process of its own: for what only a process can show (signals, streams, another user)."""


class Ended(NamedTuple):
    """What a command came to."""

    code: int
    stdout: str
    stderr: str

    @property
    def record(self) -> Any:
        """The one object that it printed."""
        return json.loads(self.stdout)


def inline(*words: str | Path | bytes, state: Path, cwd: Path | None = None) -> Ended:
    """Run a command in this process, since starting one for each takes half a second. A traceback fails the test."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    code: object = "no exit code"
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        patch.setattr("sys.argv", ["assay", *map(os.fsdecode, words)])
        patch.setenv("ASSAY_STATE", str(state))
        if cwd is not None:
            patch.chdir(cwd)
        try:
            main()
        except SystemExit as end:
            code = end.code
    stdout, stderr = (stream.buffer.getvalue().decode("utf-8") for stream in (out, err))
    assert "Traceback" not in stderr, stderr
    assert isinstance(code, int), (code, stderr)
    return Ended(code, stdout, stderr)


def apart(*words: str | Path, state: Path) -> Ended:
    """Run a command in a process of its own: where this one's main thread has something else to do."""
    env = {**os.environ, "ASSAY_STATE": str(state)}
    done = subprocess.run([*ASSAY, *words], capture_output=True, text=True, env=env, timeout=120)
    assert "Traceback" not in done.stderr, done.stderr
    return Ended(done.returncode, done.stdout, done.stderr)


def assay(*words: str | Path | bytes, state: Path, check_json: bool = True) -> tuple[int, dict[str, Any], str]:
    """`inline`; its exit code, the one object it printed on stdout, and its stderr."""
    done = inline(*words, state=state)
    return done.code, done.record if check_json else {}, done.stderr


def make_task(folder: Path, verifier: str, toml: str = "") -> Path:
    (folder / "tests").mkdir(parents=True)
    (folder / "instruction.md").write_text("Do it.\n")
    (folder / "task.toml").write_text('schema_version = "1.4"\n' + toml)
    (folder / "tests" / "verifier.py").write_text(verifier)
    return folder

"""What is measured: one small task, and answers to it.

The answers of the rows are captured before anything is timed, and `grade` is told so: captures are measured apart
(`captures`). Everything else that a verification does is in what is timed.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from assay.grading import Captured, Verdict, grade
from assay.sandbox import SandboxSpec, get_provider
from assay.sandbox.namespaces import get_ready
from assay.tasks import Task, load_task
from assay.workspaces import capture, finish_removals

PYTHON = "/usr/bin/python3"
"""The interpreter of every row: in sandboxes, in bare bubblewrap, of the floor."""
VERIFIER = "def verify(workspace):\n    return float((workspace / 'answer.txt').read_text() == '42\\n')\n"
SUBMISSION = "print(sum(map(int, input().split())))\n"
SUBMISSION_VERIFIER = """\
from assay.verifiers import run_submission
def verify(workspace):
    done = run_submission(["python3", "main.py"], workspace=workspace, stdin="40 2\\n", timeout_s=60)
    return float(done.stdout == b"42\\n")
"""
"""For a workspace with the `SUBMISSION` in it, as `main.py`."""
WARM_UP = 40
"""Verifications before the first that counts: by then as many slots wait as are used at once."""
_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Work:
    """The task, and where the evidence about it is kept."""

    task: Task
    folder: Path
    """Ours, passable by all."""

    @property
    def state(self) -> Path:
        return self.folder / "state"


def make_work(folder: Path, verifier: str = VERIFIER) -> Work:
    """The task in a new folder below `folder`."""
    # Passable by the uid that bubblewrap is started under.
    folder.chmod(0o755)
    task = folder / "dataset" / "task"
    (task / "tests").mkdir(parents=True)
    (task / "environment").mkdir()
    (task / "instruction.md").write_text("Write 42.\n")
    (task / "task.toml").write_text('schema_version = "1.4"\n')
    (task / "tests" / "verifier.py").write_text(verifier)
    return Work(load_task(task), folder)


def make_workspace(folder: Path, *, files: int = 0, file_bytes: int = 1000, answer: str = "42\n") -> Path:
    """A workspace with the answer, and so many files beside it, twenty to a folder."""
    folder.mkdir()
    (folder / "answer.txt").write_text(answer)
    for number in range(files):
        path = folder / f"part-{number // 20:04}" / f"file-{number:05}.bin"
        path.parent.mkdir(exist_ok=True)
        with path.open("wb") as file:
            for begin in range(0, file_bytes, _MIB):
                file.write(os.urandom(min(_MIB, file_bytes - begin)))
    return folder


def captured(workspace: Path) -> Captured:
    """A workspace as `grade` takes it when it was captured before."""
    place = workspace.with_name(f"{workspace.name}-captured")
    return Captured(capture(workspace, place).folder)


async def verify(work: Work, answer: Path | Captured, *, provider: str = "namespaces", warm: bool = True) -> Verdict:
    """The verdict on an answer."""
    return await grade(work.task, answer, state=work.state, sandbox=get_provider(provider), warm=warm)


async def verified(
    work: Work,
    answer: Path | Captured,
    times: int,
    *,
    provider: str = "namespaces",
    warm: bool = True,
    apart_s: float = 0.0,
) -> list[float]:
    """Seconds of each of so many verifications of a good answer, one after the other, `apart_s` seconds between them."""
    seconds = []
    for _ in range(times):
        if apart_s:
            await asyncio.sleep(apart_s)
        began = time.perf_counter()
        verdict = await verify(work, answer, provider=provider, warm=warm)
        seconds.append(time.perf_counter() - began)
        if verdict.reward != 1.0:
            raise SystemExit(f"the benchmark's own verification failed: {verdict.failure}")
    return seconds


async def warm_up(work: Work, answer: Path | Captured, times: int = WARM_UP, *, at_once: int = 1) -> None:
    """What a process that has verified for a while has behind it."""
    await get_ready(SandboxSpec(interpreter=PYTHON))
    shares = [times // at_once + (number < times % at_once) for number in range(at_once)]
    await asyncio.gather(*(verified(work, answer, share) for share in shares))


def clear() -> None:
    """Do now what would be done beside the next thing that is timed: nobody pays for another's leavings."""
    finish_removals()
    gc.collect()


def tell(text: str) -> None:
    """Progress: on stderr, where nobody parses it."""
    print(text, file=sys.stderr, flush=True)


def positive(text: str) -> int:
    """A number of an option."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1 up, got {text!r}")
    return int(text)


def check_machine() -> None:
    """Ends the program where nothing could be measured, and says why."""
    if not Path(PYTHON).exists():
        raise SystemExit(
            f"there is no {PYTHON}, the interpreter that sandboxes on the host's /usr run: install python3"
        )
    if not get_provider("namespaces").capabilities():
        raise SystemExit("the sandbox `namespaces` does not run on this machine: `assay doctor` says what is missing")

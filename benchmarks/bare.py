"""Bare bubblewrap: namespaces and mounts, and nothing else. No cgroup, filter, capture or proof of death."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

from assay.sandbox.runtime import find_bubblewrap
from assay.tasks import Task, stage_tests
from assay.verifiers.compiled import COMPILED, HOME, START, compiled_files

from .work import PYTHON

TRUE_UID = 65534 if os.geteuid() == 0 else None


def bare_bwrap(argv: list[str], workspace: Path, tests: Path, uid: int | None = None) -> None:
    """Run a command in it once. `uid`: dropped to before it, as root must."""
    drop = [] if uid is None else ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--"]
    subprocess.run(
        [
            *drop,
            *(str(find_bubblewrap().path), "--unshare-all", "--die-with-parent", "--ro-bind", "/usr", "/usr"),
            *("--symlink", "usr/bin", "/bin", "--symlink", "usr/lib", "/lib", "--symlink", "usr/lib64", "/lib64"),
            *("--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--tmpfs", "/logs/verifier"),
            *("--overlay-src", workspace, "--tmp-overlay", "/app", "--ro-bind", tests, "/tests", "--chdir", "/app"),
            *("--clearenv", "--setenv", "PATH", "/usr/bin:/bin", "--", *argv),
        ],
        check=True,
        stdout=subprocess.DEVNULL,
    )


def timed_bwrap(argv: list[str], workspace: Path, tests: Path, times: int, uid: int | None = None) -> list[float]:
    """Seconds of each of so many runs, one after the other."""
    seconds = []
    for _ in range(times):
        began = time.perf_counter()
        bare_bwrap(argv, workspace, tests, uid)
        seconds.append(time.perf_counter() - began)
    return seconds


def stage(task: Task, tests: Path) -> None:
    """Lay a task's tests folder with the runner, which is there compiled, too."""
    stage_tests(task, tests, task_data={}, response=None)
    (tests / Path(HOME).name / COMPILED).write_bytes(compiled_files())


def runner(*, compiled: bool = False) -> list[str]:
    """The runner as a published task starts it, with a verifier; or `compiled` ahead, as our own sandboxes start it cold."""
    program = ["-c", START, HOME] if compiled else [f"{HOME}/run_verifier.py"]
    return [
        *(PYTHON, "-I", *program, "--verifier", "/tests/verifier.py"),
        *("--workspace", "/app", "--task-data", f"{HOME}/task_data.json", "--reward-dir", "/logs/verifier"),
    ]


def nothing() -> list[str]:
    """The same interpreter, with nothing to do."""
    return [PYTHON, "-I", "-c", "pass"]

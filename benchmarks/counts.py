"""What this process and all below it have of the machine: counted, so that what grows is seen."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path
from typing import NamedTuple

from assay.sandbox.machine import usable_hierarchy

_LEASE = re.compile(r"@assay-sandbox-uid-\d+$")
_OWNED = re.compile(r"/assay-\d+-(\d+)-[0-9a-f]+/")
_SCRATCH = (Path("/dev/shm"), Path("/tmp"), Path("/var/tmp"))
_KB = 1024


class Counts(NamedTuple):
    """At one moment."""

    supervisor_mb: float
    """Resident memory of this process."""
    servers_mb: float
    """Resident memory of the largest process below it: a slot server's, or its keeper's."""
    descriptors: int
    """Of this process."""
    server_descriptors: int
    """The most that a process below it has."""
    threads: int
    """Of this process."""
    processes: int
    """Below it, at whatever depth."""
    cgroups: int
    """Folders of this process' groups, in all hierarchies together."""
    mounts: int
    """That this process sees, but those in the scratch folders of other processes."""
    uids: int
    """Leased by this process."""
    scratch: int
    """Folders of this process in its scratch space."""


def count() -> Counts:
    """Now. Threads and folders that are about to go are still there: `work.clear` before."""
    below = _below(os.getpid())
    return Counts(
        round(_resident_mb(os.getpid()), 1),
        round(max(map(_resident_mb, below), default=0.0), 1),
        _descriptors(os.getpid()),
        max(map(_descriptors, below), default=0),
        len(_entries(Path("/proc/self/task"))),
        len(below),
        _cgroups(),
        _mounts(),
        _leased(),
        _scratch(),
    )


def _below(pid: int) -> list[int]:
    """The processes below one."""
    children: dict[int, list[int]] = {}
    for entry in _entries(Path("/proc")):
        if entry.isdigit():
            try:
                fields = Path(f"/proc/{entry}/stat").read_text(errors="replace").rpartition(")")[2].split()
            except OSError:
                continue
            children.setdefault(int(fields[1]), []).append(int(entry))
    found, left = [], [pid]
    while left:
        mine = children.get(left.pop(), [])
        found += mine
        left += mine
    return found


def _resident_mb(pid: int) -> float:
    try:
        text = Path(f"/proc/{pid}/status").read_text(errors="replace")
    except OSError:
        return 0.0
    found = re.search(r"^VmRSS:\s+(\d+)", text, re.MULTILINE)
    return int(found[1]) / _KB if found else 0.0


def _descriptors(pid: int) -> int:
    return len(_entries(Path(f"/proc/{pid}/fd")))


def _cgroups() -> int:
    """Those named after this process, and what is in them."""
    hierarchy = usable_hierarchy()
    total = 0
    for parent in hierarchy.distinct if hierarchy is not None else ():
        for own in parent.glob(f"assay-*-{os.getpid()}-*"):
            total += sum(1 for _ in os.walk(own))
    return total


def _mounts() -> int:
    places = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text(errors="replace").splitlines()]
    owners = [_OWNED.search(place) for place in places]
    return sum(owner is None or int(owner[1]) == os.getpid() for owner in owners)


def _leased() -> int:
    """Uids whose lease, a socket with its name, this process holds."""
    held = set()
    for fd in _entries(Path("/proc/self/fd")):
        try:
            held.add(str(Path(f"/proc/self/fd/{fd}").readlink()))
        except OSError:
            continue
    lines = Path("/proc/net/unix").read_text().splitlines()[1:]
    inodes = [fields[6] for fields in map(str.split, lines) if len(fields) > 7 and _LEASE.match(fields[7])]
    return sum(f"socket:[{inode}]" in held for inode in inodes)


def _scratch() -> int:
    places = {Path(tempfile.gettempdir()), *_SCRATCH}
    roots = [root for place in places for root in place.glob(f"assay-{os.geteuid()}-{os.getpid()}-*")]
    return sum(len(_entries(root)) for root in roots)


def _entries(folder: Path) -> list[str]:
    """The names in a folder; none where it is gone."""
    try:
        return [entry.name for entry in folder.iterdir()]
    except OSError:
        return []

"""What `/proc` says about processes: who is whose child, what they used, how long they waited."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


def start_time(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None when there is no such process."""
    fields = _stat_fields(pid)
    return int(fields[19]) if fields else None


def parent_of(pid: int) -> int | None:
    """The pid of a process' parent; None when there is no such process."""
    fields = _stat_fields(pid)
    return int(fields[1]) if fields else None


def cpu_of(pid: int) -> float:
    """Processor seconds of a process and the children it has waited for; 0 when there is no such process."""
    fields = _stat_fields(pid)
    return sum(map(int, fields[11:15])) / _TICKS if fields else 0.0


def _stat_fields(pid: int) -> list[bytes]:
    """The fields of `/proc/PID/stat` after the name, which may hold anything; empty when there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return []


def run_delay_of(pid: int) -> float:
    """The longest that a thread of a living process has waited for a processor, in seconds.

    Not one that keeps to fewer processors than this process may use: it may have chosen a busy one.
    """
    longest = 0
    ours = len(os.sched_getaffinity(0))
    for task in _tasks(pid):
        with contextlib.suppress(OSError, ValueError, IndexError):
            if len(os.sched_getaffinity(int(task.name))) < ours:
                continue
            longest = max(longest, int((task / "schedstat").read_bytes().split()[1]))
    return longest / 1e9


def children(pid: int) -> list[int]:
    """The child processes of a process, as far as it can be seen."""
    found: list[int] = []
    for task in _tasks(pid):
        with contextlib.suppress(OSError):
            found += map(int, (task / "children").read_bytes().split())
    return found


def descendants(pid: int) -> list[int]:
    """A process and everything below it that lives now. Of a pid namespace's pid 1, that is everything in it."""
    found = [pid]
    for one in found:
        found += children(one)
    return found


def _tasks(pid: int) -> list[Path]:
    try:
        return list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return []

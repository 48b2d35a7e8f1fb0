"""Control groups, version 1 or 2: limits on memory, processes and processor share, and the evidence that one was hit.

Groups are made below the supervisor's own group (on version 2 below the nearest ancestor that may hold both groups and
the controllers), named after the supervisor and removed on close. A group whose supervisor died without removing it is
swept when the next one looks.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import signal
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from assay.sandbox.base import MIB, Limits
from assay.sandbox.procfs import start_time

CONTROLLERS = ("memory", "pids", "cpu", "cpuacct")
_PERIOD_US = 100_000
_PREFIX = "assay-"
_MINIMUM_QUOTA_US = 1000
_CHARGE_BYTES = MIB
_COUNTER_BYTES = 4096
"""More than the longest of those that are read."""


@dataclass(frozen=True, slots=True)
class Counters:
    """What a group has counted so far."""

    oom_kills: int = 0
    """Processes that the kernel killed for memory, whoever's memory ran out."""
    limit_hits: int = 0
    """How often the group's own memory limit was reached (version 1: at most once after `begin`)."""
    fork_refusals: int = 0
    cpu_s: float | None = None
    used_much: bool = False
    """Whether its processes had half of its memory limit or more at once (version 1: after `begin`)."""


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """Where groups can be made on this machine."""

    version: int
    """1 or 2."""
    folders: Mapping[str, Path]
    """For each controller that can be used, the folder in which its groups are made."""

    @property
    def distinct(self) -> tuple[Path, ...]:
        """The folders, each once."""
        return tuple(dict.fromkeys(self.folders.values()))


def find_hierarchy(mountinfo: str, own: str, *, root: Path = Path("/")) -> Hierarchy | None:
    """Where groups may be made, by the texts of `/proc/self/mountinfo` and `/proc/self/cgroup`; None when nowhere.

    `root` stands before every path (tests). Says nothing about whether the kernel lets a process be moved: `usable`.
    """
    mounts = _cgroup_mounts(mountinfo)
    groups = _own_groups(own)
    folders: dict[str, Path] = {}
    for controller in CONTROLLERS:
        for mount in mounts:
            if mount.version == 1 and controller in mount.options and controller in groups:
                folder = mount.folder(groups[controller], root)
                if os.access(folder, os.W_OK):
                    folders[controller] = folder
    if folders:
        return Hierarchy(1, folders)
    for mount in mounts:
        if mount.version == 2 and "" in groups:
            found = _delegated_folder(mount.folder(groups[""], root), root / mount.point.lstrip("/"))
            if found is not None:
                folder, controllers = found
                return Hierarchy(2, {name: folder for name in CONTROLLERS if name in controllers or name == "cpuacct"})
    return None


@dataclass(frozen=True, slots=True)
class _Mount:
    version: int
    root: str
    point: str
    options: frozenset[str]

    def folder(self, group: str, root: Path) -> Path:
        within = os.path.relpath(group, self.root)
        # A group outside what is mounted here (another cgroup namespace's) cannot be named: the mount's own top is it.
        return root / self.point.lstrip("/") / ("" if within.startswith("..") else within)


def _cgroup_mounts(mountinfo: str) -> list[_Mount]:
    mounts = []
    for line in mountinfo.splitlines():
        left, separator, right = line.partition(" - ")
        fields, kind = left.split(), right.split()
        if separator and len(kind) >= 3 and kind[0] in ("cgroup", "cgroup2"):
            mounts.append(_Mount(2 if kind[0] == "cgroup2" else 1, fields[3], fields[4], frozenset(kind[2].split(","))))
    return mounts


def _own_groups(own: str) -> dict[str, str]:
    groups = {}
    for line in own.splitlines():
        _, controllers, group = line.split(":", 2)
        groups.update(dict.fromkeys(controllers.split(","), group))
    return groups


def _delegated_folder(own: Path, top: Path) -> tuple[Path, frozenset[str]] | None:
    """The nearest group, ours or above it, in which groups with controllers can be made. Enables them where it may."""
    for folder in (own, *own.parents):
        if os.access(folder, os.W_OK):
            available = set(_words(folder / "cgroup.controllers")) & set(CONTROLLERS)
            for name in available - set(_words(folder / "cgroup.subtree_control")):
                # Refused where the group holds processes itself: then its parent is asked.
                with contextlib.suppress(OSError):
                    (folder / "cgroup.subtree_control").write_text(f"+{name}")
            enabled = available & set(_words(folder / "cgroup.subtree_control"))
            if "memory" in enabled or "pids" in enabled:
                return folder, frozenset(enabled)
        if folder == top:
            break
    return None


def _words(path: Path) -> list[str]:
    # Read for every command, a dozen files each: the plain calls take a third of the time that a file object takes.
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return []
    text = bytearray()
    try:
        while data := os.read(fd, 65536):
            text += data
    except OSError:
        return []
    finally:
        os.close(fd)
    return text.decode("ascii", "replace").split()


_numbers = itertools.count()


class Group:
    """The control group of one sandbox. `join` its first process, read `counters`, `remove` it when it is empty."""

    def __init__(self, hierarchy: Hierarchy, limits: Limits, *, pid1: bool = True) -> None:
        """Make the group with its limits. `pid1`: whether the sandbox's own pid 1 joins it, too.

        Raises `OSError` when the kernel refuses.
        """
        self._hierarchy = hierarchy
        self._pid1 = pid1
        self._name = f"{_prefix()}{os.getpid()}-{start_time(os.getpid())}-{next(_numbers)}"
        self._folders = {name: folder / self._name for name, folder in hierarchy.folders.items()}
        self._counting: dict[str, int] = {}
        try:
            for folder in self._distinct():
                folder.mkdir()
            self._limit(limits, Limits(processes=None))
        except OSError:
            self.remove()
            raise
        self._limits = limits

    def limit(self, limits: Limits) -> None:
        """Give an empty group other limits. Raises `OSError` when the kernel refuses."""
        if limits != self._limits:
            self._limit(limits, self._limits)
            self._limits = limits

    def doors(self) -> list[int]:
        """Descriptors through which a process joins by writing "0", whatever rights it has by then. The caller closes them."""
        return [os.open(folder / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC) for folder in self._distinct()]

    @property
    def limits_memory(self) -> bool:
        """Whether the group limits memory, files in tmpfs included."""
        return "memory" in self._folders

    @property
    def counts_processes(self) -> bool:
        """Whether the group limits the number of processes."""
        return "pids" in self._folders

    def _distinct(self) -> tuple[Path, ...]:
        return tuple(dict.fromkeys(self._folders.values()))

    def _limit(self, limits: Limits, before: Limits) -> None:
        old = self._hierarchy.version == 1
        if "memory" in self._folders:
            most = self._most_memory()
            memory = min(limits.memory_bytes if limits.memory_bytes is not None else most // 2, most)
            swap = "memory.memsw.limit_in_bytes" if old else "memory.swap.max"
            # Absent without swap accounting.
            counts_swap = (self._folders["memory"] / swap).exists()
            if counts_swap and old:
                # Memory and swap together may never be less than memory.
                self._write("memory", swap, "-1")
            self._write("memory", "memory.limit_in_bytes" if old else "memory.max", str(memory))
            if counts_swap:
                self._write("memory", swap, str(memory) if old else "0")
        if limits.processes != before.processes and "pids" in self._folders:
            count = "max" if limits.processes is None else str(limits.processes + self._pid1)
            self._write("pids", "pids.max", count)
        if limits.cpus != before.cpus and "cpu" in self._folders:
            quota = None if limits.cpus is None else max(_MINIMUM_QUOTA_US, math.ceil(limits.cpus * _PERIOD_US))
            if old:
                self._write("cpu", "cpu.cfs_period_us", str(_PERIOD_US))
                self._write("cpu", "cpu.cfs_quota_us", str(-1 if quota is None else quota))
            else:
                self._write("cpu", "cpu.max", f"{'max' if quota is None else quota} {_PERIOD_US}")

    def _write(self, controller: str, name: str, value: str) -> None:
        (self._folders[controller] / name).write_text(value)

    def join(self, pid: int) -> None:
        """Move a process (with all its threads) into the group; what it starts later is born there."""
        for folder in self._distinct():
            (folder / "cgroup.procs").write_text(str(pid))

    def _most_memory(self) -> int:
        """What the groups above leave to this one, at most the machine's memory. Bytes."""
        most = 2 * half_of_memory()
        name = "memory.limit_in_bytes" if self._hierarchy.version == 1 else "memory.max"
        for folder in self._folders["memory"].parents:
            try:
                text = (folder / name).read_text().strip()
            except OSError:
                # Above the top of the hierarchy, or the top itself, which has no limit.
                continue
            if text.isdigit():
                most = min(most, int(text))
        return most

    def counters(self) -> Counters:
        """What has been counted so far; zeros for what this machine does not count."""
        if self._hierarchy.version == 2:
            memory, cpu = self._table("memory", "memory.events"), self._table("cpuacct", "cpu.stat")
            used = cpu.get("usage_usec")
            return Counters(
                memory.get("oom_kill", 0),
                memory.get("oom", 0),
                self._table("pids", "pids.events").get("max", 0),
                None if used is None else used / 1e6,
                self._used_much("memory.peak", "memory.max"),
            )
        usage = self._number("cpuacct", "cpuacct.usage")
        # `memory.failcnt` stays 0 on newer kernels.
        peak = self._number("memory", "memory.max_usage_in_bytes") or 0
        limit = self._number("memory", "memory.limit_in_bytes")
        return Counters(
            self._table("memory", "memory.oom_control").get("oom_kill", 0),
            # The peak may stop short of the limit by what one charge takes at once.
            int(limit is not None and peak + _CHARGE_BYTES >= limit),
            self._table("pids", "pids.events").get("max", 0),
            None if usage is None else usage / 1e9,
            limit is not None and 2 * peak >= limit,
        )

    def _used_much(self, peak_file: str, limit_file: str) -> bool:
        peak, limit = self._number("memory", peak_file), self._number("memory", limit_file)
        return peak is not None and limit is not None and 2 * peak >= limit

    def begin(self) -> Counters:
        """What has been counted so far, where a command begins: what `counters` says more at its end, it did."""
        if self._hierarchy.version == 1:
            if "memory" in self._folders:
                # The kernel keeps a peak here and no count: the peak begins anew, and nothing is counted yet.
                with contextlib.suppress(OSError):
                    os.pwrite(self._kept("memory", "memory.max_usage_in_bytes"), b"0", 0)
            return replace(self.counters(), limit_hits=0)
        return self.counters()

    def _counter(self, controller: str, name: str) -> list[str]:
        """The words of a file that counts, by a descriptor that is kept: it is read for every command.

        Not for `cgroup.procs`: on version 1 a descriptor that was read from before may get an old list.
        """
        if controller not in self._folders:
            return []
        try:
            return os.pread(self._kept(controller, name), _COUNTER_BYTES, 0).decode("ascii", "replace").split()
        except OSError:
            return []

    def _kept(self, controller: str, name: str) -> int:
        place = f"{self._folders[controller]}/{name}"
        if place not in self._counting:
            mode = os.O_RDWR if os.access(place, os.W_OK) else os.O_RDONLY
            self._counting[place] = os.open(place, mode | os.O_CLOEXEC)
        return self._counting[place]

    def _table(self, controller: str, name: str) -> dict[str, int]:
        words = self._counter(controller, name)
        return {key: int(value) for key, value in zip(words[::2], words[1::2], strict=False) if value.isdigit()}

    def _number(self, controller: str, name: str) -> int | None:
        words = self._counter(controller, name)
        return int(words[0]) if words else None

    def pids(self) -> list[int]:
        """The processes in the group now."""
        return members(self._distinct())

    def is_empty(self) -> bool:
        """Whether no process is left in it."""
        # Soon read, and also counts what is dead and was waited for by nobody, which then does not matter.
        return self._number("pids", "pids.current") == 0 or not self.pids()

    def kill(self) -> None:
        """Kill every process in the group: at once where the kernel can, else those there now."""
        kill_all(self._distinct())

    def remove(self) -> bool:
        """Remove the group; False while the kernel still counts something in it. Harmless when repeated."""
        while self._counting:
            os.close(self._counting.popitem()[1])
        if self._hierarchy.version == 1 and "memory" in self._folders:
            # Page cache that stays charged would keep the removed group alive inside the kernel.
            with contextlib.suppress(OSError):
                self._write("memory", "memory.force_empty", "0")
        removed = [_remove(folder) for folder in self._distinct()]
        return all(removed)


def _remove(folder: Path) -> bool:
    try:
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def members(folders: Iterable[Path]) -> list[int]:
    """The processes in the groups of these folders."""
    return sorted({int(pid) for folder in folders for pid in _words(folder / "cgroup.procs")} - {0})


def kill_all(folders: tuple[Path, ...]) -> None:
    """Kill every process in the groups of these folders."""
    for folder in folders:
        if (folder / "cgroup.kill").exists():
            with contextlib.suppress(OSError):
                (folder / "cgroup.kill").write_text("1")
    for pid in members(folders):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def usable(hierarchy: Hierarchy) -> bool:
    """Whether a group can be made and a process moved into it: tried with a process that waits for its input."""
    sweep(hierarchy)
    try:
        group = Group(hierarchy, Limits())
    except OSError:
        return False
    try:
        with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, env={}) as probe:
            try:
                group.join(probe.pid)
                return probe.pid in group.pids()
            finally:
                probe.kill()
                probe.wait()
    except OSError:
        return False
    finally:
        group.remove()


def sweep(hierarchy: Hierarchy) -> None:
    """Kill and remove the groups of supervisors that have died, of this pid namespace alone."""
    for parent in hierarchy.distinct:
        for folder in parent.glob(f"{_prefix()}*"):
            pid, start, _ = folder.name.removeprefix(_prefix()).split("-")
            if start_time(int(pid)) != int(start):
                kill_all((folder,))
                _remove(folder)


def _prefix() -> str:
    # A pid says nothing outside its namespace: a supervisor in another container would look dead from here.
    return f"{_PREFIX}{Path('/proc/self/ns/pid').stat().st_ino}-"


def half_of_memory() -> int:
    """Half of the machine's memory in bytes: what a sandbox may use that was given no limit."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2

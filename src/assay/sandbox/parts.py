"""What one sandbox has on the host while it lives: a uid, a control group, folders; made together, freed together."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from assay.sandbox.base import BaseUse, Limits, Mount, Overlay, ReadOnly, SandboxSpec, Socket, Writable
from assay.sandbox.cgroups import Group, Hierarchy
from assay.sandbox.launch import local_failure
from assay.sandbox.launcher import kernel
from assay.sandbox.layout import check_mounts
from assay.sandbox.machine import counts_by_namespace
from assay.sandbox.owning import claim, give_tree, merge_tree, own_copy, readable_by_all, tree_holds
from assay.sandbox.uids import lease_uid
from assay.verifiers.imports import real_path
from assay.workspaces import remove_tree, scratch_folder

_REMOVE_GROUP_S = 2.0
_log = logging.getLogger(__name__)
_QUIET = kernel.NOSUID | kernel.NODEV
_BYTES_PER_ENTRY = 4096
"""A file in memory takes a page at least, unless it is empty: an empty one counts as one, too."""


def _nowhere(path: Path, recursive: bool) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Tenant:
    """Who uses a sandbox's folders, and what bounds it."""

    uid: int | None
    """The kernel uid it runs under; None: the caller's own."""
    group: Group | None
    maps_root: Callable[[Path, bool], bool] = field(default=_nowhere)
    """Whether this folder or file (and what is mounted in it) can be mounted so that root's files are the sandbox's own."""


@dataclass(frozen=True, slots=True)
class Room:
    """What a sandbox has of its own on the host, whatever it is shown of the caller's."""

    folder: Path
    """Private scratch, passable by all."""
    writables: dict[str, Path]
    """The host folders of the `Writable` mounts, by their `at`."""
    sized: tuple[Path, ...]
    """Those of them that have a size of their own."""


@dataclass(frozen=True, slots=True)
class Parts:
    """The host's side of one sandbox."""

    tenant: Tenant
    room: Room
    base: Path | None
    """The root filesystem folder, resolved, and given to `uid` where it may be written."""
    sources: dict[str, Path]
    """The host path of each mount, by its `at`."""
    mapped: frozenset[str]
    """The `at` of each mount that must be mounted so that root's files are the sandbox's own."""
    free: Callable[[], None]
    """Frees all of it. Call once, when no process of the sandbox lives."""
    at_once: bool = False
    """Whether `free` does not block."""

    @property
    def for_one(self) -> bool:
        """See `Sandbox.for_one`: nothing was copied for it, and it leaves at once what others are to have."""
        shown = (source for at, source in self.sources.items() if at not in self.room.writables)
        return self.at_once and not any(source.is_relative_to(self.folder) for source in shown)

    @property
    def folder(self) -> Path:
        """Private scratch, passable by all."""
        return self.room.folder

    @property
    def uid(self) -> int | None:
        """The kernel uid it runs under; None: the caller's own."""
        return self.tenant.uid

    @property
    def group(self) -> Group | None:
        """Its control group."""
        return self.tenant.group


def fresh_tenant(spec: SandboxSpec, hierarchy: Hierarchy | None, stack: contextlib.ExitStack) -> Tenant:
    """A uid (where the caller is root) and a group (where they can be made) for one sandbox, freed with the stack."""
    uid = None
    if os.geteuid() == 0:
        lease = lease_uid()
        stack.callback(lease.release)
        uid = lease.uid
    group = None
    if hierarchy is not None:
        group = Group(hierarchy, spec.limits)
        stack.callback(remove_group, group)
    return Tenant(uid, group)


def make_parts(spec: SandboxSpec, take: Callable[[contextlib.ExitStack], Tenant]) -> Parts:
    """Make what a sandbox needs on the host, for the tenant that `take` makes; what is in its stack is freed last.

    Raises `ValueError` for a spec that cannot be, `FailureEvent` when this machine cannot give it now.
    """
    check_spec(spec)
    with contextlib.ExitStack() as stack:
        try:
            tenant = take(stack)
            room = make_room(spec.mounts, spec.limits, tenant, stack)
        except OSError as error:
            raise local_failure(error, "make a sandbox") from error
        return furnish(spec, tenant, room, stack)


def make_room(mounts: Iterable[Mount], limits: Limits, tenant: Tenant, stack: contextlib.ExitStack) -> Room:
    """Make the folders that no source is needed for; they go with the stack.

    Raises `OSError`, and `FailureEvent` without scratch space.
    """
    folder = stack.enter_context(scratch_folder("sandbox"))
    writables: dict[str, Path] = {}
    sized: list[Path] = []
    for number, mount in enumerate(mounts):
        if not isinstance(mount, Writable):
            continue
        place = folder / f"writable-{number}"
        if not mount.on_disk:
            place, has_size = _in_memory(place, limits, tenant, stack)
            sized += [place] if has_size else []
        place.mkdir(0o700)
        place.chmod(0o700)
        if tenant.uid is not None:
            os.chown(place, tenant.uid, tenant.uid)
        writables[mount.at] = place
    return Room(folder, writables, tuple(sized))


def furnish(spec: SandboxSpec, tenant: Tenant, room: Room, stack: contextlib.ExitStack) -> Parts:
    """Find what the spec's mounts show, copies made where they must be. Takes over the stack, unless it raises `FailureEvent`."""
    found: dict[str, tuple[Path, bool]] = {}
    try:
        base = _base(spec, tenant.uid, stack)
        for number, mount in enumerate(spec.mounts):
            if isinstance(mount, Writable):
                found[mount.at] = room.writables[mount.at], False
            else:
                found[mount.at] = _source(mount, room.folder / f"mount-{number}", tenant, stack)
    except OSError as error:
        raise local_failure(error, "make a sandbox") from error
    sources = {at: source for at, (source, _) in found.items()}
    mapped = frozenset(at for at, (_, is_mapped) in found.items() if is_mapped)
    return Parts(tenant, room, base, sources, mapped, stack.pop_all().close)


def is_full(writable: Path) -> bool:
    """Whether nothing more can be written to a `Writable` with a size of its own: no byte, or no further name."""
    there = os.statvfs(writable)
    return there.f_bavail == 0 or there.f_favail == 0


def own_process_limit(limits: Limits, parts: Parts) -> int | None:
    """RLIMIT_NPROC for pid 1 where nothing else counts: an ordinary user's counts by user namespace, so this sandbox."""
    if limits.processes is None or parts.uid is not None or not counts_by_namespace():
        return None
    if parts.group is not None and parts.group.counts_processes:
        return None
    return limits.processes + 1


def check_spec(spec: SandboxSpec) -> None:
    """Raise `ValueError` for a spec that cannot be, or a base or a mount's source that is not there or of another type."""
    check_mounts(spec.mounts)
    if spec.base is not None and not spec.base.is_dir():
        raise ValueError(f"base {str(spec.base)!r} is not a folder")
    if spec.base is None and spec.base_use is not BaseUse.READ_ONLY:
        raise ValueError("the host's own files are no base to write to: give a copy of a root filesystem")
    for mount in spec.mounts:
        if isinstance(mount, Overlay) and not mount.lower.is_dir():
            raise ValueError(f"overlay at {mount.at!r}: {str(mount.lower)!r} is not a folder")
        if isinstance(mount, ReadOnly) and not (mount.source.is_dir() or mount.source.is_file()):
            raise ValueError(f"mount at {mount.at!r}: {str(mount.source)!r} is neither a folder nor a regular file")
        if isinstance(mount, Socket) and not mount.source.is_socket():
            raise ValueError(f"mount at {mount.at!r}: {str(mount.source)!r} is not a socket")


def _base(spec: SandboxSpec, uid: int | None, stack: contextlib.ExitStack) -> Path | None:
    if spec.base is None:
        return None
    base = spec.base.resolve()
    if spec.base_use is not BaseUse.READ_ONLY:
        held = claim(base)
        if held is None:
            raise ValueError(f"base {str(base)!r} is in use by another sandbox; give each its own copy")
        stack.callback(os.close, held)
        if uid is not None:
            give_tree(base, uid)
    return base


def _in_memory(place: Path, limits: Limits, tenant: Tenant, stack: contextlib.ExitStack) -> tuple[Path, bool]:
    """Where to make a folder in memory, and whether that has a size of its own: whoever fills it takes nobody else's room.

    An ordinary user may mount nothing. Then in memory only where the group's limit bounds it: else a flood of logs would take
    the machine's memory.
    """
    if os.geteuid() == 0:
        place.mkdir(0o711)
        place.chmod(0o711)
        entries = max(1024, limits.tmp_bytes // _BYTES_PER_ENTRY)
        try:
            kernel.mount("tmpfs", str(place), _QUIET, f"size={limits.tmp_bytes},nr_inodes={entries},mode=711")
        except PermissionError:
            # Root in a container that was given no right to mount.
            place = place.with_name(f"{place.name}-unsized")
        else:
            stack.callback(kernel.detach, str(place))
            # Below its root: beside it there is room to copy what is put into it, on the same file system.
            return place / "folder", True
    if tenant.group is not None and tenant.group.limits_memory:
        return stack.enter_context(scratch_folder("sandbox", memory=True)) / place.name, False
    return place, False


def _source(
    mount: ReadOnly | Overlay | Socket, place: Path, tenant: Tenant, stack: contextlib.ExitStack
) -> tuple[Path, bool]:
    """The host path to mount, and whether root's files in it are to be the sandbox's own."""
    uid = tenant.uid
    match mount:
        case Socket():
            if uid is not None:
                os.chown(mount.source, uid, uid)
            return Path(real_path(mount.source)), False
        case ReadOnly():
            source = Path(real_path(mount.source))
            if uid is None or mount.open or tree_holds(source, readable_by_all):
                return source, False
            if tenant.maps_root(source, True) and tree_holds(
                source, lambda status: _of_root(status) or readable_by_all(status)
            ):
                return source, True
            own_copy(source, place, uid)
            return place, False
        case Overlay():
            lower = Path(real_path(mount.lower))
            if uid is None:
                # In the sandbox's user namespace nobody else's file can be copied up.
                if mount.disposable or mount.own or tree_holds(lower, lambda status: status.st_uid == os.geteuid()):
                    return lower, False
            elif tenant.maps_root(lower, False) and (mount.own or tree_holds(lower, _of_root)):
                return lower, True
            elif mount.disposable and (held := claim(lower)) is not None:
                stack.callback(os.close, held)
                # A read-only file system, or one that knows no owners.
                with contextlib.suppress(OSError):
                    give_tree(lower, uid)
                    return lower, False
            own_copy(lower, place, uid)
            return place, False


def _of_root(status: os.stat_result) -> bool:
    return status.st_uid == 0 and status.st_gid == 0


def put_tree(source: Path, folder: Path, staging: Path, uid: int | None) -> None:
    """Copy what is in `source` into `folder`, whose own contents are untrusted: folders are merged, all else is replaced.

    `staging` is a path on the same file system as `folder` where nothing is. Raises `OSError`.
    """
    try:
        own_copy(source, staging, uid)
        merge_tree(staging, folder)
    finally:
        remove_tree(staging)


def remove_group(group: Group) -> None:
    """Remove the group of what is dead. One that the kernel still counts something in after a while is left, and logged.

    Nothing lives in it; whoever is done with a sandbox must not lose what was done in it.
    """
    deadline = time.monotonic() + _REMOVE_GROUP_S
    while not group.remove():
        if time.monotonic() > deadline:
            _log.warning("the control group of a dead sandbox could not be removed")
            return
        time.sleep(0.001)

"""What a sandbox sees, as an ordered list of steps. Pure planning: looks at the base, changes nothing.

The root of a sandbox is an empty tmpfs; every top-level entry of the base is placed on it read-only, so that places such
as `/tests` and `/app` can be made whatever the base holds. A mount point that a read-only folder lacks (`/usr/src/app` in
the host's `/usr`) is provided by a skeleton folder laid *under* it in a read-only overlay. A base that may be
written is the root itself, and mount points are made in it.
"""

from __future__ import annotations

import functools
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from assay.sandbox.base import BaseUse, Mount, Overlay, ReadOnly, SandboxSpec, Socket, Writable

_HOST_TREES = ("bin", "lib", "lib32", "lib64", "libx32", "sbin", "usr")
HOST_NAMES = frozenset((*_HOST_TREES, "etc", "dev", "proc", "sys"))
"""What the root of a sandbox on the host's own base has that is not a folder of its own."""
_HOST_EMPTY = ("home", "opt", "root", "run", "srv", "var")
_NOT_FROM_BASE = ("dev", "proc", "sys", "tmp")
_OWN_MOUNTS = ("dev", "proc", "sys")
DEVICES = ("null", "zero", "full", "random", "urandom")
"""The host's devices that a sandbox has."""
DEVICE_LINKS = {
    "fd": "/proc/self/fd",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
}
"""What else is in `/dev`, and where it points."""
_LINKS_MAX = 40
_STICKY = 0o1777


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that is mounted or made, in order. `what` is the name of bubblewrap's option without its dashes."""

    what: str
    at: str
    sources: tuple[Path, ...] = ()
    """Host paths, the lowest layer first."""
    text: str = ""
    """A symbolic link's target."""
    size: int | None = None
    perms: int | None = None
    of: str = ""
    """The mount of the spec's that it is, by the `at` that the spec has; empty for what every sandbox has."""


@dataclass(slots=True)
class _Carrier:
    """A read-only host folder or file that is seen somewhere and may have to carry mount points that it lacks."""

    source: Path
    missing: dict[str, bool] = field(default_factory=dict)
    """Paths within it, and whether a file (not a folder) is wanted there."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The steps of a sandbox, and the skeleton folders that they need."""

    steps: tuple[Step, ...]
    skeletons: Mapping[Path, Mapping[str, bool]]
    """For each skeleton folder: paths to make within it, and whether a file (not a folder) is wanted there."""


def check_mounts(mounts: tuple[Mount, ...]) -> None:
    """Raise `ValueError` for mounts that no machine could make: a bad `at`, two at one place, one inside a `Writable`."""
    _check_places(tuple((mount.at, isinstance(mount, Writable)) for mount in mounts))


@functools.lru_cache(maxsize=256)
def _check_places(places: tuple[tuple[str, bool], ...]) -> None:
    seen: set[str] = set()
    for at, _ in places:
        parts = PurePosixPath(at).parts
        if not at.startswith("/") or at != os.path.normpath(at) or at.startswith("//"):
            raise ValueError(f"mount at {at!r}: give an absolute path without '.', '..' or a slash at its end")
        if "\0" in at or len(parts) < 2 or parts[1] in _OWN_MOUNTS:
            raise ValueError(f"mount at {at!r}: the sandbox keeps /, /dev, /proc and /sys for itself")
        if at in seen:
            raise ValueError(f"two mounts at {at!r}")
        seen.add(at)
    writables = {at for at, is_writable in places if is_writable}
    for at in seen:
        for parent in writables & set(map(str, PurePosixPath(at).parents)):
            raise ValueError(
                f"mount at {at!r}: it lies inside the writable {parent!r}, whose contents could redirect it"
            )


def plan_sandbox(spec: SandboxSpec, sources: Mapping[str, Path], etc: Path, skeletons: Path) -> Plan:
    """The steps for a spec that `check_mounts` let pass.

    `sources` is the host path of each mount by its `at`, `etc` the generated `/etc`, `skeletons` where skeleton folders
    may be made. Raises `ValueError` where a mount and the base cannot both be.
    """
    steps: list[Step] = []
    carriers: dict[str, _Carrier] = {}
    links: dict[str, str] = {}
    _place_base(spec, etc, steps, carriers, links)
    tmp = spec.limits.tmp_bytes
    steps.append(Step("proc", "/proc"))
    steps += _devices(tmp)
    steps.append(Step("tmpfs", "/tmp", size=tmp, perms=_STICKY))  # noqa: S108 - the sandbox's own
    if _resolve("/var/tmp", carriers, links) == "/var/tmp":  # noqa: S108 - the sandbox's own
        _want(_Spot("/var/tmp", False), carriers, {})  # noqa: S108 - the sandbox's own
        steps.append(Step("tmpfs", "/var/tmp", size=tmp, perms=_STICKY))  # noqa: S108 - the sandbox's own
    mounts = list(spec.mounts)
    all_sources = dict(sources)
    if spec.network and spec.base is not None:
        for name in ("hosts", "resolv.conf"):
            if not any(mount.at == f"/etc/{name}" for mount in mounts):
                mounts.append(ReadOnly(etc / name, f"/etc/{name}"))
                all_sources[f"/etc/{name}"] = etc / name
    placed: dict[str, Mount] = {}
    for mount in sorted(mounts, key=lambda mount: len(PurePosixPath(mount.at).parts)):
        source = all_sources[mount.at]
        at = _resolve(mount.at, carriers, links)
        if at in placed:
            raise ValueError(f"mounts at {mount.at!r} and elsewhere are one place in this base: {at!r}")
        if len(PurePosixPath(at).parts) < 2 or PurePosixPath(at).parts[1] in _OWN_MOUNTS:
            raise ValueError(
                f"mount at {mount.at!r}: the base redirects it to {at!r}, which the sandbox keeps for itself"
            )
        _want(_Spot(at, not source.is_dir()), carriers, placed)
        steps += _parents(at, steps, carriers, placed)
        placed[at] = mount
        steps.append(_mount_step(mount, at, source))
        if isinstance(mount, ReadOnly):
            carriers[at] = _Carrier(source)
        else:
            carriers.pop(at, None)
    steps.append(Step("remount-ro", "/dev"))
    if spec.base_use is BaseUse.READ_ONLY:
        steps.append(Step("remount-ro", "/"))
    return _with_skeletons(steps, carriers, skeletons)


def _place_base(
    spec: SandboxSpec, etc: Path, steps: list[Step], carriers: dict[str, _Carrier], links: dict[str, str]
) -> None:
    if spec.base is not None and spec.base_use is not BaseUse.READ_ONLY:
        carriers["/"] = _Carrier(spec.base)
        steps.append(Step("tmp-overlay" if spec.base_use is BaseUse.OVERLAID else "bind", "/", (spec.base,)))
        return
    if spec.base is None:
        entries = [Path("/", name) for name in _HOST_TREES if os.path.lexists(f"/{name}")]
        steps += [Step("dir", f"/{name}") for name in _HOST_EMPTY]
        steps.append(Step("ro-bind", "/etc", (etc,)))
        carriers["/etc"] = _Carrier(etc)
    else:
        entries = sorted(entry for entry in spec.base.iterdir() if entry.name not in _NOT_FROM_BASE)
    for entry in entries:
        at = f"/{entry.name}"
        kind = entry.lstat().st_mode
        if stat.S_ISLNK(kind):
            links[at] = str(entry.readlink())
            steps.append(Step("symlink", at, text=links[at]))
        elif stat.S_ISDIR(kind) or stat.S_ISREG(kind):
            carriers[at] = _Carrier(entry)
            steps.append(Step("ro-bind", at, (entry,)))


def _devices(tmp_bytes: int) -> list[Step]:
    return [
        Step("tmpfs", "/dev", size=1 << 16, perms=0o755),
        *(Step("dev-bind", f"/dev/{name}", (Path("/dev", name),)) for name in DEVICES),
        *(Step("symlink", f"/dev/{name}", text=target) for name, target in DEVICE_LINKS.items()),
        Step("tmpfs", "/dev/shm", size=tmp_bytes, perms=_STICKY),  # noqa: S108 - the sandbox's own
    ]


def _parents(at: str, steps: list[Step], carriers: Mapping[str, _Carrier], placed: Mapping[str, Mount]) -> list[Step]:
    """The folders above a mount point on the root's own tmpfs, which anybody may pass."""
    there = {*carriers, *placed, *(step.at for step in steps)}
    above = [str(parent) for parent in reversed(PurePosixPath(at).parents[:-1])]
    if above and any(parent in carriers or parent in placed for parent in above):
        return []
    return [Step("dir", parent, perms=0o755) for parent in above if parent not in there]


def _mount_step(mount: Mount, at: str, source: Path) -> Step:
    match mount:
        case ReadOnly() | Socket():
            # A read-only mount keeps nobody from connecting, only from changing what is at the place.
            return Step("ro-bind", at, (source,), of=mount.at)
        case Overlay():
            return Step("tmp-overlay", at, (source,), of=mount.at)
        case Writable():
            return Step("bind", at, (source,), of=mount.at)


@dataclass(frozen=True, slots=True)
class _Spot:
    at: str
    is_file: bool


def _carrier_of(at: str, carriers: Mapping[str, _Carrier]) -> tuple[str, str] | None:
    """The innermost read-only carrier that `at` lies in, and the path within it."""
    for parent in map(str, PurePosixPath(at).parents):
        if parent in carriers:
            return parent, os.path.relpath(at, parent)
    return None


def _want(spot: _Spot, carriers: Mapping[str, _Carrier], placed: Mapping[str, Mount]) -> None:
    """Note a mount point that its read-only carrier lacks; refuse one of the wrong type, or one a workspace redirects."""
    for parent in map(str, PurePosixPath(spot.at).parents):
        mount = placed.get(parent)
        if isinstance(mount, Overlay):
            _refuse_links(mount, os.path.relpath(spot.at, parent))
            return
        if parent in carriers:
            break
    found = _carrier_of(spot.at, carriers)
    if found is None:
        return
    carrier = carriers[found[0]]
    path = carrier.source / found[1]
    if os.path.lexists(path):
        if path.is_dir() == spot.is_file:
            raise ValueError(
                f"mount at {spot.at!r}: a {'folder' if spot.is_file else 'file'} is in its place in the base"
            )
    elif any(os.path.lexists(parent) and not parent.is_dir() for parent in _between(path, carrier.source)):
        raise ValueError(f"mount at {spot.at!r}: a file is on the way to it in the base")
    else:
        carrier.missing[found[1]] = spot.is_file


def _between(path: Path, top: Path) -> list[Path]:
    return [top, *(parent for parent in path.parents if top in parent.parents)]


def _refuse_links(overlay: Overlay, within: str) -> None:
    path = overlay.lower
    for part in PurePosixPath(within).parts:
        path = path / part
        if path.is_symlink():
            raise ValueError(
                f"mount inside the overlay at {overlay.at!r}: {within!r} passes a symbolic link of the lower folder"
            )


def _resolve(at: str, carriers: Mapping[str, _Carrier], links: Mapping[str, str]) -> str:
    """`at` with the base's symbolic links followed inside the base, never on the host."""
    todo = list(reversed(PurePosixPath(at).parts[1:]))
    done: list[str] = []
    followed = 0
    while todo:
        part = todo.pop()
        if part == "..":
            del done[-1:]
            continue
        done.append(part)
        target = _link_at("/" + "/".join(done), carriers, links)
        if target is None:
            continue
        followed += 1
        if followed > _LINKS_MAX:
            raise ValueError(f"mount at {at!r}: the base has a loop of symbolic links there")
        done = [] if target.startswith("/") else done[:-1]
        todo += [part for part in reversed(PurePosixPath(target).parts) if part != "/"]
    return "/" + "/".join(done)


def _link_at(at: str, carriers: Mapping[str, _Carrier], links: Mapping[str, str]) -> str | None:
    if at in links:
        return links[at]
    found = _carrier_of(at, carriers)
    if found is None or at in carriers:
        return None
    path = carriers[found[0]].source / found[1]
    return str(path.readlink()) if path.is_symlink() else None


def _with_skeletons(steps: list[Step], carriers: Mapping[str, _Carrier], folder: Path) -> Plan:
    skeletons: dict[Path, Mapping[str, bool]] = {}
    planned: list[Step] = []
    for step in steps:
        carrier = carriers.get(step.at)
        if step.what == "ro-bind" and carrier is not None and carrier.missing:
            skeleton = folder / str(len(skeletons))
            skeletons[skeleton] = carrier.missing
            planned.append(Step("ro-overlay", step.at, (skeleton, carrier.source)))
        else:
            planned.append(step)
    return Plan(tuple(planned), skeletons)


def make_skeletons(plan: Plan) -> None:
    """Make the skeleton folders of a plan."""
    for skeleton, wanted in plan.skeletons.items():
        skeleton.mkdir(parents=True)
        for within, is_file in wanted.items():
            path = skeleton / within
            path.parent.mkdir(parents=True, exist_ok=True)
            if is_file:
                path.touch()
            else:
                path.mkdir(exist_ok=True)
        for path in (skeleton, *skeleton.rglob("*")):
            # Whatever the supervisor's umask is.
            path.chmod(0o755 if path.is_dir() else 0o644)


def bubblewrap_options(steps: tuple[Step, ...], seen_at: Mapping[Path, Path]) -> list[str]:
    """The options that make the steps; `seen_at` says where a source lies that bubblewrap cannot reach at its own place."""
    options: list[str] = []
    for step in steps:
        sources = [str(seen_at.get(source, source)) for source in step.sources]
        if step.perms is not None:
            options += ["--perms", f"{step.perms:o}"]
        if step.size is not None:
            options += ["--size", str(step.size)]
        match step.what:
            case "tmp-overlay" | "ro-overlay":
                for source in sources:
                    options += ["--overlay-src", source]
                options += [f"--{step.what}", step.at]
            case "symlink":
                options += ["--symlink", step.text, step.at]
            case _:
                options += [f"--{step.what}", *sources, step.at]
    return options

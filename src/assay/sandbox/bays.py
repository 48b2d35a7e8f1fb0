"""What a slot makes ready before anybody asks: room on the host, all of a root but what a request brings, a fork in it.

Verifications of one kind need sandboxes of one shape: the same places, other sources. A bay is good for one sandbox.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from assay.sandbox.base import BaseUse, Limits, Mount, Overlay, ReadOnly, SandboxSpec, Socket, Writable
from assay.sandbox.blueprints import Blueprint, frame_of, own_steps, told
from assay.sandbox.launch import SetupFailed, local_failure
from assay.sandbox.layout import HOST_NAMES, Step
from assay.sandbox.parts import Parts, furnish, make_room
from assay.sandbox.slotrun import build, prepare
from assay.sandbox.slots import Bay, Slot

_FOLDER, _FILE = Path("/"), Path("/dev/null")
"""Stand for what is not known yet: only whether it is a folder counts."""


class Shape(NamedTuple):
    """What sandboxes have in common that differ in what they are shown alone."""

    network: bool
    limits: Limits
    mounts: tuple[Mount, ...]
    """With stand-ins for what they show."""


def shape_of(spec: SandboxSpec) -> Shape | None:
    """The shape of a sandbox for which a bay can be made ready; None: it has places that depend on what is shown there.

    For a spec that `check_spec` let pass. Only root's supervisor makes mounts itself, so only root can add some later.
    """
    if spec.base is not None or spec.base_use is not BaseUse.READ_ONLY or os.geteuid() != 0:
        return None
    mounts = tuple(_stand_in(mount) for mount in spec.mounts)
    insides = _insides(mounts)
    if insides is None or not all(_shows(spec.mounts[above], spec.mounts[below]) for above, below in insides):
        return None
    return Shape(spec.network, spec.limits, mounts)


@functools.lru_cache(maxsize=256)
def _insides(mounts: tuple[Mount, ...]) -> tuple[tuple[int, int], ...] | None:
    """Which of the mounts lies inside which; None where one is in a part of the base."""
    if any(PurePosixPath(mount.at).parts[1] in HOST_NAMES for mount in mounts):
        return None
    place = {mount.at: number for number, mount in enumerate(mounts)}
    above = ((str(parent), number) for number, mount in enumerate(mounts) for parent in PurePosixPath(mount.at).parents)
    return tuple((place[parent], number) for parent, number in above if parent in place)


def is_quick(spec: SandboxSpec) -> bool:
    """Whether what the mounts show need neither be looked through nor copied."""
    return all(
        isinstance(mount, Writable | Socket) or (mount.open if isinstance(mount, ReadOnly) else mount.own)
        for mount in spec.mounts
    )


def _shows(parent: Mount, mount: Mount) -> bool:
    """Whether a mount's place is there, just so, in what is shown above it: nothing has to be made for it, no link leads away."""
    if not isinstance(parent, ReadOnly) or isinstance(mount, Writable):
        return False
    within = os.path.relpath(mount.at, parent.at)
    place = os.path.realpath(parent.source) + "/" + within
    return os.path.realpath(place) == place and Path(place).exists() and Path(place).is_dir() == _is_folder(mount)


def _stand_in(mount: Mount) -> Mount:
    match mount:
        case ReadOnly():
            return ReadOnly(_FOLDER if mount.source.is_dir() else _FILE, mount.at)
        case Overlay():
            return Overlay(_FOLDER, mount.at)
        case Socket():
            return Socket(_FILE, mount.at)
        case Writable():
            return mount


def _is_folder(mount: Mount) -> bool:
    return not isinstance(mount, Socket) and (not isinstance(mount, ReadOnly) or mount.source.is_dir())


def lay_out(slot: Slot, shape: Shape) -> None:
    """Make the slot's bay. Blocks, not for long. Raises `FailureEvent` when this machine cannot."""
    begun, _ = _steps(shape)
    with contextlib.ExitStack() as stack:
        try:
            tenant = slot.tenant(shape.limits)
            room = make_room(shape.mounts, shape.limits, tenant, stack)
            own = [replace(step, sources=(room.writables[step.of],)) if step.of else step for step in begun]
            stage = told(own, frozenset(), True)
            layered = any(isinstance(mount, Overlay) for mount in shape.mounts)
            frame = frame_of(shape.limits, tenant, layered)
            if slot.fork is not None:
                # What cannot be mounted is said when the command comes.
                with contextlib.suppress(SetupFailed):
                    build(slot, stage, frame)
        except OSError as error:
            raise local_failure(error, "make a sandbox") from error
        slot.bay = Bay(shape, tenant, room, stage, frame, stack.pop_all())


def move_in(
    slot: Slot, spec: SandboxSpec, shape: Shape, leave: Callable[[Slot, Shape, contextlib.ExitStack], None]
) -> tuple[Parts, Blueprint]:
    """The parts and the blueprint of a sandbox in the slot's bay, which is used up. `leave` is called at its end.

    Raises `FailureEvent`, and `ValueError` for a spec that cannot be; the slot is as it was then, without a bay.
    """
    bay, slot.bay = slot.bay, None
    assert bay is not None  # noqa: S101 - whoever calls has just laid it out, or taken the slot for it
    with bay.stack as stack:
        parts = furnish(spec, bay.tenant, bay.room, stack)
        kept = contextlib.ExitStack()
        kept.callback(parts.free)
    rest = [replace(step, sources=(parts.sources[step.of],)) for step in _steps(shape)[1]]
    blueprint = Blueprint(bay.begun, told(rest, parts.mapped, True), bay.frame)
    if slot.fork is not None:
        # While the caller gets its command ready. What cannot be mounted is said when the command comes.
        with contextlib.suppress(SetupFailed, OSError):
            prepare(slot, blueprint)
    return replace(parts, free=lambda: leave(slot, shape, kept), at_once=True), blueprint


@functools.lru_cache(maxsize=64)
def _steps(shape: Shape) -> tuple[tuple[Step, ...], tuple[Step, ...]]:
    """The steps before a request, and those that show what it brings."""
    places = {mount.at for mount in shape.mounts}
    inside = {at for at in places if any(str(above) in places for above in PurePosixPath(at).parents)}
    outer = tuple(mount for mount in shape.mounts if mount.at not in inside)
    sources = {mount.at: _FOLDER if _is_folder(mount) else _FILE for mount in outer}
    steps = own_steps(SandboxSpec(mounts=outer, network=shape.network, limits=shape.limits), sources)
    writable = {mount.at for mount in shape.mounts if isinstance(mount, Writable)}
    begun = tuple(step for step in steps if not step.of or step.of in writable)
    rest = [step for step in steps if step.of and step.of not in writable]
    rest += [Step("ro-bind", at, of=at) for at in sorted(inside, key=lambda at: len(PurePosixPath(at).parts))]
    return begun, tuple(rest)

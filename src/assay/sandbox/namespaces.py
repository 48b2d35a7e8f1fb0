"""Sandboxes made by our own launcher from the kernel's namespaces (`--sandbox namespaces`).

A slot (`slots`) has a server that forks once per command; the fork becomes the sandbox (`launcher/`). What is mounted comes
to it as descriptors that root's supervisor made, so the server of root's sandboxes, nobody to the host, sees none of the
host's files; an ordinary user's server makes the mounts itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from assay.sandbox.base import Capability, Overlay, SandboxSpec
from assay.sandbox.bays import Shape, is_quick, lay_out, move_in, shape_of
from assay.sandbox.blueprints import Blueprint, base_of, whole_blueprint
from assay.sandbox.hosted import Command, HostedSandbox
from assay.sandbox.hostetc import SANDBOX_UID, shared_etc
from assay.sandbox.interpreter import Interpreter
from assay.sandbox.launch import SetupFailed, Stdio, local_failure
from assay.sandbox.layout import HOST_NAMES, make_skeletons, plan_sandbox
from assay.sandbox.machine import isolating_claims
from assay.sandbox.parts import check_spec, furnish, make_room
from assay.sandbox.slotpool import POOL, SlotKind
from assay.sandbox.slotrun import SlotRun, prepare
from assay.sandbox.slots import Slot
from assay.sandbox.trial import TriedProvider


class NamespacesProvider(TriedProvider):
    """Makes sandboxes with the launcher, on the host's own `/usr` or on a root folder, which may be the root itself."""

    name = "namespaces"
    isolated = True

    async def create(self, spec: SandboxSpec) -> HostedSandbox:
        """See `Provider.create`. Where all is ready no thread is asked for it."""
        return _at_once(spec) or await super().create(spec)

    def make(self, spec: SandboxSpec) -> HostedSandbox:
        """See `TriedProvider.make`."""
        return _make(spec)

    def claims(self) -> frozenset[Capability]:
        """See `TriedProvider.claims`."""
        return isolating_claims()


def close_idle() -> None:
    """End the slot servers that no sandbox uses. They end with the process by themselves; the next sandbox starts one."""
    POOL.close_idle()


def _make(spec: SandboxSpec) -> HostedSandbox:
    check_spec(spec)
    shape = shape_of(spec)
    slot = POOL.take(_kind_of(spec), shape)
    try:
        if shape is not None:
            if slot.bay is None:
                lay_out(slot, shape)
            return _moved_in(slot, spec, shape)
        return _made(slot, spec)
    except BaseException:
        POOL.give_back(slot)
        raise


def _at_once(spec: SandboxSpec) -> HostedSandbox | None:
    """A sandbox in a bay that is ready, where nothing has to be looked through or copied for it."""
    check_spec(spec)
    shape = shape_of(spec) if is_quick(spec) else None
    slot = POOL.take_ready(_kind_of(spec), shape) if shape is not None else None
    if slot is None or shape is None:
        return None
    try:
        if all(slot.maps_root(mount.lower, False) for mount in spec.mounts if isinstance(mount, Overlay)):
            return _moved_in(slot, spec, shape)
    except BaseException:
        POOL.give_back(slot)
        raise
    POOL.give_back(slot)
    return None


def _moved_in(slot: Slot, spec: SandboxSpec, shape: Shape) -> HostedSandbox:
    parts, blueprint = move_in(slot, spec, shape, POOL.leave)
    return HostedSandbox(spec, parts, _Maker(slot, blueprint, spec.again))


def _made(slot: Slot, spec: SandboxSpec) -> HostedSandbox:
    """A sandbox whose steps are all told at once."""
    with contextlib.ExitStack() as stack:
        try:
            tenant = slot.tenant(spec.limits)
            room = make_room(spec.mounts, spec.limits, tenant, stack)
            parts = furnish(spec, tenant, room, stack)
            stack.callback(parts.free)
            on_base = replace(spec, base=parts.base)
            plan = plan_sandbox(on_base, parts.sources, shared_etc(spec.network), parts.folder / "skeletons")
            make_skeletons(plan)
        except OSError as error:
            raise local_failure(error, "make a sandbox") from error
        blueprint = whole_blueprint(spec, plan, parts.mapped, tenant, slot.by_root)
        kept = stack.pop_all()
    if slot.fork is not None:
        # While the caller gets its command ready. What cannot be mounted is said when the command comes.
        with contextlib.suppress(SetupFailed, OSError):
            prepare(slot, blueprint)
    return HostedSandbox(spec, replace(parts, free=_freeing(kept, slot)), _Maker(slot, blueprint, spec.again))


def _freeing(parts: contextlib.ExitStack, slot: Slot) -> Callable[[], None]:
    def free() -> None:
        try:
            parts.close()
        finally:
            POOL.give_back(slot)

    return free


def _kind_of(spec: SandboxSpec) -> SlotKind:
    user = SANDBOX_UID if spec.user is None else spec.user
    interpreter = None
    # The host's own alone: what an image's interpreter runs at its start would run with the slot server's rights.
    if spec.interpreter is not None and spec.base is None and user != 0 and not (spec.scripts and _hides_scripts(spec)):
        interpreter = Interpreter(spec.interpreter, spec.scripts)
    return SlotKind(spec.network, user, base_of(spec), interpreter)


def _hides_scripts(spec: SandboxSpec) -> bool:
    """Whether a submission is to find no interpreter there.

    An ordinary user's server is told paths of the host, which may still be in the memory that a fork of it can read. What is
    mounted in a part of the base may be other modules than those of the server's.
    """
    return os.geteuid() != 0 or any(PurePosixPath(mount.at).parts[1] in HOST_NAMES for mount in spec.mounts)


async def get_ready(spec: SandboxSpec) -> None:
    """Have a server that is the spec's interpreter, so that the next such sandbox finds it. Raises `FailureEvent`.

    Without this the third such sandbox does, or a later one: it is started beside the second.
    """
    kind = _kind_of(spec)
    if kind.interpreter is not None:
        await asyncio.to_thread(POOL.get_ready, kind)


@dataclass(slots=True)
class _Maker:
    """Starts the commands of one sandbox in its slot."""

    slot: Slot
    blueprint: Blueprint
    again: bool
    """See `SandboxSpec.again`."""
    commands: int = 0

    def refusal(self, command: Command) -> str | None:
        """See `Maker.refusal`: there is nothing it could not try."""
        return None

    def start(self, command: Command, stdio: Stdio) -> SlotRun:
        """See `Maker.start`."""
        self.commands += 1
        # Who ran two commands runs a third; most run one.
        ahead = self.again or self.commands > 1
        return SlotRun(self.slot, self.blueprint, command, stdio, ahead=ahead, meanwhile=POOL.meanwhile)

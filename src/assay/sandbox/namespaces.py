"""Sandboxes made by our own launcher from the kernel's namespaces (`--sandbox namespaces`).

A slot (`slots`) has a server that forks once per command; the fork becomes the sandbox (`launcher/`). What is mounted comes
to it as descriptors that root's supervisor made, so the server of root's sandboxes, nobody to the host, sees none of the
host's files; an ordinary user's server makes the mounts itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from assay.sandbox.base import Capability, Limits, SandboxSpec
from assay.sandbox.cgroups import half_of_memory
from assay.sandbox.hosted import Command, HostedSandbox
from assay.sandbox.hostetc import SANDBOX_UID, shared_etc
from assay.sandbox.interpreter import Interpreter
from assay.sandbox.launch import SetupFailed, Stdio, local_failure
from assay.sandbox.launcher import kernel
from assay.sandbox.launcher.wire import as_text
from assay.sandbox.layout import Step, make_skeletons, plan_sandbox
from assay.sandbox.machine import counts_by_namespace, isolating_claims
from assay.sandbox.parts import Parts, Tenant, make_parts
from assay.sandbox.runtime import descriptors
from assay.sandbox.slotpool import POOL
from assay.sandbox.slotrun import Blueprint, SlotRun, prepare
from assay.sandbox.slots import Slot
from assay.sandbox.sources import NOTHING, Laid, Source
from assay.sandbox.trial import TriedProvider

_QUIET = kernel.NOSUID | kernel.NODEV
_READ_ONLY = _QUIET | kernel.RDONLY
_OTHERS = 4
"""Processes under a sandbox's uid that are not its command's: the slot's keeper and server (an ordinary user's), its init,
and one to spare."""


class NamespacesProvider(TriedProvider):
    """Makes sandboxes with the launcher, on the host's own `/usr` or on a root folder, which may be the root itself."""

    name = "namespaces"
    isolated = True

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
    taken: list[Slot] = []

    def take(stack: contextlib.ExitStack) -> Tenant:
        slot = _take(spec)
        taken.append(slot)
        stack.callback(POOL.give_back, slot)
        if slot.group is not None:
            slot.group.limit(spec.limits)
        return slot.tenant()

    parts = make_parts(spec, take)
    (slot,) = taken
    try:
        on_base = replace(spec, base=parts.base)
        plan = plan_sandbox(on_base, parts.sources, shared_etc(spec.network), parts.folder / "skeletons")
        make_skeletons(plan)
    except OSError as error:
        parts.free()
        raise local_failure(error, "make a sandbox") from error
    except BaseException:
        parts.free()
        raise
    laid = _host(spec.network, shared_etc(spec.network))[1] if spec.base is None else frozenset()
    steps, sources = _told(tuple(step for step in plan.steps if step not in laid), parts.mapped, slot.by_root)
    space = spec.limits.memory_bytes if spec.limits.memory_bytes is not None else half_of_memory()
    blueprint = Blueprint(steps, sources, _rlimits(spec.limits, parts), space)
    if slot.control is not None:
        # While the caller gets its command ready. What cannot be mounted is said when the command comes.
        with contextlib.suppress(SetupFailed, OSError):
            prepare(slot, blueprint, slot.control)
    return HostedSandbox(spec, parts, _Maker(slot, blueprint))


def _take(spec: SandboxSpec) -> Slot:
    user = SANDBOX_UID if spec.user is None else spec.user
    return POOL.take(spec.network, user, _base_of(spec), _interpreter(spec, user))


async def get_ready(spec: SandboxSpec) -> None:
    """Have a server that is the spec's interpreter, so that the next such sandbox finds it. Raises `FailureEvent`.

    Without this the third such sandbox does, or a later one: it is started beside the second.
    """
    user = SANDBOX_UID if spec.user is None else spec.user
    interpreter = _interpreter(spec, user)
    if interpreter is not None:
        await asyncio.to_thread(POOL.get_ready, spec.network, user, _base_of(spec), interpreter)


def _interpreter(spec: SandboxSpec, user: int) -> Interpreter | None:
    """The interpreter that a slot may have ready for this sandbox."""
    # The host's own alone: what an image's interpreter runs at its start would run with the slot server's rights.
    if spec.interpreter is None or spec.base is not None or user == 0:
        return None
    return Interpreter(spec.interpreter)


def _base_of(spec: SandboxSpec) -> Laid:
    """What slots lay ahead: the host's own base, which is the same for all that stand on it."""
    return NOTHING if spec.base is not None else _host(spec.network, shared_etc(spec.network))[0]


@functools.cache
def _host(network: bool, etc: Path) -> tuple[Laid, frozenset[Step]]:
    """The host's base as slots lay it, and its steps: those of a sandbox that come before any of its own."""
    plan = plan_sandbox(SandboxSpec(network=network), {}, etc, Path("/nowhere"))
    first = tuple(itertools.takewhile(lambda step: step.what in ("dir", "symlink", "ro-bind"), plan.steps))
    return Laid("host", *_told(first, frozenset(), True)), frozenset(first)


def _told(
    planned: tuple[Step, ...], mapped: frozenset[str], by_root: bool
) -> tuple[list[Mapping[str, Any]], list[Source]]:
    """Steps as the launcher is told of them, and the sources that they name by index."""
    sources: list[Source] = []
    steps: list[Mapping[str, Any]] = []
    for step in _with_whole_dev(planned):
        indexes = []
        for path in step.sources:
            # The kernel lets an ordinary user's server mount no folder without what is mounted in it.
            layer = step.what == "tmp-overlay" and by_root
            attributes = _QUIET if step.what == "bind" else _READ_ONLY
            indexes.append(len(sources))
            sources.append(Source(as_text(str(path)), attributes, step.at in mapped, recursive=not layer))
        what = _NAMES.get(step.what, step.what)
        steps.append(
            {"what": what, "at": as_text(step.at), "text": as_text(step.text), "sources": indexes}
            | {"size": step.size, "perms": step.perms}
        )
    return steps, sources


_NAMES = {"ro-bind": "bind", "tmp-overlay": "overlay", "ro-overlay": "layers"}
"""What the launcher calls a step: whether it can be written is its source's own matter."""


def _with_whole_dev(steps: tuple[Step, ...]) -> list[Step]:
    """The steps with one for all devices, which each slot has ready; what is read-only the launcher knows."""
    kept = [step for step in steps if step.what not in ("dev-bind", "remount-ro")]
    kept = [step for step in kept if not (step.what == "symlink" and step.at.startswith("/dev/"))]
    return [Step("dev", "/dev") if step.at == "/dev" else step for step in kept]


def _rlimits(limits: Limits, parts: Parts) -> dict[str, int]:
    # 1, not 0, which a kernel that pipes core files to a program of the host's does not heed.
    found = {"core": 1, "nofile": descriptors()}
    if limits.file_bytes is not None:
        found["fsize"] = limits.file_bytes
    counted = parts.group is not None and parts.group.counts_processes
    # Beside a group it would only hide the evidence. It counts what has the uid: root's sandboxes' own, or an ordinary
    # user's in one user namespace, where the kernel counts by that.
    if limits.processes is not None and not counted and (parts.uid is not None or counts_by_namespace()):
        found["nproc"] = limits.processes + _OTHERS
    return found


@dataclass(slots=True)
class _Maker:
    """Starts the commands of one sandbox in its slot."""

    slot: Slot
    blueprint: Blueprint
    commands: int = 0

    def refusal(self, command: Command) -> str | None:
        """See `Maker.refusal`: there is nothing it could not try."""
        return None

    def start(self, command: Command, stdio: Stdio) -> SlotRun:
        """See `Maker.start`."""
        self.commands += 1
        # Who ran two commands runs a third; most run one.
        return SlotRun(self.slot, self.blueprint, command, stdio, ahead=self.commands > 1)

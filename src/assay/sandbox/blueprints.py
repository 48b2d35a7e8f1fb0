"""A sandbox's plan as the launcher is told of it: what can be built before a request, and what a request brings along."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assay.sandbox.base import Limits, SandboxSpec
from assay.sandbox.cgroups import half_of_memory
from assay.sandbox.hostetc import shared_etc
from assay.sandbox.launcher import kernel
from assay.sandbox.launcher.wire import as_text
from assay.sandbox.layout import Plan, Step, plan_sandbox
from assay.sandbox.machine import counts_by_namespace
from assay.sandbox.parts import Tenant
from assay.sandbox.runtime import descriptors
from assay.sandbox.sources import NOTHING, Laid, Source, Stage

_QUIET = kernel.NOSUID | kernel.NODEV
_READ_ONLY = _QUIET | kernel.RDONLY
_OTHERS = 3
"""Processes under an ordinary user's uid that are not a command's: the slot's keeper and server, and the sandbox's init. Root's
have the server's uid."""
_NAMES = {"ro-bind": "bind", "tmp-overlay": "overlay", "ro-overlay": "layers"}
"""What the launcher calls a step: whether it can be written is its source's own matter."""


@dataclass(frozen=True, slots=True)
class Frame:
    """What bounds a sandbox's processes and files."""

    limits: Mapping[str, int]
    """Resource limits, by the launcher's names."""
    space: int | None
    """Bytes that all overlays may hold together; None: there are none."""


@dataclass(frozen=True, slots=True)
class Blueprint:
    """What every command of a sandbox starts from."""

    begun: Stage
    """What is built first: before a request where that is possible."""
    rest: Stage
    frame: Frame


def whole_blueprint(spec: SandboxSpec, plan: Plan, mapped: frozenset[str], tenant: Tenant, by_root: bool) -> Blueprint:
    """The blueprint of a sandbox all of whose steps are known at once."""
    laid = _host(spec.network, shared_etc(spec.network))[1] if spec.base is None else frozenset()
    steps = told((step for step in plan.steps if step not in laid), mapped, by_root)
    # What is below a read-only base to hold mount points is an overlay, too.
    layered = any(step["what"] in ("overlay", "layers") for step in steps.steps)
    return Blueprint(steps, Stage(), frame_of(spec.limits, tenant, layered))


def frame_of(limits: Limits, tenant: Tenant, layered: bool) -> Frame:
    """What bounds a sandbox of these limits. `layered`: whether an overlay is among its mounts."""
    space = limits.memory_bytes if limits.memory_bytes is not None else half_of_memory()
    return Frame(_rlimits(limits, tenant), space if layered else None)


def base_of(spec: SandboxSpec) -> Laid:
    """What slots lay ahead: the host's own base, which is the same for all that stand on it."""
    return NOTHING if spec.base is not None else _host(spec.network, shared_etc(spec.network))[0]


def own_steps(spec: SandboxSpec, sources: Mapping[str, Path]) -> tuple[Step, ...]:
    """The steps of a sandbox on the host's base that are not laid ahead, none of whose mounts stands in a part of the base."""
    etc = shared_etc(spec.network)
    laid = _host(spec.network, etc)[1]
    return tuple(step for step in plan_sandbox(spec, sources, etc, Path("/nowhere")).steps if step not in laid)


@functools.cache
def _host(network: bool, etc: Path) -> tuple[Laid, frozenset[Step]]:
    """The host's base as slots lay it, and its steps: those of a sandbox that come before any of its own."""
    plan = plan_sandbox(SandboxSpec(network=network), {}, etc, Path("/nowhere"))
    first = tuple(itertools.takewhile(lambda step: step.what in ("dir", "symlink", "ro-bind"), plan.steps))
    laid = told(first, frozenset(), True)
    return Laid("host", laid.steps, laid.sources), frozenset(first)


def told(planned: Iterable[Step], mapped: frozenset[str], by_root: bool) -> Stage:
    """Steps as the launcher is told of them, and the sources that they name by index.

    `mapped`: the mounts whose files of root's are to be the sandbox's own.
    """
    sources: list[Source] = []
    steps: list[Mapping[str, Any]] = []
    for step in _with_whole_dev(planned):
        indexes = []
        for path in step.sources:
            # The kernel lets an ordinary user's server mount no folder without what is mounted in it.
            layer = step.what == "tmp-overlay" and by_root
            attributes = _QUIET if step.what == "bind" else _READ_ONLY
            indexes.append(len(sources))
            sources.append(Source(as_text(str(path)), attributes, step.of in mapped, recursive=not layer))
        what = _NAMES.get(step.what, step.what)
        steps.append(
            {"what": what, "at": as_text(step.at), "text": as_text(step.text), "sources": indexes}
            | {"size": step.size, "perms": step.perms}
        )
    return Stage(steps, sources)


def _with_whole_dev(steps: Iterable[Step]) -> list[Step]:
    """The steps with one for all devices, which each slot has ready; what is read-only the launcher knows."""
    kept = [step for step in steps if step.what not in ("dev-bind", "remount-ro")]
    kept = [step for step in kept if not (step.what == "symlink" and step.at.startswith("/dev/"))]
    return [Step("dev", "/dev") if step.at == "/dev" else step for step in kept]


def _rlimits(limits: Limits, tenant: Tenant) -> dict[str, int]:
    # 1, not 0, which a kernel that pipes core files to a program of the host's does not heed.
    found = {"core": 1, "nofile": descriptors()}
    if limits.file_bytes is not None:
        found["fsize"] = limits.file_bytes
    counted = tenant.group is not None and tenant.group.counts_processes
    # Beside a group it would only hide the evidence. It counts what has the uid: root's sandboxes' own, or an ordinary
    # user's in one user namespace, where the kernel counts by that.
    if limits.processes is not None and not counted and (tenant.uid is not None or counts_by_namespace()):
        found["nproc"] = limits.processes + (_OTHERS if tenant.uid is None else 0)
    return found

"""What a verification needs, and what it is given: the same shapes for an answer and for the controls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from assay.failures import FailureEvent
from assay.sandbox import Provider
from assay.tasks import Task, step_tasks, verifier_mode
from assay.workspaces import Found

from .arguments import WrongArgument, provider_of
from .bases import Base, find_base, host_base, workdir_of
from .judging import AskJudge
from .policy import Terms, agree


@dataclass(frozen=True, slots=True)
class Job:
    """All that a verification needs beside the answer. The same for an answer and for the controls."""

    task: Task
    """The task; for a multi-step task the step's view of it."""
    base: Base
    """What the verifier runs on. In shared mode the task's image, on which the controls begin."""
    agent_base: Base | None
    """What the agent worked on, so what hooks and the solution run on. None: it is not on this machine, and neither is run."""
    provider: Provider
    terms: Terms
    workdir: str
    """Where the workspace lies."""
    task_data: Mapping[str, Any] = field(default_factory=dict)
    network: bool = False
    timeout_s: float | None = None
    """Wall-clock seconds in place of the task's `[verifier].timeout_sec`."""
    shared: bool = False
    """Whether an answer is a whole root filesystem, the agent's own."""
    steps: tuple[Task, ...] = ()
    """For a step of a multi-step task: the steps up to this one, itself included."""
    warm: bool = True
    """Whether a Python verifier may be run by a fork of an interpreter that the provider has ready."""
    judge: AskJudge | None = None
    """Asks models for the verifier; None: there are none to be had."""

    @property
    def limit_s(self) -> float:
        """Wall-clock seconds that the verifier may take."""
        return self.timeout_s if self.timeout_s is not None else self.task.config.verifier.timeout_sec

    @property
    def step(self) -> str | None:
        """The name of the step that this is; None for a single-step task."""
        return self.task.step.name if self.task.step is not None else None


@dataclass(frozen=True, slots=True)
class Part:
    """An artifact on its way to the verifier."""

    source: Path
    """A folder or file of ours."""
    at: str


@dataclass(frozen=True, slots=True)
class Captured:
    """A workspace that is captured already: a copy that nobody changes while it is graded, so it is not copied once more.

    `Snapshots.unpacked` gives such folders, and `assay.workspaces.capture` makes them.
    """

    folder: Path
    """All of it belongs to this process' user."""
    dropped: tuple[Found, ...] = ()
    """What its capture left out."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What is graded: a captured workspace or filesystem, the final response, the trajectory."""

    workspace: Path | None
    """A folder of ours that nothing else writes to, seen at the workdir. None in shared mode: what the filesystem has there."""
    response: dict[str, Any] | None = None
    trajectory: Path | None = None
    root: Path | None = None
    """Shared mode: a root filesystem of ours, cleared of what is mounted afresh."""
    parts: tuple[Part, ...] = ()
    """Artifacts that are not in the workspace."""
    disposable: bool = True
    """Whether the workspace's folder is this verification's alone."""


def plan_jobs(
    task: Task,
    *,
    sandbox: Provider | str,
    state: Path,
    rootfs: str | None = None,
    mode: str = "separate",
    task_data: Mapping[str, Any] | None = None,
    network: bool = False,
    timeout_s: float | None = None,
    warm: bool = True,
    judge: AskJudge | None = None,
) -> tuple[Job, ...]:
    """One job, or one for each step in order.

    Raises `FailureEvent` when a base is missing, a guarantee cannot be given or the task is wrong; `WrongArgument` for shared
    mode on a task that says separate.
    """
    provider = provider_of(sandbox)
    views = step_tasks(task) or (task,)
    jobs = []
    for number, view in enumerate(views, 1):
        shared = mode == "shared"
        if shared and verifier_mode(view) == "separate":
            raise WrongArgument(
                f"{view.id} says that its verifier runs in an environment of its own (separate); leave --mode shared out"
            )
        root = None
        if shared and rootfs is not None:
            # Users are those of the filesystem that is graded.
            root = Path(rootfs) / view.step.name if view.step is not None else Path(rootfs)
        base, agent_base = _bases(view, None if shared else rootfs, state, shared=shared)
        jobs.append(
            Job(
                view,
                base,
                agent_base,
                provider,
                agree(view, provider, network=network, root=root or base.folder),
                workdir_of(view, agent_base or base),
                {**task.task_data, **(task_data or {})},
                network,
                timeout_s,
                shared,
                views[:number] if task.steps else (),
                warm,
                judge,
            )
        )
    return tuple(jobs)


def bases_of(jobs: tuple[Job, ...]) -> set[Path]:
    """The folders that jobs stand on: to be held while they run."""
    folders = {base.folder for job in jobs for base in (job.base, job.agent_base) if base is not None}
    return {folder for folder in folders if folder is not None}


def _bases(task: Task, rootfs: str | None, state: Path, *, shared: bool) -> tuple[Base, Base | None]:
    """The verifier's base and the agent's. Only a base that the verdict itself needs is missed."""
    if rootfs is not None:
        base = find_base(task, rootfs, state)
        return base, base
    own = task.config.verifier.environment
    named = own.docker_image if own is not None and not shared else None
    try:
        agent_base: Base | None = find_base(task, None, state)
    except FailureEvent:
        hooked = bool(task.config.verifier.collect)
        if not shared and (named is None or hooked):
            raise
        agent_base = None
    if named is not None:
        return find_base(task, None, state, image=named), agent_base
    return agent_base or host_base(), agent_base

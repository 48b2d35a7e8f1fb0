"""Answers made afresh in sandboxes: what an agent was given, what the task's own solution or any other actor makes of it."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from assay.failures import FailureEvent
from assay.sandbox import Ended, Mount, ReadOnly, Sandbox, Writable
from assay.tasks import (
    SETUP,
    Task,
    resolve_env,
    solution_response,
    stage_environment,
    stage_solution,
    stage_step,
)
from assay.workspaces import capture, copy_tree, find_inside, remove_tree, scratch_folder

from .filesystem import clear_mount_points, take_filesystem
from .gathering import agent_environment, agent_spec, check_health
from .job import Answer, Job

DEFAULT_SOLUTION_S = 600.0
"""Wall-clock seconds for a solution whose task gives the agent no time limit."""


def is_solvable(job: Job) -> bool:
    """Whether the task's own solution leads to this job's answer: a step needs those of the steps before it as well."""
    return all(view.solution is not None for view in job.steps or (job.task,))


class Actor(Protocol):
    """Whoever works on a task in its agent's sandbox. One for each performance: it may remember."""

    def mounts(self, view: Task, place: Path) -> tuple[Mount, ...]:
        """What it needs beside the workspace; `place` is an empty folder of ours for it. Blocks."""
        ...

    async def act(self, sandbox: Sandbox, view: Task, workdir: str, env: dict[str, str]) -> Said:
        """Do the work. Raises `FailureEvent` when what it left is not to be an answer."""
        ...


class Said(NamedTuple):
    """What an actor leaves beside the workspace."""

    response: dict[str, Any] | None = None
    trajectory: Path | None = None
    """A file of ours, in the actor's `place`."""


class Solution:
    """The task's own solution as an actor, with the response that the task ships for it."""

    def mounts(self, view: Task, place: Path) -> tuple[Mount, ...]:
        """See `Actor.mounts`."""
        stage_solution(view, place)
        return ReadOnly(place, "/solution"), Writable("/logs/agent")

    async def act(self, sandbox: Sandbox, view: Task, workdir: str, env: dict[str, str]) -> Said:
        """See `Actor.act`. What the script's exit code says is not asked: the verifier judges what it left."""
        own = resolve_env(view.config.solution.env, f"{view.folder}/task.toml: [solution.env]")
        limit_s = view.config.agent.timeout_sec or DEFAULT_SOLUTION_S
        await _run(sandbox, "/solution/solve.sh", workdir, env | own, limit_s)
        return Said(solution_response(view))


def rehearse(job: Job, *, solve: bool) -> AsyncGenerator[Answer, None]:
    """What `perform` yields for the task's own solution, or without `solve` for nobody: the untouched environment."""
    return perform(job, Solution() if solve else None)


async def perform(job: Job, actor: Actor | None) -> AsyncGenerator[Answer, None]:
    """The answer after each step up to the job's own, in order; for a single-step task the one.

    The untouched environment; with an actor what that leaves, in each step in turn on the same workdir, and what it said.
    Each answer is valid until the next is asked for. Raises `FailureEvent` when a sandbox could not be had or was lost,
    what was left cannot be captured, or the healthcheck before a step's work does not hold; and what the actor raises.
    """
    with scratch_folder("rehearsal") as folder:
        state = await asyncio.to_thread(_begin, job, folder)
        for number, view in enumerate(job.steps or (job.task,)):
            place = folder / str(number)
            place.mkdir()
            state = await _play(job, view, state, place, actor)
            yield state


@asynccontextmanager
async def rehearsed(job: Job, *, solve: bool) -> AsyncIterator[Answer]:
    """The job's own answer, the last that `rehearse` makes, for the length of a block. Raises as `rehearse` does."""
    left = max(1, len(job.steps))
    async with aclosing(rehearse(job, solve=solve)) as answers:
        async for answer in answers:
            left -= 1
            if not left:
                yield answer


def stage_untouched(job: Job, into: Path) -> None:
    """Lay the untouched environment into an empty folder.

    In an image it is what the image has at the workdir. On the host's base, or a base that is no image of the task's (it
    has nothing at the workdir), it is what lies in `environment/` beside the Dockerfile and compose files.
    """
    base = job.agent_base.folder if job.agent_base is not None else None
    if base is not None and job.task.image.needed:
        source = find_inside(base, job.workdir)
        if source is not None:
            copy_tree(source, into)
            return
    stage_environment(job.task, into)


def _begin(job: Job, folder: Path) -> Answer:
    base = job.agent_base.folder if job.agent_base is not None else None
    root = None
    if job.shared and base is not None:
        root = folder / "root"
        take_filesystem(base, root)
        if job.task.image.needed and find_inside(root, job.workdir) is not None:
            return Answer(None, root=root)
    workspace = folder / "untouched"
    workspace.mkdir()
    stage_untouched(job, workspace)
    return Answer(workspace, root=root)


async def _play(job: Job, view: Task, state: Answer, place: Path, actor: Actor | None) -> Answer:
    """One step: what it adds to the workdir, its setup, its healthcheck, the actor's work."""
    root, workspace = state.root, state.workspace
    setup = False
    if view.step is not None:
        additions = place / "additions"
        setup = await asyncio.to_thread(stage_step, view, view.step.name, additions)
        workdir = workspace or (find_inside(root, job.workdir) if root is not None else None)
        if workdir is not None:
            await asyncio.to_thread(_lay_over, additions, workdir)
    if actor is None and not setup:
        return state
    said = Said()
    mounts: list[Mount] = [Writable(job.workdir, on_disk=True)] if workspace is not None else []
    if actor is not None:
        own = place / "actor"
        own.mkdir()
        mounts += await asyncio.to_thread(actor.mounts, view, own)
    user = view.config.agent.user
    sandbox = await job.provider.create(agent_spec(job, tuple(mounts), root, user))
    env = agent_environment(job, view, root, user)
    try:
        if workspace is not None:
            await sandbox.put(workspace, job.workdir)
        if setup:
            await _run(sandbox, f"{job.workdir}/{SETUP}", job.workdir, env, DEFAULT_SOLUTION_S)
        if actor is not None:
            if view.step is not None and view.step.config.healthcheck is not None:
                await check_health(job, sandbox, view.step.config.healthcheck)
            said = await actor.act(sandbox, view, job.workdir, env)
        if workspace is not None:
            left = await sandbox.get(job.workdir)
            workspace = place / "workspace"
            await asyncio.to_thread(capture, left, workspace)
    finally:
        await sandbox.close()
    if root is not None:
        await asyncio.to_thread(clear_mount_points, root)
    return Answer(workspace, said.response, said.trajectory, root)


async def _run(sandbox: Sandbox, script: str, cwd: str, env: dict[str, str], limit_s: float) -> None:
    result = await sandbox.exec(["bash", script], cwd=cwd, env=env, timeout_s=limit_s, merge_stderr=True)
    if result.how is Ended.FAULT:
        raise FailureEvent("provider_unavailable", f"the sandbox of {script} was lost: {result.fault}")


def _lay_over(source: Path, target: Path) -> None:
    """Merge a step's own files into a workdir of ours; what stands in their way, a link included, goes."""
    for entry in os.scandir(source):
        place = target / entry.name
        if entry.is_dir(follow_symlinks=False):
            if place.is_symlink() or not place.is_dir():
                remove_tree(place)
                place.mkdir()
            _lay_over(Path(entry.path), place)
            continue
        remove_tree(place)
        shutil.copy2(entry.path, place, follow_symlinks=False)

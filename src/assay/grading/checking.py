"""`assay check`: does this verifier work? Its solution is graded full, the untouched environment less, and repeats agree."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path

from assay.failures import FailureEvent
from assay.images import held
from assay.sandbox import Provider
from assay.tasks import Task

from .bases import find_base
from .job import Job, bases_of, plan_jobs
from .judging import AskJudge
from .observation import Observation, not_graded
from .rehearsal import is_solvable, rehearse
from .settling import Progress
from .state import state_dir
from .steps import combined_observation, shortfall
from .verification import standing_of, verify_once

DEFAULT_FULL = 1.0


@dataclass(frozen=True, slots=True)
class Check:
    """What was found about one task's verifier."""

    task_id: str
    solution: tuple[Observation, ...]
    """One for each repeat; empty when the task has no solution or could not be run."""
    untouched: tuple[Observation, ...]
    full: float
    """What the solution should get: the upper bound of `reward_range`, else at least 1."""
    problems: tuple[str, ...]
    """Sentences for a person; empty when the verifier works."""

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems


async def check_task(
    task: Task,
    *,
    repeats: int = 2,
    sandbox: Provider | str = "auto",
    rootfs: str | None = None,
    network: bool = False,
    timeout_s: float | None = None,
    state: Path | str | None = None,
    judge: AskJudge | None = None,
    progress: Progress | None = None,
) -> Check:
    """Grade a task's solution and its untouched environment `repeats` times each."""
    tell: Progress = progress or (lambda _: None)
    high = task.settings.reward_range[1] if task.settings.reward_range is not None else None
    full = high if high is not None else DEFAULT_FULL
    try:
        jobs = plan_jobs(
            task,
            sandbox=sandbox,
            state=state_dir(state),
            rootfs=rootfs,
            network=network,
            timeout_s=timeout_s,
            judge=judge,
        )
        if jobs[0].agent_base is None:
            find_base(task, None, state_dir(state))
        solution, untouched = [], []
        with contextlib.ExitStack() as kept:
            for folder in bases_of(jobs):
                kept.enter_context(held(folder))
            for turn in range(1, repeats + 1):
                tell(f"{task.id}: untouched environment, {turn} of {repeats}")
                untouched.append(await _look(task, jobs, solve=False))
                if is_solvable(jobs[-1]):
                    tell(f"{task.id}: solution, {turn} of {repeats}")
                    solution.append(await _look(task, jobs, solve=True))
    except FailureEvent as failure:
        return Check(task.id, (), (), full, (f"{failure.kind}: {failure.reason}",))
    return Check(task.id, tuple(solution), tuple(untouched), full, tuple(problems_of(solution, untouched, full)))


async def _look(task: Task, jobs: Sequence[Job], *, solve: bool) -> Observation:
    """Grade what is rehearsed, step by step where there are steps, as far as the rewards lead."""
    looks: list[Observation] = []
    try:
        async with aclosing(rehearse(jobs[-1], solve=solve)) as answers:
            async for answer in answers:
                job = jobs[len(looks)]
                looks.append(await verify_once(job, answer))
                reward = looks[-1].reward
                if reward is None or shortfall(job.task, reward) is not None:
                    break
    except FailureEvent as failure:
        looks.append(not_graded(standing_of(failure), failure))
    return combined_observation(task, looks) if task.steps else looks[-1]


def problems_of(solution: list[Observation], untouched: list[Observation], full: float) -> list[str]:
    """What is wrong with a verifier that gave these outcomes; empty when nothing is."""
    problems = []
    if not solution:
        problems.append("there is no solution/solve.sh, so nothing shows that this verifier ever gives a reward")
    for name, looks in (("the solution", solution), ("the untouched environment", untouched)):
        outcomes = {_outcome(look) for look in looks}
        if len(outcomes) > 1:
            problems.append(f"{name} is graded differently from time to time: {', '.join(sorted(outcomes))}")
    if solution:
        first = solution[0]
        if first.reward is None:
            problems.append(f"the solution is not graded: {_outcome(first)}")
        elif first.reward.value < full:
            problems.append(f"the solution is graded {first.reward.value:g}, less than full ({full:g})")
    for look in untouched[:1]:
        if look.reward is None:
            problems.append(
                f"the untouched environment is not graded: {_outcome(look)}; a verifier that breaks where nothing was done "
                "breaks on bad answers, too: let it give them a low reward"
            )
    rewards = [look.reward.value for look in untouched if look.reward is not None]
    if rewards and max(rewards) >= full:
        problems.append(f"the untouched environment is graded {max(rewards):g}: doing nothing is worth a full reward")
    return problems


def _outcome(look: Observation) -> str:
    if look.reward is not None:
        return f"reward {look.reward.value:g}"
    assert look.failure is not None  # noqa: S101 - what is not graded has a failure
    return f"{look.failure.kind} ({look.failure.reason})"

"""Many steps, one verdict: how the rewards of a multi-step task come together.

`mean` is over all steps of the task, `final` is the last one. A step whose reward is below its `min_reward` ends the
sequence: the steps after it were not reached, and count as the floor (the lower bound of `reward_range`, else 0), never as
absent: otherwise failing early would be worth more than failing late. A step without a verdict leaves the task without one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ulid import ULID

from assay.tasks import Task

from .observation import Observation, graded
from .rewards import Reward
from .verdict import Timing, Verdict


def combine(task: Task, rewards: Sequence[Reward]) -> Reward:
    """The reward of a multi-step task, from those of the steps that were reached, in order.

    Metrics are `step/metric`, the step's own reward among them as `step/reward`.
    """
    floor = task.settings.reward_range[0] if task.settings.reward_range is not None else 0.0
    reached = [*rewards, *[Reward(floor)] * (len(task.steps) - len(rewards))]
    metrics: dict[str, float] = {}
    for step, reward in zip(task.steps, reached, strict=True):
        metrics[f"{step.name}/reward"] = reward.value
        metrics |= {f"{step.name}/{name}": value for name, value in reward.metrics.items() if name != "reward"}
    values = [reward.value for reward in reached]
    final = task.config.multi_step_reward_strategy == "final"
    return Reward(values[-1] if final else math.fsum(values) / len(values), metrics)


def shortfall(view: Task, reward: Reward | Verdict) -> str | None:
    """Why a step's reward ends the sequence, as a sentence; None when it does not.

    A single `min_reward` is for the reward; a table names metrics, in which `reward` and the task's `reward_key` are the
    reward. A metric that is not there is below any limit.
    """
    limits = view.step.config.min_reward if view.step is not None else None
    if limits is None:
        return None
    value = reward.value if isinstance(reward, Reward) else reward.reward
    seen: dict[str, float | None] = {**reward.metrics, "reward": value}
    if view.settings.reward_key is not None:
        seen[view.settings.reward_key] = value
    for name, limit in (limits if isinstance(limits, dict) else {"reward": limits}).items():
        got = seen.get(name)
        if got is None or got < limit:
            return f"{name} is {'not there' if got is None else f'{got:g}'}, below min_reward {limit:g}"
    return None


def combined_observation(task: Task, looks: Sequence[Observation]) -> Observation:
    """One observation of a whole multi-step task: of the first step that is not graded, else of all of them together."""
    failed = next((look for look in looks if look.reward is None), None)
    if failed is not None:
        return failed
    spent = Timing(total_s=math.fsum(look.timing.total_s for look in looks))
    return graded(combine(task, [look.reward for look in looks if look.reward is not None]), timing=spent)


def combined_verdict(task: Task, verdicts: Sequence[Verdict], began: float) -> Verdict:
    """The verdict of a multi-step task, from those of the steps that were reached; at least one."""
    failed = next((verdict for verdict in verdicts if not verdict.graded), None)
    blamed = failed or next((verdict for verdict in verdicts if verdict.failure is not None), None)
    shown = blamed or verdicts[-1]
    reward = None
    if failed is None:
        reward = combine(task, [Reward(verdict.reward or 0.0, verdict.metrics) for verdict in verdicts])
    timings = [verdict.timing for verdict in verdicts]
    return replace(
        shown,
        verdict_id=str(ULID()),
        task_id=task.id,
        task_digest=task.digest,
        verifier_digest=task.verifier_digest,
        status="graded" if reward is not None else "failed",
        reward=reward.value if reward is not None else None,
        metrics=reward.metrics if reward is not None else {},
        checks=tuple(
            {**check, "name": f"{step.name}/{check['name']}"}
            for step, one in _named(task, verdicts)
            for check in one.checks
        ),
        limits_hit=_union(verdict.limits_hit for verdict in verdicts),
        unmet=_union(verdict.unmet for verdict in verdicts),
        dropped_files=tuple(found for verdict in verdicts for found in verdict.dropped_files),
        provisional=any(verdict.provisional for verdict in verdicts),
        proven=all(verdict.proven for verdict in verdicts),
        flaky=any(verdict.flaky for verdict in verdicts),
        evidence=None,
        # Whether any code of a verifier ran, for whoever may not run it twice.
        ended=shown.ended or next((verdict.ended for verdict in reversed(verdicts) if verdict.ended is not None), None),
        caused_by=blamed.caused_by if blamed is not None else None,
        failure=blamed.failure if blamed is not None else None,
        timing=Timing(
            math.fsum(timing.queue_s for timing in timings),
            math.fsum(timing.prepare_s for timing in timings),
            math.fsum(timing.run_s for timing in timings),
            math.fsum(timing.read_s for timing in timings),
            time.monotonic() - began,
        ),
        steps=_records(task, verdicts),
    )


def _named(task: Task, verdicts: Sequence[Verdict]) -> list[tuple[Any, Verdict]]:
    return list(zip(task.steps, verdicts, strict=False))


def _records(task: Task, verdicts: Sequence[Verdict]) -> tuple[dict[str, Any], ...]:
    done: list[dict[str, Any]] = [{"step": step.name, **verdict.to_dict()} for step, verdict in _named(task, verdicts)]
    for record in done:
        del record["steps"]
    not_reached = [{"step": step.name, "status": "not_reached"} for step in task.steps[len(verdicts) :]]
    return (*done, *not_reached)


def _union(many: Any) -> tuple[str, ...]:
    return tuple(dict.fromkeys(one for some in many for one in some))

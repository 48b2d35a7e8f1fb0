"""What a run came to, and what its mean leaves out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from assay.answers import (
    Choice,
    Database,
    GradedBy,
    Histogram,
    MetricMean,
    TaskRewards,
    Totals,
    histogram,
    metric_means,
    mixed_tasks,
    require_tasks,
    rewards_by_task,
    totals,
)
from assay.runs.estimates import PassAt, Spread, ks_up_to

_NAMED: Final = 20
"""Tasks that are named of what may be thousands."""


@dataclass(frozen=True, slots=True)
class Report:
    """A run, summed up. Every row that the mean leaves out is counted somewhere in it."""

    totals: Totals
    tasks: int
    graded_tasks: int
    """Tasks with a graded row: what the interval is bootstrapped over."""
    interval: tuple[float, float] | None
    """95 % of the mean, bootstrapped over tasks; None with fewer than two graded tasks."""
    pass_at: tuple[tuple[int, float, int], ...]
    """k, pass@k, over how many tasks; empty where a reward is neither 0 nor 1."""
    metrics: tuple[MetricMean, ...]
    histogram: Histogram | None
    unproven_tasks: int
    """Tasks with an answer, no graded row of which shows that their verifier works."""
    unproven_named: tuple[str, ...]
    """The first of them."""
    mixed_tasks: int
    """Tasks whose graded rows are of more than one verifier."""
    mixed_named: tuple[GradedBy, ...]
    """The first of them, by verifier."""

    @property
    def partial(self) -> bool:
        """Whether the mean is over less than the run: rows are masked, ungraded or unanswered."""
        return self.totals.graded < self.totals.planned

    @property
    def mixed(self) -> bool:
        """Whether the mean is over verdicts of different verifiers of one task."""
        return self.mixed_tasks > 0

    def masked_by_cause(self) -> dict[str, int]:
        """Masked rows by who caused it; `none` where nobody did."""
        counts: dict[str, int] = {}
        for one in self.totals.masked:
            counts[one.caused_by or "none"] = counts.get(one.caused_by or "none", 0) + one.rows
        return counts

    def to_dict(self) -> dict[str, Any]:
        """The object of `assay report --json`."""
        counted = self.totals
        return {
            "mean": counted.mean,
            "interval": list(self.interval) if self.interval is not None else None,
            "denominator": counted.graded,
            "planned": counted.planned,
            "tasks": self.tasks,
            "graded_tasks": self.graded_tasks,
            "partial": self.partial,
            "mixed": self.mixed,
            "low": counted.low,
            "high": counted.high,
            "answered": counted.answered,
            "unanswered": counted.unanswered,
            "unanswered_by_kind": dict(counted.unanswered_kinds),
            "ungraded": counted.ungraded,
            "masked": sum(one.rows for one in counted.masked),
            "masked_by_kind": masked_by_kind(counted),
            "masked_by_cause": self.masked_by_cause(),
            "provisional": sum(one.provisional for one in counted.masked),
            "floored": counted.floored,
            "flaky": counted.flaky,
            "unproven": counted.unproven,
            "unproven_zeros": counted.unproven_zeros,
            "unproven_tasks": self.unproven_tasks,
            "unproven_tasks_named": list(self.unproven_named),
            "pass_at": {str(k): {"estimate": estimate, "tasks": tasks} for k, estimate, tasks in self.pass_at},
            "metrics": {one.name: {"mean": one.mean, "rows": one.rows} for one in self.metrics},
            "histogram": asdict(self.histogram) if self.histogram is not None else None,
            "verifiers": {digest or "none": rows for digest, rows in counted.verifiers.items()},
            "mixed_tasks": self.mixed_tasks,
            "mixed_tasks_named": [asdict(one) for one in self.mixed_named],
            "states": dict(counted.states),
        }


def summarise(database: Database, *, choice: Choice | None = None) -> Report:
    """Sum a run up, or the chosen rows of it. Streams; holds a few thousand numbers. Blocks.

    Raises as the store does, and `WrongArgument` for a choice of tasks that fits none.
    """
    require_tasks(choice, database)
    counted = totals(database, choice=choice)
    spread, passed = Spread(), PassAt()
    tasks = unproven = 0
    named: list[str] = []
    for task in rewards_by_task(database, choice=choice):
        tasks += 1
        spread.add(task.total, task.graded)
        if counted.binary:
            passed.add(task.graded, task.ones, ks_up_to(task.graded))
        if _is_unproven(task):
            unproven += 1
            named += [task.task_id] if len(named) < _NAMED else []
    mixed, mixed_named = _mixed(database, choice)
    return Report(
        counted,
        tasks,
        spread.tasks,
        spread.interval(),
        tuple(passed.estimates()),
        tuple(metric_means(database, choice=choice)),
        histogram(database, choice=choice),
        unproven,
        tuple(named),
        mixed,
        mixed_named,
    )


def masked_by_kind(counted: Totals) -> Mapping[str, int]:
    """Masked rows by kind of failure."""
    counts: dict[str, int] = {}
    for one in counted.masked:
        counts[one.kind] = counts.get(one.kind, 0) + one.rows
    return counts


def _is_unproven(task: TaskRewards) -> bool:
    return task.answered > 0 and task.proven == 0


def _mixed(database: Database, choice: Choice | None) -> tuple[int, tuple[GradedBy, ...]]:
    seen, last = 0, None
    named: list[GradedBy] = []
    for one in mixed_tasks(database, choice=choice):
        seen += one.task_id != last
        last = one.task_id
        if seen <= _NAMED:
            named.append(one)
    return seen, tuple(named)

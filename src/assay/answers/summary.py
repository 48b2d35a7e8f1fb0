"""What a run came to: counts and means, added up by the database from one narrow row for each identity.

Nothing here holds more than one number for each task. What a mean leaves out is counted beside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, and_, case, func, select

from assay.answers.choice import Choice
from assay.answers.database import Database
from assay.answers.schema import identity, metric
from assay.answers.states import BUDGET, STATES, state_column


@dataclass(frozen=True, slots=True)
class Masked:
    """Rows without a reward, of one kind and cause."""

    kind: str
    caused_by: str | None
    rows: int
    provisional: int
    """Of them: failed only for want of evidence that the verifier works."""


@dataclass(frozen=True, slots=True)
class Totals:
    """All identities of a run, counted. `planned` = `graded` + masked + `ungraded` + `unanswered`."""

    planned: int
    answered: int
    graded: int
    """The denominator of `mean`."""
    ungraded: int
    """Answers without any verdict."""
    unanswered: int
    mean: float | None
    """Over graded rows; None when there is none."""
    low: float | None
    high: float | None
    binary: bool
    """Whether every reward is 0 or 1, so that pass@k means something."""
    unproven: int
    """Graded rows whose verifier was never seen to give more than the floor."""
    unproven_zeros: int
    """Of them, those with a reward of 0 or less: a verifier that does not work gives them, too."""
    floored: int
    """Graded at the floor because the submission broke the verification."""
    flaky: int
    held: int
    """Somebody works on them now, or did until not long ago."""
    states: Mapping[str, int]
    """Every state of `STATES`, and how many are in it."""
    masked: tuple[Masked, ...]
    """Most rows first."""
    unanswered_kinds: Mapping[str, int]
    """Identities without an answer whose agent failed, by the kind of failure."""
    verifiers: Mapping[str | None, int]
    """Graded rows by the digest of the verifier, most first. Tasks with verifiers of their own have digests of their own."""


@dataclass(frozen=True, slots=True)
class TaskRewards:
    """The rewards of one task's graded rows, and what is not among them."""

    task_id: str
    planned: int
    answered: int
    graded: int
    total: float
    """Sum of the rewards."""
    ones: int
    """Rewards of 1 or more: what pass@k counts."""
    proven: int
    """Graded rows of a verifier that was seen to give more than the floor. None: nobody knows whether the verifier works."""


@dataclass(frozen=True, slots=True)
class MetricMean:
    """A metric over the graded rows that have it."""

    name: str
    rows: int
    mean: float


@dataclass(frozen=True, slots=True)
class Histogram:
    """Rewards of graded rows in bins of one width."""

    low: float
    high: float
    counts: tuple[int, ...]
    """Each bin takes its lower bound in, the last its upper one, too."""


def totals(
    database: Database, *, choice: Choice | None = None, budget: int = BUDGET, session_lost: bool = False
) -> Totals:
    """Count everything, in one consistent state. Blocks."""
    chosen = choice.conditions() if choice is not None else []
    rows = identity.c
    graded, answered = rows.status == "graded", rows.answer_id.is_not(None)

    def work(connection: Connection) -> Totals:
        one = connection.execute(
            select(
                func.count(),
                _count(answered),
                _count(graded),
                _count(and_(answered, rows.status.is_(None))),
                func.avg(case((graded, rows.reward))),
                func.min(case((graded, rows.reward))),
                func.max(case((graded, rows.reward))),
                _count(and_(graded, rows.reward.not_in((0.0, 1.0)))),
                _count(and_(graded, rows.proven == 0)),
                _count(and_(graded, rows.proven == 0, rows.reward <= 0)),
                _count(and_(graded, rows.kind.is_not(None))),
                _count(rows.flaky == 1),
                _count(rows.lease_owner.is_not(None)),
            ).where(*chosen)
        ).one()
        state = state_column(budget, session_lost=session_lost)
        states = dict.fromkeys(STATES, 0)
        for name, number in connection.execute(select(state, func.count()).where(*chosen).group_by(state)).all():
            states[name] = number
        masked = connection.execute(
            select(rows.kind, rows.caused_by, func.count(), func.sum(rows.provisional))
            .where(rows.status == "failed", *chosen)
            .group_by(rows.kind, rows.caused_by)
            .order_by(func.count().desc(), rows.kind, rows.caused_by)
        ).all()
        unanswered = connection.execute(
            select(rows.kind, func.count())
            .where(~answered, rows.kind.is_not(None), *chosen)
            .group_by(rows.kind)
            .order_by(func.count().desc(), rows.kind)
        ).all()
        verifiers = connection.execute(
            select(rows.verifier_digest, func.count())
            .where(graded, *chosen)
            .group_by(rows.verifier_digest)
            .order_by(func.count().desc(), rows.verifier_digest)
        ).all()
        return Totals(
            planned=one[0],
            answered=one[1],
            graded=one[2],
            ungraded=one[3],
            unanswered=one[0] - one[1],
            mean=one[4],
            low=one[5],
            high=one[6],
            binary=one[7] == 0,
            unproven=one[8],
            unproven_zeros=one[9],
            floored=one[10],
            flaky=one[11],
            held=one[12],
            states=states,
            masked=tuple(Masked(kind or "unknown", who, number, int(open_)) for kind, who, number, open_ in masked),
            unanswered_kinds=dict(map(tuple, unanswered)),
            verifiers=dict(map(tuple, verifiers)),
        )

    return database.read_now(work)


def rewards_by_task(database: Database, *, choice: Choice | None = None) -> Iterator[TaskRewards]:
    """One row for each task, by task id, streamed. Blocks."""
    rows = identity.c
    graded = rows.status == "graded"
    statement = (
        select(
            rows.task_id,
            func.count(),
            _count(rows.answer_id.is_not(None)),
            _count(graded),
            func.coalesce(func.sum(case((graded, rows.reward))), 0.0),
            _count(and_(graded, rows.reward >= 1)),
            _count(and_(graded, rows.proven == 1)),
        )
        .where(*(choice.conditions() if choice is not None else []))
        .group_by(rows.task_id)
        .order_by(rows.task_id)
    )
    for row in database.rows(statement):
        yield TaskRewards(*tuple(row))


def metric_means(database: Database, *, choice: Choice | None = None) -> list[MetricMean]:
    """Every metric's mean over the graded rows that have it, by name. Blocks."""
    statement = (
        select(metric.c.name, func.count(), func.avg(metric.c.value))
        .join(identity, identity.c.verdict_seq == metric.c.verdict_seq)
        .where(identity.c.status == "graded", *(choice.conditions() if choice is not None else []))
        .group_by(metric.c.name)
        .order_by(metric.c.name)
    )
    return [MetricMean(*tuple(row)) for row in database.rows(statement)]


def histogram(database: Database, bins: int = 10, *, choice: Choice | None = None) -> Histogram | None:
    """How the rewards of graded rows spread; None when there is none. Blocks."""
    chosen = choice.conditions() if choice is not None else []
    graded = identity.c.status == "graded"

    def work(connection: Connection) -> Histogram | None:
        extent = select(func.min(identity.c.reward), func.max(identity.c.reward)).where(graded, *chosen)
        low, high = connection.execute(extent).one()
        if low is None:
            return None
        if low == high:
            number = connection.execute(select(func.count()).where(graded, *chosen)).scalar_one()
            return Histogram(low, high, (int(number),))
        # Bounds are compared, not computed in the database: two of them round alike.
        width = (high - low) / bins
        edges = [low + width * number for number in range(1, bins)]
        bin_of: Any = case(*((identity.c.reward < edge, number) for number, edge in enumerate(edges)), else_=bins - 1)
        found = connection.execute(select(bin_of, func.count()).where(graded, *chosen).group_by(bin_of)).all()
        counts = dict.fromkeys(range(bins), 0) | dict(map(tuple, found))
        return Histogram(low, high, tuple(counts.values()))

    return database.read_now(work)


def _count(condition: Any) -> Any:
    return func.count(case((condition, 1)))

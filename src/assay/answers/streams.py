"""The rows of a run, one after the other: at most a few hundred are held, however many there are.

Each blocks; exhaust or close it, since it holds a connection and the state that it began with.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from sqlalchemy import ColumnElement, Row, Select, func, select

from assay.answers.choice import Choice
from assay.answers.database import Database
from assay.answers.rows import Answer, Change, Exported, Identity, KeptVerdict, Outcome
from assay.answers.schema import answer, identity, verdict
from assay.answers.states import BUDGET, state_column

_LARGE_AT_ONCE = 20
"""Rows with responses and whole verdicts that are held at a time: one may have megabytes."""


def identities(database: Database, *, choice: Choice | None = None) -> Iterator[Identity]:
    """What the run is for, in its order."""
    statement = select(identity.c.task_id, identity.c.rollout).where(*_chosen(choice)).order_by(*_IN_ORDER)
    for row in database.rows(statement):
        yield Identity(row.task_id, row.rollout)


def outcomes(
    database: Database,
    *,
    choice: Choice | None = None,
    by_task: bool = False,
    budget: int = BUDGET,
    session_lost: bool = False,
) -> Iterator[Outcome]:
    """Every identity with its current verdict, in the run's order.

    `by_task`: by task id and rollout instead, by bytes: the same in every store, so that two runs can be laid side by side.
    """
    state = state_column(budget, session_lost=session_lost).label("state")
    order = (identity.c.task_id, identity.c.rollout) if by_task else _IN_ORDER
    for row in database.rows(select(identity, state).where(*_chosen(choice)).order_by(*order)):
        yield Outcome(
            Identity(row.task_id, row.rollout),
            row.answer_id,
            row.status,
            row.reward,
            row.verifier_digest,
            row.kind,
            row.caused_by,
            bool(row.proven),
            bool(row.provisional),
            bool(row.flaky),
            row.state,
            row.tries,
        )


def answers(database: Database, *, choice: Choice | None = None) -> Iterator[Answer]:
    """Every kept answer with its response, in the run's order."""
    statement = select(answer).join(identity, identity.c.answer_id == answer.c.id)
    for row in database.rows(statement.where(*_chosen(choice)).order_by(*_IN_ORDER), at_once=_LARGE_AT_ONCE):
        yield answer_of(row)


def exported(database: Database, *, choice: Choice | None = None) -> Iterator[Exported]:
    """Every kept answer with its current verdict, in the run's order."""
    statement: Select[Any] = (
        select(answer, identity.c.terminal, *verdict_columns())
        .join(identity, identity.c.answer_id == answer.c.id)
        .outerjoin(verdict, verdict.c.seq == identity.c.verdict_seq)
        .where(*_chosen(choice))
        .order_by(*_IN_ORDER)
    )
    for row in database.rows(statement, at_once=_LARGE_AT_ONCE):
        kept = verdict_of(row) if row.v_seq is not None else None
        yield Exported(answer_of(row), kept, bool(row.terminal))


def changes(database: Database, command_id: str) -> Iterator[Change]:
    """What a command's verdicts replaced, in the order of the run: one for each answer that it gave a verdict to.

    Those are among them that were settled by what the command proved.
    """
    own = (
        select(verdict.c.answer_id, func.min(verdict.c.seq).label("first"), func.max(verdict.c.seq).label("last"))
        .where(verdict.c.command_id == command_id)
        .group_by(verdict.c.answer_id)
        .subquery()
    )
    first, last, before = verdict.alias("first"), verdict.alias("last"), verdict.alias("before")
    statement = (
        select(
            identity.c.task_id,
            identity.c.rollout,
            identity.c.verdict_seq,
            last.c.seq,
            *(before.c[name].label(f"before_{name}") for name in ("seq", *_COMPARED)),
            *(last.c[name].label(f"after_{name}") for name in _COMPARED),
        )
        .join(own, own.c.answer_id == identity.c.answer_id)
        .join(first, first.c.seq == own.c.first)
        .join(last, last.c.seq == own.c.last)
        .outerjoin(before, before.c.seq == first.c.replaced)
        .order_by(*_IN_ORDER)
    )
    for row in database.rows(statement):
        yield Change(
            Identity(row.task_id, row.rollout),
            _compared(row, "before") if row.before_seq is not None else None,
            _compared(row, "after"),
            row.verdict_seq == row.seq,
        )


def answer_of(row: Row[Any]) -> Answer:
    """The value of a row of `answer`."""
    return Answer(
        row.id,
        Identity(row.task_id, row.rollout),
        row.task_digest,
        row.snapshot,
        json.loads(row.response) if row.response is not None else None,
        row.agent,
        json.loads(row.agent_settings),
        row.created_at,
        tuple(json.loads(row.dropped)),
        json.loads(row.extra),
    )


def verdict_of(row: Row[Any]) -> KeptVerdict:
    """The value of a row with `verdict_columns`."""
    return KeptVerdict(
        row.v_seq,
        row.v_id,
        row.v_answer_id,
        row.v_command_id,
        row.v_attempt_id,
        row.v_settles,
        row.v_created_at,
        {**json.loads(row.v_body), "answer_id": row.v_answer_id},
    )


_IN_ORDER = (identity.c.position, identity.c.task_id, identity.c.rollout)
_COMPARED = ("status", "reward", "kind", "verifier_digest")
_SHOWN = ("seq", "id", "answer_id", "command_id", "attempt_id", "settles", "created_at", "body")


def verdict_columns() -> list[ColumnElement[Any]]:
    """What `verdict_of` reads."""
    return [verdict.c[name].label(f"v_{name}") for name in _SHOWN]


def _compared(row: Row[Any], which: str) -> Mapping[str, Any]:
    return {name: getattr(row, f"{which}_{name}") for name in _COMPARED}


def _chosen(choice: Choice | None) -> list[ColumnElement[bool]]:
    return choice.conditions() if choice is not None else []

"""Tasks whose graded rows were graded by more than one verifier: their mean is mixed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sqlalchemy import func, select

from assay.answers.choice import Choice
from assay.answers.database import Database
from assay.answers.schema import identity


@dataclass(frozen=True, slots=True)
class GradedBy:
    """Graded rows of one task by one verifier."""

    task_id: str
    verifier_digest: str | None
    rows: int


def mixed_tasks(database: Database, *, choice: Choice | None = None) -> Iterator[GradedBy]:
    """Every task that has more than one, by task id, a row for each verifier, most rows first; streamed. Blocks."""
    rows = identity.c
    chosen = [rows.status == "graded", *(choice.conditions() if choice is not None else [])]
    # A digest that is not known is one of its own.
    digest = func.coalesce(rows.verifier_digest, "")
    mixed = select(rows.task_id).where(*chosen).group_by(rows.task_id).having(func.count(digest.distinct()) > 1)
    statement = (
        select(rows.task_id, rows.verifier_digest, func.count())
        .where(rows.task_id.in_(mixed), *chosen)
        .group_by(rows.task_id, rows.verifier_digest)
        .order_by(rows.task_id, func.count().desc(), rows.verifier_digest)
    )
    for row in database.rows(statement):
        yield GradedBy(*tuple(row))

"""Everything that is kept of one answer. Each function blocks."""

from __future__ import annotations

import json
from typing import Any

from sqlalchemy import Connection, select

from assay.answers.attempts import attempt_of
from assay.answers.database import Database
from assay.answers.rows import Answer, Attempt, Identity, KeptVerdict
from assay.answers.schema import answer, attempt, event, trajectory, verdict
from assay.answers.streams import answer_of, verdict_columns, verdict_of


def find_answer(database: Database, which: str | Identity) -> Answer | None:
    """The answer with an id, or that of an identity; None when there is none."""
    statement = select(answer)
    if isinstance(which, Identity):
        statement = statement.where(answer.c.task_id == which.task_id, answer.c.rollout == which.rollout)
    else:
        statement = statement.where(answer.c.id == which)
    row = database.read_now(lambda c: c.execute(statement).one_or_none())
    return answer_of(row) if row is not None else None


def find_trajectory(database: Database, answer_id: str) -> bytes | None:
    """The trajectory that was kept with an answer, as the file it was."""
    statement = select(trajectory.c.zstd).where(trajectory.c.answer_id == answer_id)
    packed = database.read_now(lambda c: c.execute(statement).scalar())
    if packed is None:
        return None
    # Loaded where it is needed: most answers have none.
    import zstandard

    return zstandard.decompress(bytes(packed))


def verdicts_of(database: Database, answer_id: str) -> list[KeptVerdict]:
    """All verdicts that an answer was given, oldest first."""
    statement = select(*verdict_columns()).where(verdict.c.answer_id == answer_id).order_by(verdict.c.seq)
    return [verdict_of(row) for row in database.read_now(lambda c: c.execute(statement).all())]


def attempts_at(database: Database, identity: Identity) -> list[Attempt]:
    """All attempts at an identity, the agent's too, oldest first, each with its events."""
    of_it = (attempt.c.task_id == identity.task_id, attempt.c.rollout == identity.rollout)

    def work(connection: Connection) -> list[Attempt]:
        seen: dict[str, list[Any]] = {}
        events = select(event).join(attempt, attempt.c.id == event.c.attempt_id).where(*of_it)
        for row in connection.execute(events.order_by(event.c.attempt_id, event.c.number)):
            seen.setdefault(row.attempt_id, []).append(json.loads(row.record))
        rows = connection.execute(select(attempt).where(*of_it).order_by(attempt.c.began_at, attempt.c.id)).all()
        return [attempt_of(row, seen.get(row.id, [])) for row in rows]

    return database.read_now(work)

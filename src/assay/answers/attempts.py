"""Attempts: begun before anything of them happens, ended once, with everything that was seen."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from sqlalchemy import Connection, Row, and_, bindparam, func, or_, select, update

from assay.answers.claims import is_identity
from assay.answers.planning import plan
from assay.answers.rows import Answer, Attempt, Identity
from assay.answers.schema import INTERRUPTED, answer, attempt, event, identity, insert_once, trajectory

_LEVEL: Final = 3
_FREE: Final = {"lease_owner": None, "lease_until": None}

# Made once: building a statement costs more than running it.
_OF: Final = and_(identity.c.task_id == bindparam("of_task"), identity.c.rollout == bindparam("of_rollout"))
_HOLDER: Final = select(identity.c.lease_owner).where(_OF).with_for_update()
_FINISH: Final = update(identity).where(_OF).values(command_id=bindparam("by_command"), **_FREE)
_ATTEMPT: Final = select(attempt).where(attempt.c.id == bindparam("which")).with_for_update()
_END: Final = update(attempt).where(attempt.c.id == bindparam("which"), attempt.c.ended_at.is_(None))


def begin(connection: Connection, new: Attempt) -> None:
    """Note an attempt."""
    values = {
        "id": new.id,
        "task_id": new.identity.task_id,
        "rollout": new.identity.rollout,
        "answer_id": new.answer_id,
        "stage": new.stage,
        "command_id": new.command_id,
        "owner": new.owner,
        "repeatable": int(new.repeatable),
        "began_at": new.began_at,
    }
    insert_once(connection, attempt, values)


def keep_answer(connection: Connection, new: Answer, content: bytes | None, attempt_id: str | None, now: float) -> str:
    """Keep an answer; the id of the one that is kept, which may be another."""
    one = new.identity
    plan(connection, [one])
    connection.execute(select(identity.c.task_id).where(is_identity(one)).with_for_update())
    values = {
        "id": new.id,
        "task_id": one.task_id,
        "rollout": one.rollout,
        "task_digest": new.task_digest,
        "snapshot": new.snapshot,
        "agent": new.agent,
        "created_at": new.created_at or now,
        "agent_settings": _json(new.agent_settings),
        "dropped": _json(list(new.dropped)),
        "extra": _json(new.extra),
        "response": _json(new.response) if new.response is not None else None,
    }
    insert_once(connection, answer, values)
    statement = select(answer.c.id).where(answer.c.task_id == one.task_id, answer.c.rollout == one.rollout)
    kept = str(connection.execute(statement).scalar_one())
    if kept == new.id and content is not None:
        # Loaded where it is needed: most answers have none.
        import zstandard

        packed = zstandard.compress(content, _LEVEL)
        insert_once(connection, trajectory, {"answer_id": kept, "zstd": packed})
    cleared = {"answer_id": kept, "kind": None, "tries": 0, "terminal": 0}
    connection.execute(update(identity).where(is_identity(one), identity.c.answer_id.is_(None)).values(**cleared))
    if attempt_id is not None:
        _end(connection, attempt_id, "answered", now, answer_id=kept)
    return kept


def fail_agent(
    connection: Connection,
    attempt_id: str,
    record: Mapping[str, Any],
    events: Sequence[Mapping[str, Any]],
    now: float,
    *,
    terminal: bool,
) -> None:
    """End an agent's attempt without an answer, and count it."""
    row = _attempt(connection, attempt_id)
    kind = record["kind"]
    if not _end(connection, attempt_id, "failed", now, kind=kind):
        return
    _add_events(connection, attempt_id, events)
    one = Identity(row.task_id, row.rollout)
    counted = select(func.count()).where(
        attempt.c.task_id == one.task_id,
        attempt.c.rollout == one.rollout,
        attempt.c.stage == "agent",
        attempt.c.kind == kind,
        attempt.c.outcome == "failed",
    )
    values = {
        "kind": kind,
        "tries": connection.execute(counted).scalar_one(),
        "terminal": int(terminal),
        "command_id": row.command_id,
    }
    unanswered = update(identity).where(is_identity(one), identity.c.answer_id.is_(None))
    connection.execute(unanswered.values(**values))
    _give_back(connection, one, row.owner)


def end_graded(
    connection: Connection,
    attempt_id: str,
    body: Mapping[str, Any],
    events: Sequence[Mapping[str, Any]],
    now: float,
    owner: str,
) -> bool:
    """End an attempt with a verdict, and give its identity back. False, and nothing happens, when it is not this process' any
    more. True again for an attempt that ended with this very verdict."""
    row = _attempt(connection, attempt_id)
    if row.ended_at is not None:
        return bool(row.verdict_id == body["verdict_id"])
    one = Identity(row.task_id, row.rollout)
    holder = connection.execute(_HOLDER, {"of_task": one.task_id, "of_rollout": one.rollout}).scalar_one()
    if holder != owner:
        _end(connection, attempt_id, INTERRUPTED, now)
        return False
    failure = body.get("failure") or {}
    failed = body["status"] != "graded"
    kind = failure.get("kind") if failed else None
    _end(connection, attempt_id, "failed" if failed else "graded", now, kind=kind, verdict_id=body["verdict_id"])
    _add_events(connection, attempt_id, events)
    connection.execute(_FINISH, {"of_task": one.task_id, "of_rollout": one.rollout, "by_command": row.command_id})
    return True


def take_over(connection: Connection, now: float, owner: str) -> list[Attempt]:
    """End the attempts that are open though nobody holds their identity; those of this process are its own affair.

    Among those returned are also the ones that were ended so before, must not be repeated, and have no verdict yet.
    """
    free = or_(
        identity.c.lease_until.is_(None), identity.c.lease_until < now, identity.c.lease_owner != attempt.c.owner
    )
    same = and_(identity.c.task_id == attempt.c.task_id, identity.c.rollout == attempt.c.rollout)
    left = and_(attempt.c.ended_at.is_(None), attempt.c.owner != owner, free)
    # Whoever ended it may have died before it could say that the session is lost.
    unsaid = and_(attempt.c.outcome == INTERRUPTED, attempt.c.repeatable == 0, identity.c.verdict_seq.is_(None))
    rows = connection.execute(
        select(attempt)
        .join(identity, same)
        .where(or_(left, unsaid))
        .order_by(attempt.c.id)
        .with_for_update(of=attempt, skip_locked=True)
    ).all()
    if rows:
        ended = update(attempt).where(attempt.c.id.in_([row.id for row in rows]), attempt.c.ended_at.is_(None))
        connection.execute(ended.values(ended_at=now, outcome=INTERRUPTED))
    return [attempt_of(row, ended_at=now, outcome=INTERRUPTED) for row in rows]


def attempt_of(row: Row[Any], events: Sequence[Mapping[str, Any]] = (), **changed: Any) -> Attempt:
    """The value of a row."""
    values = {
        "id": row.id,
        "identity": Identity(row.task_id, row.rollout),
        "answer_id": row.answer_id,
        "stage": row.stage,
        "command_id": row.command_id,
        "owner": row.owner,
        "repeatable": bool(row.repeatable),
        "began_at": row.began_at,
        "ended_at": row.ended_at,
        "outcome": row.outcome,
        "kind": row.kind,
        "verdict_id": row.verdict_id,
        "events": events,
    }
    return Attempt(**{**values, **changed})


def _attempt(connection: Connection, attempt_id: str) -> Row[Any]:
    found = connection.execute(_ATTEMPT, {"which": attempt_id}).one_or_none()
    if found is None:
        raise LookupError(f"there is no attempt {attempt_id}")
    return found


def _end(connection: Connection, attempt_id: str, outcome: str, now: float, **values: Any) -> bool:
    ended = {"which": attempt_id, "ended_at": now, "outcome": outcome, **values}
    return connection.execute(_END, ended).rowcount > 0


def _add_events(connection: Connection, attempt_id: str, events: Sequence[Mapping[str, Any]]) -> None:
    values = [
        {"attempt_id": attempt_id, "number": number, "kind": record["kind"], "record": _json(record)}
        for number, record in enumerate(events, 1)
    ]
    if values:
        insert_once(connection, event, values)


def _give_back(connection: Connection, one: Identity, owner: str) -> None:
    connection.execute(update(identity).where(is_identity(one), identity.c.lease_owner == owner).values(**_FREE))


def _json(value: Any) -> str:
    return json.dumps(value, allow_nan=False)

"""Adding a verdict: which one is current, what it proves, which provisional ones that settles.

The current verdict of an answer is the latest, except that a failed one never hides a graded one of the same verifier digest
(nor does one that failed before there was a digest: it says nothing of any verifier).

A provisional verdict failed for want of evidence that its verifier works. When evidence comes, from a verdict that is proven,
and the floor is known, the settled verdict is added: graded at the floor, caused by the submission. Nothing is run for it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, Row, and_, bindparam, exists, func, insert, select, update
from ulid import ULID

from assay.answers.rows import Identity, Kept, Waiting
from assay.answers.schema import attempt, evidence, identity, insert_once, metric, verdict
from assay.answers.states import is_recoverable

# Made once: building a statement costs more than running it. What is read is locked where somebody else may change it.
_OF: Final = and_(identity.c.task_id == bindparam("of_task"), identity.c.rollout == bindparam("of_rollout"))
_SUM_UP: Final = update(identity).where(_OF)
_OWNER: Final = select(identity).where(identity.c.answer_id == bindparam("which")).with_for_update()
_SEQ: Final = select(verdict.c.seq).where(verdict.c.id == bindparam("which"))
_INSERT: Final = insert(verdict).returning(verdict.c.seq)
_METRICS: Final = insert(metric)
_EVIDENCE: Final = select(evidence).where(evidence.c.key == bindparam("which")).with_for_update()
_WAITING: Final = (
    select(identity.c.task_id, identity.c.rollout, verdict.c.body, verdict.c.answer_id)
    .join(verdict, verdict.c.seq == identity.c.verdict_seq)
    .where(identity.c.evidence_key == bindparam("which"), identity.c.provisional == 1)
)


@dataclass(frozen=True, slots=True)
class Arrival:
    """A verdict as it is handed in."""

    body: Mapping[str, Any]
    """The verdict object (`Verdict.to_dict()`, or what a server replied)."""
    answer_id: str
    now: float
    command_id: str | None = None
    attempt_id: str | None = None
    terminal: bool = False
    """Whether verifying the saved answer alone cannot settle it."""
    settles: str | None = None


def add_verdict(connection: Connection, arrival: Arrival) -> Kept:
    """Add a verdict; one with the same id that is there already is left alone, and what became of it is said again."""
    body = arrival.body
    key, floor = _evidence_of(body)
    if key is not None:
        proven_by = body["verdict_id"] if body.get("proven") else None
        # Before the identity, and locked: of two processes, one that proves and one that waits for proof, the later one sees
        # what the earlier one did.
        learn(
            connection,
            key,
            task_id=body["task_id"],
            verifier_digest=body.get("verifier_digest"),
            now=arrival.now,
            proven_by=proven_by,
            floor=floor,
        )
    owner = _identity_of(connection, arrival.answer_id)
    there = connection.execute(_SEQ, {"which": body["verdict_id"]}).scalar()
    if there is not None:
        return Kept(there, owner.verdict_seq == there)
    seq, current = _insert(connection, arrival, owner)
    if key is None:
        return Kept(seq, current)
    settled = tuple(settle(connection, key, arrival.now, command_id=arrival.command_id))
    return Kept(seq, current and Identity(owner.task_id, owner.rollout) not in settled, settled)


def settle(connection: Connection, key: str, now: float, *, command_id: str | None = None) -> Iterator[Identity]:
    """Add the settled verdict of every current provisional one that the evidence under a key settles."""
    known = connection.execute(_EVIDENCE, {"which": key}).one_or_none()
    if known is None or known.proven_by is None or known.floor is None:
        return
    waiting = connection.execute(_WAITING, {"which": key}).all()
    for row in waiting:
        before = json.loads(row.body)
        after = {
            **before,
            "verdict_id": str(ULID()),
            "status": "graded",
            "reward": known.floor,
            "metrics": {},
            "caused_by": "submission",
            "provisional": False,
            "proven": True,
        }
        arrival = Arrival(after, row.answer_id, now, command_id, settles=before["verdict_id"])
        _insert(connection, arrival, _identity_of(connection, row.answer_id))
        yield Identity(row.task_id, row.rollout)


def wanted(connection: Connection) -> list[Waiting]:
    """The evidence that current provisional verdicts wait for."""
    waits = exists().where(identity.c.evidence_key == evidence.c.key, identity.c.provisional == 1)
    columns = (evidence.c.key, evidence.c.task_id, evidence.c.verifier_digest, evidence.c.floor)
    return [Waiting(*row) for row in connection.execute(select(*columns).where(waits).order_by(evidence.c.key))]


def learn(
    connection: Connection,
    key: str,
    *,
    task_id: str,
    verifier_digest: str | None,
    proven_by: str | None,
    floor: float | None,
    now: float,
) -> None:
    """Keep what is known under a key. What was proven stays proven; a known floor stays known."""
    values = {"key": key, "task_id": task_id, "verifier_digest": verifier_digest, "proven_by": proven_by}
    insert_once(connection, evidence, {**values, "floor": floor, "at": now})
    known = connection.execute(_EVIDENCE, {"which": key}).one()
    proven_by = known.proven_by if known.proven_by is not None else proven_by
    floor = floor if floor is not None else known.floor
    if (proven_by, floor) != (known.proven_by, known.floor):
        changed = update(evidence).where(evidence.c.key == key)
        connection.execute(changed.values(proven_by=proven_by, floor=floor, at=now))


def _insert(connection: Connection, arrival: Arrival, owner: Row[Any]) -> tuple[int, bool]:
    body = arrival.body
    failure = body.get("failure") or {}
    kind, caused_by = failure.get("kind"), body.get("caused_by")
    key, _ = _evidence_of(body)
    failed = body["status"] != "graded"
    columns = {
        "status": body["status"],
        "reward": body.get("reward"),
        "verifier_digest": body.get("verifier_digest"),
        "kind": kind,
        "caused_by": caused_by,
        "proven": int(bool(body.get("proven"))),
        "provisional": int(bool(body.get("provisional"))),
        "flaky": int(bool(body.get("flaky"))),
        "recoverable": int(failed and is_recoverable(kind, caused_by, terminal=arrival.terminal)),
        "terminal": int(arrival.terminal),
        "evidence_key": key,
    }
    new = {
        "id": body["verdict_id"],
        "answer_id": arrival.answer_id,
        "command_id": arrival.command_id,
        "attempt_id": arrival.attempt_id,
        "settles": arrival.settles,
        "replaced": owner.verdict_seq,
        "created_at": arrival.now,
        "body": json.dumps(body, allow_nan=False),
        **columns,
    }
    seq = int(connection.execute(_INSERT, new).scalar_one())
    if body.get("metrics"):
        values = [{"verdict_seq": seq, "name": name, "value": value} for name, value in body["metrics"].items()]
        connection.execute(_METRICS, values)
    current = not (failed and _is_graded_by(connection, arrival.answer_id, body.get("verifier_digest")))
    if current:
        columns["tries"] = count_tries(connection, arrival.answer_id, kind) if failed else 0
        of_it = {"of_task": owner.task_id, "of_rollout": owner.rollout}
        connection.execute(_SUM_UP, {**of_it, "verdict_seq": seq, **columns})
    return seq, current


def count_tries(connection: Connection, answer_id: str, kind: str | None) -> int:
    """Attempts at grading an answer that ended with a kind of failure."""
    ended = (attempt.c.answer_id == answer_id, attempt.c.kind == kind, attempt.c.outcome == "failed")
    return int(connection.execute(select(func.count()).select_from(attempt).where(*ended)).scalar_one())


def _is_graded_by(connection: Connection, answer_id: str, verifier_digest: str | None) -> bool:
    statement = select(verdict.c.seq).where(verdict.c.answer_id == answer_id, verdict.c.status == "graded")
    if verifier_digest is not None:
        statement = statement.where(verdict.c.verifier_digest == verifier_digest)
    return connection.execute(statement.limit(1)).scalar() is not None


def _identity_of(connection: Connection, answer_id: str) -> Row[Any]:
    # Locked: two verdicts of one answer that come at once are put in order.
    found = connection.execute(_OWNER, {"which": answer_id}).one_or_none()
    if found is None:
        raise LookupError(f"there is no answer {answer_id}")
    return found


def _evidence_of(body: Mapping[str, Any]) -> tuple[str | None, float | None]:
    found = body.get("evidence") or {}
    return found.get("key"), found.get("floor")

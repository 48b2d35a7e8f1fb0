"""Who works on what: identities are leased to one process at a time, and a lease ends by itself when its holder does."""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum
from functools import lru_cache
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Connection,
    Float,
    Integer,
    Select,
    Text,
    and_,
    bindparam,
    exists,
    func,
    or_,
    select,
    tuple_,
    update,
)

from assay.answers.choice import Choice, Condition
from assay.answers.rows import Claim, Identity
from assay.answers.schema import INTERRUPTED, attempt, identity
from assay.answers.states import state_column

_LAST: Final = 2**62
"""A position that no identity has."""


class Need(StrEnum):
    """What an identity is claimed for."""

    ANSWER = "answer"
    """No answer is kept: the agent has to run."""
    VERDICT = "verdict"
    """An answer is kept that has no verdict."""
    RECOVERY = "recovery"
    """Masked by something that may have passed."""
    REGRADE = "regrade"
    """An answer is kept, whatever its verdict."""


def claim(
    connection: Connection,
    needs: Collection[Need],
    limit: int,
    *,
    owner: str,
    command_id: str,
    now: float,
    lease_s: float,
    choice: Choice,
    budget: int,
    session_lost: bool,
    after: int = -1,
) -> tuple[list[Claim], int]:
    """Lease up to `limit` identities that need one of these, in the run's order, and say where the last of them is.

    It begins behind the position `after`, and at the beginning when that is not enough: what was finished before is not
    looked at each time. Empty: there is nothing left to take. Left out is what somebody holds, and what this command has
    already finished.
    """
    chosen = tuple(sorted(choice.where.items()))
    statement = _claiming(frozenset(needs), choice.task, chosen, budget, session_lost)
    given = {"now": now, "command": command_id, "above": after, "up_to": _LAST, "most": limit}
    found = list(connection.execute(statement, given))
    if len(found) < limit and after >= 0:
        given |= {"above": -1, "up_to": after, "most": limit - len(found)}
        found += connection.execute(statement, given)
    claims = [Claim(Identity(row.task_id, row.rollout), row.answer_id, row.tries) for row in found]
    if claims:
        leased = update(identity).where(_among(claims)).values(lease_owner=owner, lease_until=now + lease_s)
        connection.execute(leased)
    return claims, found[-1].position if found else -1


@lru_cache(32)
def _claiming(
    needs: frozenset[Need], task: str | None, where: tuple[tuple[str, str], ...], budget: int, session_lost: bool
) -> Select[Any]:
    """The query of `claim`, made once for a command: building it costs more than running it."""
    rows = identity.c
    return (
        select(rows.task_id, rows.rollout, rows.position, rows.answer_id, rows.tries)
        .where(
            rows.position > bindparam("above", type_=BigInteger),
            rows.position <= bindparam("up_to", type_=BigInteger),
            or_(*(_needing(need, budget, session_lost) for need in sorted(needs))),
            or_(rows.lease_until.is_(None), rows.lease_until < bindparam("now", type_=Float)),
            or_(rows.command_id.is_(None), rows.command_id != bindparam("command", type_=Text)),
            *Choice(task, dict(where)).conditions(),
        )
        .order_by(rows.position, rows.task_id, rows.rollout)
        .limit(bindparam("most", type_=Integer))
        # In PostgreSQL: what another process is just taking is not waited for.
        .with_for_update(skip_locked=True)
    )


def are_held(connection: Connection, claims: list[Claim], owner: str) -> bool:
    """Whether a process holds one of these."""
    statement = select(func.count()).select_from(identity).where(_among(claims), identity.c.lease_owner == owner)
    return bool(connection.execute(statement).scalar_one())


def waiting(
    connection: Connection,
    needs: Collection[Need],
    *,
    command_id: str | None,
    choice: Choice,
    budget: int,
    session_lost: bool,
) -> int:
    """How many identities need one of these and were not finished by this command, those included that somebody holds."""
    rows = identity.c
    statement = select(func.count()).where(
        or_(*(_needing(need, budget, session_lost) for need in needs)), *choice.conditions()
    )
    if command_id is not None:
        statement = statement.where(or_(rows.command_id.is_(None), rows.command_id != command_id))
    return int(connection.execute(statement).scalar_one())


def renew(connection: Connection, owner: str, until: float) -> None:
    """Make the leases of a process last longer."""
    connection.execute(update(identity).where(identity.c.lease_owner == owner).values(lease_until=until))


def release(connection: Connection, owner: str | None, one: Identity | None = None) -> None:
    """Give back a lease, all leases of a process, or (without an owner) those of everybody."""
    statement = update(identity).values(lease_owner=None, lease_until=None)
    statement = statement.where(identity.c.lease_owner == owner if owner else identity.c.lease_owner.is_not(None))
    connection.execute(statement.where(is_identity(one)) if one is not None else statement)


def is_identity(one: Identity) -> Condition:
    """The row of an identity."""
    return and_(identity.c.task_id == one.task_id, identity.c.rollout == one.rollout)


def _among(claims: list[Claim]) -> Condition:
    keys = [(one.identity.task_id, one.identity.rollout) for one in claims]
    return tuple_(identity.c.task_id, identity.c.rollout).in_(keys)


def _needing(need: Need, budget: int, session_lost: bool) -> Condition:
    rows = identity.c
    match need:
        case Need.ANSWER:
            return and_(rows.answer_id.is_(None), state_column(budget) == "missing")
        case Need.VERDICT:
            ungraded = and_(rows.answer_id.is_not(None), rows.verdict_seq.is_(None))
            return and_(ungraded, state_column(budget) == "recoverable", ~_begun_for_good())
        case Need.RECOVERY:
            recoverable = state_column(budget, session_lost=session_lost) == "recoverable"
            return and_(rows.verdict_seq.is_not(None), recoverable)
        case Need.REGRADE:
            return rows.answer_id.is_not(None)


def _begun_for_good() -> Condition:
    """Whether a verification that must not be made twice was begun, and nobody knows how it ended."""
    unknown = or_(attempt.c.ended_at.is_(None), attempt.c.outcome == INTERRUPTED)
    same = and_(attempt.c.task_id == identity.c.task_id, attempt.c.rollout == identity.c.rollout)
    return exists().where(same, attempt.c.stage == "verification", attempt.c.repeatable == 0, unknown)

"""The state of an identity: a pure rule, and the same rule as SQL.

| state | means | what takes it up |
|---|---|---|
| `missing` | no answer is kept | `resume` |
| `scored` | its current verdict is graded | nothing: `regrade`, if asked |
| `recoverable` | an answer without a verdict | `resume`, `recover` |
| | an answer masked by something that may have passed | `recover` |
| `exhausted` | the same, but it was tried as often as it may be | a flag that allows more |
| `terminal` | masked by what no further verification of the same kind settles | `regrade` |
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import ColumnElement, and_, case, func, or_

from assay.answers.schema import identity
from assay.failures.kinds import AGENT_ROUTE_FAILED, JUDGE_FAILED, SESSION_LOST, is_infrastructure

STATES: Final = ("missing", "scored", "recoverable", "exhausted", "terminal")

BUDGET: Final = 3
"""Attempts for each answer and kind of failure. The retries inside one verification count as one."""

_MAY_HAVE_PASSED: Final = frozenset({JUDGE_FAILED, AGENT_ROUTE_FAILED})


def is_recoverable(kind: str | None, caused_by: str | None, *, terminal: bool = False) -> bool:
    """Whether a failed verdict is masked by something that may have passed, so that `recover` takes it up.

    Never one that is marked terminal, nor one that the verifier is to blame for: that waits for `regrade`. `session_lost` is
    not among them: the asker decides.
    """
    if terminal or kind is None or kind == SESSION_LOST or caused_by == "verifier":
        return False
    return kind in _MAY_HAVE_PASSED or is_infrastructure(kind) or caused_by == "infrastructure"


def state_column(budget: int = BUDGET, *, session_lost: bool = False) -> ColumnElement[str]:
    """The state of an identity, as a column of a query. `session_lost`: whether lost sessions count as recoverable."""
    rows = identity.c
    open_to_recovery = rows.recoverable == 1
    if session_lost:
        # A kind that is NULL must not make the whole condition NULL.
        lost = func.coalesce(rows.kind, "") == SESSION_LOST
        open_to_recovery = or_(open_to_recovery, and_(lost, rows.terminal == 0))
    answered = rows.answer_id.is_not(None)
    return case(
        (rows.status == "graded", "scored"),
        (and_(rows.status == "failed", ~open_to_recovery), "terminal"),
        (and_(~answered, rows.terminal == 1), "terminal"),
        (rows.tries >= budget, "exhausted"),
        (answered, "recoverable"),
        else_="missing",
    )

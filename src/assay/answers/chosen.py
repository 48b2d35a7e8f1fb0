"""Whether a choice of tasks chooses any: a pattern that fits nothing is a mistake, and no empty run."""

from __future__ import annotations

from typing import Final

from sqlalchemy import Connection, select

from assay.answers.choice import Choice
from assay.answers.database import Database
from assay.answers.schema import identity
from assay.grading import WrongArgument

_NAMED: Final = 10
"""Tasks that are named of what may be thousands."""


def require_tasks(choice: Choice | None, *databases: Database) -> None:
    """Raises `WrongArgument`, with the tasks that are there, for a glob over task ids that fits none in these runs. Blocks.

    That no row fits the other fields of a choice is an answer like any other: nothing failed.
    """
    if choice is None or choice.task is None:
        return
    glob = Choice(choice.task).conditions()
    fits = select(identity.c.task_id).where(*glob).limit(1)
    if any(database.read_now(lambda c: c.execute(fits).first()) is not None for database in databases):
        return
    there = sorted({name for database in databases for name in database.read_now(_first_tasks)})
    named = ", ".join(there[:_NAMED]) + (", …" if len(there) > _NAMED else "")
    raise WrongArgument(f"task: no task fits {choice.task!r}; there {f'are {named}' if there else 'is none here yet'}")


def _first_tasks(connection: Connection) -> list[str]:
    names = select(identity.c.task_id).distinct().order_by(identity.c.task_id).limit(_NAMED + 1)
    return list(connection.execute(names).scalars())

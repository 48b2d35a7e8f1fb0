"""What a run is for: its settings, its identities, and the commands that wrote to it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, func, select, update

from assay.answers.rows import Command, Identity, Run
from assay.answers.schema import command, identity, insert_once, run


def create_run(connection: Connection, run_id: str, settings: Mapping[str, Any], now: float) -> Run:
    """The run: a new one, unless there is one."""
    there = read_run(connection)
    if there is not None:
        return there
    values = {"id": run_id, "created_at": now, "settings": json.dumps(settings, allow_nan=False)}
    insert_once(connection, run, values)
    made = read_run(connection)
    assert made is not None  # noqa: S101 - it has just been made
    return made


def read_run(connection: Connection) -> Run | None:
    """The run, or None before it was begun."""
    row = connection.execute(select(run).order_by(run.c.created_at, run.c.id).limit(1)).one_or_none()
    return Run(row.id, row.created_at, json.loads(row.settings)) if row is not None else None


def begin_command(
    connection: Connection, command_id: str, name: str, settings: Mapping[str, Any], now: float, *, join: bool
) -> str:
    """Note a command; its id, or with `join` that of the same one that has not ended."""
    written = json.dumps(settings, allow_nan=False, sort_keys=True)
    if join:
        same = (command.c.name == name, command.c.settings == written, command.c.ended_at.is_(None))
        there = connection.execute(
            select(command.c.id).where(*same).order_by(command.c.began_at.desc()).limit(1)
        ).scalar()
        if there is not None:
            return str(there)
    insert_once(connection, command, {"id": command_id, "name": name, "began_at": now, "settings": written})
    return command_id


def end_command(connection: Connection, command_id: str, now: float) -> None:
    """Note that a command has ended."""
    connection.execute(
        update(command).where(command.c.id == command_id, command.c.ended_at.is_(None)).values(ended_at=now)
    )


def read_commands(connection: Connection) -> list[Command]:
    """Every command, in the order they began."""
    rows = connection.execute(select(command).order_by(command.c.began_at, command.c.id))
    return [Command(row.id, row.name, row.began_at, row.ended_at, json.loads(row.settings)) for row in rows]


def plan(connection: Connection, identities: Sequence[Identity]) -> int:
    """Add identities after those that are there; how many were new."""
    if not identities:
        return 0
    last = connection.execute(select(func.max(identity.c.position))).scalar()
    before = connection.execute(select(func.count()).select_from(identity)).scalar_one()
    at = -1 if last is None else int(last)
    blank = dict.fromkeys(("proven", "provisional", "flaky", "recoverable", "terminal", "tries"), 0)
    values = [
        {"task_id": one.task_id, "rollout": one.rollout, "position": at + number, **blank}
        for number, one in enumerate(identities, 1)
    ]
    insert_once(connection, identity, values)
    return int(connection.execute(select(func.count()).select_from(identity)).scalar_one()) - int(before)

"""The form of a store, brought up to date in numbered steps.

The table `assay_schema` says which kind of store it is and how many steps were made. Each step is made in one transaction,
together with the row that says so, by one process at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import Connection, Engine, inspect, text
from sqlalchemy.exc import SQLAlchemyError

from assay.answers.faults import StoreUnusable, advice
from assay.answers.place import Place

_TABLE: Final = "assay_schema"
_WORDS: Final = {
    "sqlite": {"{serial}": "INTEGER PRIMARY KEY AUTOINCREMENT", "{bytes}": "BLOB", "{real}": "REAL", "{text}": "TEXT"},
    "postgresql": {
        "{serial}": "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
        "{bytes}": "BYTEA",
        "{real}": "DOUBLE PRECISION",
        "{text}": 'TEXT COLLATE "C"',
    },
}


@dataclass(frozen=True, slots=True)
class Form:
    """What a kind of store looks like, and how it came to."""

    name: str
    """The kind: `runs`, say. A store of one kind is never opened as another."""
    steps: tuple[Sequence[str], ...]
    """SQL statements of each step, for both kinds of database: `{serial}` stands for a key that counts up, `{text}` for text
    that sorts by its bytes, `{bytes}` for bytes, `{real}` for a double. A step that was released is never changed; another is
    added."""


def migrate(engine: Engine, place: Place, form: Form) -> None:
    """Make the steps that are missing. Raises `StoreUnusable`, and what the database raises."""
    with engine.connect() as connection:
        if connection.dialect.name == "postgresql":
            with connection.begin():
                _lock(connection, place)
                connection.execute(text(f'CREATE SCHEMA IF NOT EXISTS "{place.namespace}"'))
        while True:
            with connection.begin():
                _lock(connection, place)
                done = _steps_made(connection, place, form)
                if done == len(form.steps):
                    return
                _make(connection, form, done)


def check(engine: Engine, place: Place, form: Form) -> None:
    """Raises `StoreUnusable` unless a store is there, of this kind, with every step made."""
    with engine.connect() as connection, connection.begin():
        done = _steps_made(connection, place, form)
    if done == 0:
        raise StoreUnusable(f"{place.shown}: nothing is kept there yet")
    if done < len(form.steps):
        raise StoreUnusable(
            f"{place.shown}: an older Assay wrote it; run a command that writes to it (assay resume) to bring it up to date"
        )


def opened_by(place: Place, error: SQLAlchemyError) -> StoreUnusable:
    """What to say of a store that could not be opened."""
    return StoreUnusable(f"{place.shown}: cannot be opened: {advice(error)}")


def _steps_made(connection: Connection, place: Place, form: Form) -> int:
    tables = inspect(connection).get_table_names(place.namespace if place.path is None else None)
    if _TABLE not in tables:
        if tables:
            raise StoreUnusable(f"{place.shown}: it has tables that are not Assay's; give another place")
        return 0
    row = connection.execute(text(f"SELECT name, steps FROM {_TABLE}")).one()  # noqa: S608 - a constant
    if row.name != form.name:
        raise StoreUnusable(f"{place.shown}: it is a store of {row.name}, not of {form.name}; give another place")
    if row.steps > len(form.steps):
        raise StoreUnusable(
            f"{place.shown}: a newer Assay wrote it (form {row.steps}, this one knows {len(form.steps)}); "
            "use that version, or upgrade this one: nothing was changed"
        )
    return int(row.steps)


def _make(connection: Connection, form: Form, done: int) -> None:
    words = _WORDS[connection.dialect.name]
    for statement in form.steps[done]:
        for word, meaning in words.items():
            statement = statement.replace(word, meaning)
        connection.exec_driver_sql(statement)
    if done == 0:
        connection.execute(text(f"CREATE TABLE {_TABLE} (name TEXT NOT NULL, steps INTEGER NOT NULL)"))
        connection.execute(text(f"INSERT INTO {_TABLE} VALUES (:name, 1)"), {"name": form.name})  # noqa: S608 - a constant
    else:
        connection.execute(text(f"UPDATE {_TABLE} SET steps = :steps"), {"steps": done + 1})  # noqa: S608 - a constant


def _lock(connection: Connection, place: Place) -> None:
    # In SQLite the transaction itself keeps others out.
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": place.lock_key})

"""Where a store of rows is: a file, or a PostgreSQL database by URL."""

from __future__ import annotations

import hashlib
import os
import re
import sqlite3
import urllib.parse
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Engine, create_engine, event, pool
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from assay.answers.faults import StoreUnusable

_POSTGRESQL: Final = ("postgresql", "postgres", "postgresql+psycopg")
_NAMESPACE: Final = re.compile(r"[a-z_][a-z0-9_]{0,62}")
_BUSY_MS: Final = 10_000
_CONNECT_S: Final = 10


@dataclass(frozen=True, slots=True)
class Place:
    """A file for SQLite, or a URL and a namespace (a schema) for PostgreSQL."""

    path: Path | None
    url: URL | None
    namespace: str

    @property
    def shown(self) -> str:
        """Fit for a message: without the password."""
        if self.url is None:
            return str(self.path)
        return f"{self.url.set(drivername='postgresql').render_as_string(hide_password=True)} (schema {self.namespace})"

    @property
    def lock_key(self) -> int:
        """A number for PostgreSQL's advisory locks, one for each namespace."""
        return int.from_bytes(hashlib.sha256(f"assay {self.namespace}".encode()).digest()[:7], "big")


def place_of(where: str | Path, namespace: str) -> Place:
    """The place that a path or URL names. Raises `StoreUnusable` for a URL that is none of ours, and for a bad namespace."""
    if _NAMESPACE.fullmatch(namespace) is None:
        raise StoreUnusable(
            f"the name of a store in PostgreSQL is made of a-z, 0-9 and _, at most 63 of them, got {namespace!r}"
        )
    text = os.fspath(where)
    if "://" not in text:
        return Place(Path(text).expanduser().absolute(), None, namespace)
    scheme, _, rest = text.partition("://")
    if scheme == "sqlite":
        return Place(Path(rest.removeprefix("/")).expanduser().absolute(), None, namespace)
    if scheme not in _POSTGRESQL:
        raise StoreUnusable(f"a store is a file or postgresql://USER:PASSWORD@HOST/DATABASE, got {scheme}://…")
    try:
        return Place(None, make_url(f"postgresql+psycopg://{rest}"), namespace)
    except (ArgumentError, ValueError):
        raise StoreUnusable("the store's URL cannot be read; write postgresql://USER:PASSWORD@HOST/DATABASE") from None


def writing_engine(place: Place) -> Engine:
    """An engine whose every transaction may write; a connection is made for each user and closed after it."""
    if place.path is not None:
        engine = create_engine("sqlite://", creator=lambda: _sqlite(place.path, "rwc"), poolclass=pool.NullPool)
        event.listen(engine, "connect", _set_up_sqlite_for_writing)
        # The driver would begin by itself, but not before a SELECT, and never IMMEDIATE: two writers would dead-lock.
        event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))
        return engine
    return _postgresql(place, poolclass=pool.NullPool)


def reading_engine(place: Place) -> Engine:
    """An engine that cannot write, with a few connections that are kept."""
    if place.path is not None:
        engine = create_engine("sqlite://", creator=lambda: _sqlite(place.path, "ro"), poolclass=pool.QueuePool)
        event.listen(engine, "connect", _set_up_sqlite_for_reading)
        event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))
        return engine
    # One state for a whole read, as SQLite has it.
    engine = _postgresql(place, pool_pre_ping=True, isolation_level="REPEATABLE READ")
    return engine.execution_options(postgresql_readonly=True)


def _sqlite(path: Path | None, mode: str) -> sqlite3.Connection:
    address = f"file:{urllib.parse.quote(os.fspath(path or ''))}?mode={mode}"
    if mode == "ro" and _is_frozen(path):
        address += "&immutable=1"
    return sqlite3.connect(
        address, uri=True, timeout=_BUSY_MS / 1000, isolation_level=None, check_same_thread=False, cached_statements=256
    )


def _is_frozen(path: Path | None) -> bool:
    """On a medium that is only read, with nothing left to be taken over from a log: SQLite cannot make its index there."""
    if path is None or os.access(path.parent, os.W_OK):
        return False
    return not path.with_name(path.name + "-wal").exists()


def _set_up_sqlite_for_writing(connection: Any, record: object) -> None:
    mode = connection.execute("PRAGMA journal_mode=WAL").fetchone()[0]
    if mode != "wal":
        raise sqlite3.OperationalError(
            "its filesystem cannot share memory between processes (a network filesystem?): keep it on a local disk, "
            "or give a PostgreSQL URL"
        )
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("PRAGMA foreign_keys=ON")


def _set_up_sqlite_for_reading(connection: Any, record: object) -> None:
    connection.execute("PRAGMA query_only=ON")


def _postgresql(place: Place, **options: Any) -> Engine:
    assert place.url is not None  # noqa: S101 - the other kind of place
    engine = create_engine(place.url, connect_args={"connect_timeout": _CONNECT_S}, **options)

    def set_up(connection: Any, record: object) -> None:
        # A server may be told to acknowledge before anything is on its disk; then a row could be lost.
        connection.autocommit = True
        connection.execute(f'SET search_path TO "{place.namespace}"')
        connection.execute(
            "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'"
        )
        connection.autocommit = False

    event.listen(engine, "connect", set_up)
    return engine

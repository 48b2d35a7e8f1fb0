"""A store of rows: SQLite in a file, or PostgreSQL by URL, with one way to write and one to read.

Both are spoken to through SQLAlchemy Core and their blocking drivers. All writing is done by one thread, which is what
SQLite wants and what lets many writes share one wait for the disk; readers have connections of their own, which cannot
write, and stream.

A write is a function of a connection that runs inside a transaction. It may run more than once: when another one that shared
its transaction raised, when the database failed half way, or when the connection was lost just as it committed, so that nobody
knows. It must be harmless then: rows have ids that their maker gave them, and what is there already is left alone.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Final, TypeVar

from sqlalchemy import Engine, Executable, Row
from sqlalchemy.exc import SQLAlchemyError

from assay.answers.faults import StoreUnusable, explained
from assay.answers.migrations import Form, check, migrate, opened_by
from assay.answers.place import Place, place_of, reading_engine, writing_engine
from assay.answers.writer import Work, Writer

T = TypeVar("T")

_STREAMED: Final = 500
"""Rows that a stream holds at a time."""


class Database:
    """An open store of rows. `open_database` makes it; `close` it, or use it as a context manager."""

    def __init__(self, place: Place, reader: Engine, writer: Writer | None) -> None:
        """`writer` is None for a store that is only read."""
        self._place = place
        self._reader = reader
        self._writer = writer

    @property
    def where(self) -> str:
        """The file, or the URL without its password: for messages."""
        return self._place.shown

    @property
    def path(self) -> Path | None:
        """The SQLite file; None for PostgreSQL."""
        return self._place.path

    @property
    def writes(self) -> bool:
        """Whether it was opened for writing."""
        return self._writer is not None

    @property
    def shared(self) -> bool:
        """Whether other processes may write to it at the same time: PostgreSQL."""
        return self._place.path is None

    def submit(self, work: Work[T]) -> Future[T]:
        """Hand a write over; the result is set when it is committed, together with others that waited.

        What was handed over is made, whether or not somebody waits for it. An error that `work` raises is the result's, and
        spoils no other write. A fault of the database (a full disk, a lost server) is a `FailureEvent` of kind
        `persistence_failed`. Raises `RuntimeError` when the store is closed or only read.
        """
        if self._writer is None:
            raise RuntimeError(f"{self.where} was opened for reading")
        return self._writer.submit(work)

    def write_now(self, work: Work[T]) -> T:
        """`submit`, and wait: for code without an event loop."""
        return self.submit(work).result()

    async def write(self, work: Work[T]) -> T:
        """`submit`, and wait. Whoever is cancelled while waiting does not undo the write."""
        made = asyncio.wrap_future(self.submit(work))
        # A write that fails when whoever waited is gone has nobody to tell.
        made.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        return await asyncio.shield(made)

    def read_now(self, work: Work[T]) -> T:
        """What `work` makes of one consistent state of the rows. Blocks. Raises as `submit` does."""
        with self._explaining(), self._reader.connect() as connection, connection.begin():
            return work(connection)

    async def read(self, work: Work[T]) -> T:
        """`read_now` in a thread."""
        return await asyncio.to_thread(self.read_now, work)

    def rows(self, statement: Executable, *, at_once: int = _STREAMED) -> Iterator[Row[Any]]:
        """The rows of a query, streamed: at most `at_once` are held. Blocks. Exhaust or close it; it holds a connection."""
        with (
            self._explaining(),
            self._reader.connect() as connection,
            connection.begin(),
            connection.execution_options(yield_per=at_once).execute(statement) as found,
        ):
            yield from found

    def close(self) -> None:
        """Make the writes that were handed over, then close. Harmless when repeated."""
        if self._writer is not None:
            self._writer.close()
        self._reader.dispose()

    @contextmanager
    def _explaining(self) -> Iterator[None]:
        try:
            yield
        except SQLAlchemyError as error:
            told = explained(error, self.where)
            if told is error:
                raise
            raise told from error

    def __enter__(self) -> Database:
        """The store itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()


def open_database(
    where: str | Path,
    form: Form,
    *,
    namespace: str = "assay",
    writing: bool = True,
    pause: Callable[[float], None] = time.sleep,
) -> Database:
    """Open the store of rows at a path (SQLite) or a `postgresql://` URL; with `writing` it is made or brought up to date.

    `form` says what it must look like. `namespace` is the schema in PostgreSQL: one database can hold many stores. SQLite
    runs with a write-ahead log, waits for the disk at each commit, and checks foreign keys. Blocks.

    Raises `StoreUnusable`: a newer Assay wrote it, it is something else, it cannot be reached; without `writing` also when
    nothing is there.
    """
    place = place_of(where, namespace)
    if place.path is not None and not writing and not place.path.is_file():
        raise StoreUnusable(f"{place.shown}: nothing is kept there yet")
    reader = reading_engine(place)
    try:
        if writing:
            engine = writing_engine(place)
            migrate(engine, place, form)
            return Database(place, reader, Writer(engine, place.shown, pause=pause))
        check(reader, place, form)
    except SQLAlchemyError as error:
        reader.dispose()
        raise opened_by(place, error) from error
    except BaseException:
        reader.dispose()
        raise
    return Database(place, reader, None)

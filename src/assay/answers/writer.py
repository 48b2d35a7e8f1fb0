"""One thread that writes, and makes many waiting writes one transaction.

A commit waits for the disk. While it does, more writes come; they share the next commit. When one of them raises, or the
database fails in the middle, nothing of the shared transaction is kept, and each write is made once more by itself: what
one of them did wrong takes nothing of the others with it.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final, TypeVar

from sqlalchemy import Connection, Engine

from assay.answers.faults import explained, is_fault, may_pass

T = TypeVar("T")
Work = Callable[[Connection], T]

_BATCH_MAX: Final = 500
_PAUSES_S: Final = (0.05, 0.5, 2.0, 5.0)
"""Before each further try of a write that may succeed a moment later: a server restarts in a few seconds."""


class _Write:
    """One write on its way."""

    def __init__(self, work: Work[Any]) -> None:
        self.work = work
        self.future: Future[Any] = Future()
        # From here on it cannot be cancelled: what was handed over is kept, whoever still waits for it.
        self.future.set_running_or_notify_cancel()


class Writer:
    """Takes writes from any thread, makes them in the order they came, and answers each when it is on disk."""

    def __init__(self, engine: Engine, where: str, *, pause: Callable[[float], None] = time.sleep) -> None:
        """`where` names the database in errors; `pause` waits so many seconds."""
        self._engine = engine
        self._where = where
        self._pause = pause
        self._queue: queue.SimpleQueue[_Write | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._closed = False
        self._open: Connection | None = None
        self._thread = threading.Thread(target=self._run, name="assay-store-writer", daemon=True)
        self._thread.start()

    def submit(self, work: Work[T]) -> Future[T]:
        """The result of a write that will be made; set once it is committed. Raises `RuntimeError` after `close`."""
        write = _Write(work)
        with self._lock:
            if self._closed:
                raise RuntimeError(f"{self._where} is closed")
            self._queue.put(write)
        return write.future

    def close(self) -> None:
        """Make what was handed over, then end. Harmless when repeated."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        try:
            while batch := self._next():
                if len(batch) == 1 or not self._made_together(batch):
                    for write in batch:
                        self._make_alone(write)
        finally:
            self._discard()

    def _next(self) -> list[_Write]:
        """What waits, at least one write; empty at the end."""
        batch: list[_Write] = []
        first = self._queue.get()
        while first is not None:
            batch.append(first)
            if len(batch) == _BATCH_MAX:
                break
            try:
                first = self._queue.get_nowait()
            except queue.Empty:
                return batch
        if first is None and batch:
            self._queue.put(None)
        return batch

    def _made_together(self, batch: list[_Write]) -> bool:
        try:
            connection = self._connection()
            with connection.begin():
                results = [write.work(connection) for write in batch]
        except BaseException as error:
            if is_fault(error):
                self._discard()
            return False
        for write, result in zip(batch, results, strict=True):
            write.future.set_result(result)
        return True

    def _make_alone(self, write: _Write) -> None:
        for pause in (*_PAUSES_S, None):
            try:
                connection = self._connection()
                with connection.begin():
                    result = write.work(connection)
            except BaseException as error:
                if is_fault(error):
                    self._discard()
                if pause is not None and may_pass(error):
                    self._pause(pause)
                    continue
                write.future.set_exception(explained(error, self._where))
            else:
                write.future.set_result(result)
            return

    def _connection(self) -> Connection:
        if self._open is None:
            self._open = self._engine.connect()
        return self._open

    def _discard(self) -> None:
        """A connection that failed once may be in any state: the next write gets another."""
        if self._open is not None:
            connection, self._open = self._open, None
            try:
                connection.invalidate()
                connection.close()
            except Exception:  # noqa: S110 - it is given up in any case
                pass

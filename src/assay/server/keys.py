"""What the server keeps: idempotency keys, verdicts, logs.

For each key: client and key, the body's digest, the task's and the verifier's, a state and the verdict; never the request.
`started` is kept before a verifier that is not stateless can have begun, `done` in one write with its verdict. Of a verifier
that may run again nothing needs to be known before it is done.

One process has the store at a time, so it knows from memory which keys cannot be there.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, text

from assay.answers import Database, Form, StoreUnusable, open_database

VERDICTS_MAX: Final = 10_000
"""Kept at most, the latest; those of keys that are kept come on top."""
KEPT_S: Final = 7 * 24 * 3600.0
"""Nothing is kept longer."""
KEYS_KEPT_S: Final = 24 * 3600.0
"""Every key is kept at least so long."""

_FORM: Final = Form(
    "a verifier server",
    (
        (
            "CREATE TABLE verdicts (verdict_id TEXT PRIMARY KEY, at {real} NOT NULL, verdict TEXT NOT NULL, log {bytes})",
            "CREATE INDEX verdicts_at ON verdicts (at)",
            "CREATE TABLE keys (client TEXT NOT NULL, key TEXT NOT NULL, at {real} NOT NULL, body TEXT NOT NULL, "
            "task_id TEXT NOT NULL, task_digest TEXT NOT NULL, verifier_digest TEXT NOT NULL, "
            "state TEXT NOT NULL CHECK (state IN ('started', 'done')), verdict_id TEXT, "
            "PRIMARY KEY (client, key), CHECK ((state = 'done') = (verdict_id IS NOT NULL)))",
            "CREATE INDEX keys_at ON keys (at)",
            "CREATE INDEX keys_verdict ON keys (verdict_id)",
        ),
    ),
)
_COLUMNS: Final = "client, key, at, body, task_id, task_digest, verifier_digest, state, verdict_id"
_VALUES: Final = ":client, :key, :at, :body, :task_id, :task_digest, :verifier_digest, :state, :verdict_id"
_START: Final = text(f"INSERT INTO keys ({_COLUMNS}) VALUES ({_VALUES}) ON CONFLICT (client, key) DO NOTHING")  # noqa: S608 - constants
_KEEP: Final = text(
    "INSERT INTO verdicts (verdict_id, at, verdict, log) VALUES (:verdict_id, :at, :verdict, :log) "
    "ON CONFLICT (verdict_id) DO NOTHING"
)
_FINISH: Final = text(
    f"INSERT INTO keys ({_COLUMNS}) VALUES ({_VALUES}) "  # noqa: S608 - constants
    "ON CONFLICT (client, key) DO UPDATE SET state = excluded.state, verdict_id = excluded.verdict_id "
    "WHERE keys.state = 'started'"
)
_FIND: Final = text(
    "SELECT keys.body, keys.task_id, keys.task_digest, keys.verifier_digest, verdicts.verdict FROM keys "
    "LEFT JOIN verdicts ON verdicts.verdict_id = keys.verdict_id WHERE keys.client = :client AND keys.key = :key"
)
_LATEST: Final = "SELECT verdict_id FROM verdicts ORDER BY at DESC, verdict_id DESC LIMIT :most"
_OLD: Final = f"at < :dead OR (at < :young AND verdict_id IS NOT NULL AND verdict_id NOT IN ({_LATEST}))"
_OLD_KEYS: Final = text(f"SELECT client, key FROM keys WHERE {_OLD}")  # noqa: S608 - constants
_FORGET_KEYS: Final = text(f"DELETE FROM keys WHERE {_OLD}")  # noqa: S608 - constants
_FORGET_VERDICTS: Final = text(
    f"DELETE FROM verdicts WHERE (at < :dead OR verdict_id NOT IN ({_LATEST})) "  # noqa: S608 - constants
    "AND verdict_id NOT IN (SELECT verdict_id FROM keys WHERE verdict_id IS NOT NULL)"
)


@dataclass(frozen=True, slots=True)
class Key:
    """One key of one client, and what it stands for."""

    client: str
    key: str
    body: str
    """Digest of the request's body."""
    task_id: str
    task_digest: str
    verifier_digest: str


@dataclass(frozen=True, slots=True)
class Kept:
    """What is known of a key."""

    body: str
    task_id: str
    task_digest: str
    verifier_digest: str
    verdict: str | None
    """The verdict's JSON text; None when the run that started was cut."""


@dataclass(slots=True)
class _Finished:
    key: Key | None
    verdict_id: str
    verdict: str
    log: bytes
    at: float
    kept: asyncio.Future[None]


class KeyStore:
    """Keys and verdicts in a SQLite file that this process alone has open. Made by `open_keys`; `close` it."""

    def __init__(self, database: Database, lock: int, *, clock: Callable[[], float] = time.time) -> None:
        """`lock` is the descriptor that keeps others out; `clock` is seconds since the epoch."""
        self._database = database
        self._lock = lock
        self._clock = clock
        self._there = {_short(row.client, row.key) for row in database.rows(text("SELECT client, key FROM keys"))}
        self._added: set[int] = set()
        """What joined `_there` while old keys are being forgotten: it is in use again, whatever goes."""
        self._pruning = False
        self._finished: list[_Finished] = []
        self._flushing: asyncio.Task[None] | None = None

    async def find(self, client: str, key: str) -> Kept | None:
        """What is known of a key, or None when it was never used."""
        if _short(client, key) not in self._there:
            return None

        def look(connection: Connection) -> Kept | None:
            row = connection.execute(_FIND, {"client": client, "key": key}).one_or_none()
            if row is None:
                return None
            return Kept(row.body, row.task_id, row.task_digest, row.verifier_digest, row.verdict)

        return await self._database.read(look)

    async def start(self, key: Key) -> None:
        """Keep that the run of a key starts; it is on disk when this returns. Raises `FailureEvent` (`persistence_failed`)."""
        row = _row(key, self._clock(), "started", None)
        self._add(key)
        await self._database.write(lambda connection: connection.execute(_START, row))

    async def finish(self, key: Key | None, verdict_id: str, verdict: str, log: bytes) -> None:
        """Keep a verdict, and that it is the key's; both are on disk when this returns. Raises as `start` does.

        What is finished while others are being written goes to disk together with the next of them.
        """
        one = _Finished(key, verdict_id, verdict, log, self._clock(), asyncio.get_running_loop().create_future())
        if key is not None:
            self._add(key)
        self._finished.append(one)
        if self._flushing is None:
            self._flushing = asyncio.create_task(self._flush())
        await one.kept

    async def verdict(self, verdict_id: str) -> str | None:
        """A verdict's JSON text, or None."""
        found: str | None = await self._one("verdict", verdict_id)
        return found

    async def log(self, verdict_id: str) -> bytes | None:
        """A verdict's log as it was kept, or None when there is no such verdict."""
        found: bytes | None = await self._one("log", verdict_id)
        return found

    async def prune(self) -> None:
        """Forget what is too old, and verdicts beyond the latest `VERDICTS_MAX` that no key needs."""
        now = self._clock()

        def forget(connection: Connection) -> set[int]:
            limits = {"most": VERDICTS_MAX, "dead": now - KEPT_S, "young": now - KEYS_KEPT_S}
            old = {_short(row.client, row.key) for row in connection.execute(_OLD_KEYS, limits)}
            connection.execute(_FORGET_KEYS, limits)
            connection.execute(_FORGET_VERDICTS, limits)
            return old

        self._pruning = True
        try:
            self._there -= await self._database.write(forget) - self._added
        finally:
            self._pruning = False
            self._added.clear()

    async def aclose(self) -> None:
        """Write what was handed over, then let another process have the store."""
        if self._flushing is not None:
            await self._flushing
        await asyncio.to_thread(self._database.close)
        os.close(self._lock)

    def _add(self, key: Key) -> None:
        short = _short(key.client, key.key)
        self._there.add(short)
        if self._pruning:
            self._added.add(short)

    async def _one(self, column: str, verdict_id: str) -> Any:
        statement = text(f"SELECT {column} FROM verdicts WHERE verdict_id = :verdict_id")  # noqa: S608 - a constant
        return await self._database.read(
            lambda connection: connection.execute(statement, {"verdict_id": verdict_id}).scalar_one_or_none()
        )

    async def _flush(self) -> None:
        while self._finished:
            batch, self._finished = self._finished, []
            try:
                await self._database.write(lambda connection, batch=batch: _finish(connection, batch))  # type: ignore[misc] # bound now
            except Exception as error:
                for one in batch:
                    if not one.kept.done():
                        one.kept.set_exception(error)
            else:
                for one in batch:
                    if not one.kept.done():
                        one.kept.set_result(None)
        self._flushing = None


def open_keys(path: Path, *, clock: Callable[[], float] = time.time) -> KeyStore:
    """The store at a path, made when it is not there. Blocks.

    Raises `StoreUnusable` when another server has it, or when it cannot be used.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = os.open(path.with_name(f"{path.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StoreUnusable(f"{path}: cannot be made: {error.strerror}") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise StoreUnusable(
            f"{path}: another server has it; stop that one, or give this one a place of its own (--keys FILE)"
        ) from None
    try:
        return KeyStore(open_database(path, _FORM), lock, clock=clock)
    except BaseException:
        os.close(lock)
        raise


def _finish(connection: Connection, batch: list[_Finished]) -> None:
    connection.execute(
        _KEEP, [{"verdict_id": o.verdict_id, "at": o.at, "verdict": o.verdict, "log": o.log} for o in batch]
    )
    keyed = [_row(one.key, one.at, "done", one.verdict_id) for one in batch if one.key is not None]
    if keyed:
        connection.execute(_FINISH, keyed)


def _row(key: Key, at: float, state: str, verdict_id: str | None) -> dict[str, object]:
    return {
        "client": key.client,
        "key": key.key,
        "at": at,
        "body": key.body,
        "task_id": key.task_id,
        "task_digest": key.task_digest,
        "verifier_digest": key.verifier_digest,
        "state": state,
        "verdict_id": verdict_id,
    }


def _short(client: str, key: str) -> int:
    """Enough to tell keys apart: a set of millions of them must fit into memory."""
    return int.from_bytes(hashlib.blake2b(f"{client}\0{key}".encode(), digest_size=16).digest(), "big")

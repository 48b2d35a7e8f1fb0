"""What a database says when it fails, as something a person can act on."""

from __future__ import annotations

import sqlite3
from typing import Final

from sqlalchemy.exc import DBAPIError, IntegrityError, NotSupportedError, ProgrammingError, SQLAlchemyError

from assay.failures import FailureEvent
from assay.failures.kinds import PERSISTENCE_FAILED
from assay.grading import WrongArgument


class StoreUnusable(WrongArgument):
    """A store that cannot be used as it is: of a newer Assay, of another kind, not there. Says what to do instead."""


_THE_WORKS_OWN: Final = (IntegrityError, ProgrammingError, NotSupportedError)

_SQLITE: Final = {
    sqlite3.SQLITE_FULL: "the disk is full; make room, then run the command again",
    sqlite3.SQLITE_IOERR: "the disk failed (a read or a write); look at the system's log, then run the command again",
    sqlite3.SQLITE_BUSY: "another program holds it; wait for that to end",
    sqlite3.SQLITE_LOCKED: "another program holds it; wait for that to end",
    sqlite3.SQLITE_READONLY: "it may not be written; give this user the right to write it and its folder",
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened; its folder must be there, and be this user's to write",
    sqlite3.SQLITE_CORRUPT: "the file is damaged; copy it away, and save what is readable with `sqlite3 FILE .recover`",
    sqlite3.SQLITE_NOTADB: "the file is no SQLite database; give another",
    sqlite3.SQLITE_NOMEM: "this machine is out of memory",
}
_POSTGRESQL: Final = {
    "53100": "the server's disk is full; make room there, then run the command again",
    "53200": "the server is out of memory",
    "53300": "the server has no connection left; close others, or raise max_connections",
    "58030": "the server's disk failed; look at its log",
    "28P01": "the server refuses the password",
    "28000": "the server refuses this user",
    "3D000": "the server has no such database; create it",
    "42501": "the user lacks a right there; it must be allowed to create a schema",
    "25006": "the server only reads (a standby?); name the one that writes",
}
_WORTH_ANOTHER_TRY: Final = ("40001", "40P01", "57P01", "57P02", "57P03", "08")
"""SQLSTATEs: a serialization failure, a deadlock, a server that shuts down or starts up, a lost connection."""


def is_fault(error: BaseException) -> bool:
    """Whether the database failed, rather than what it was asked to do."""
    return isinstance(error, DBAPIError) and not isinstance(error, _THE_WORKS_OWN)


def may_pass(error: BaseException) -> bool:
    """Whether the same transaction may succeed a moment later. SQLite has waited for its lock already."""
    if not isinstance(error, DBAPIError) or isinstance(error.orig, sqlite3.Error):
        return False
    state = _sqlstate(error)
    return error.connection_invalidated or (not state and is_fault(error)) or state.startswith(_WORTH_ANOTHER_TRY)


def explained(error: BaseException, where: str) -> BaseException:
    """The error itself, or for a fault of the database a `persistence_failed` that says where and what to do."""
    if not is_fault(error) and not (isinstance(error, SQLAlchemyError) and not isinstance(error, DBAPIError)):
        return error
    failure = FailureEvent(PERSISTENCE_FAILED, f"{where}: {advice(error)}", boundary="collection")
    failure.__cause__ = error
    return failure


def advice(error: BaseException) -> str:
    """What is wrong with a database, and what to do about it, in a sentence."""
    original = error.orig if isinstance(error, DBAPIError) else error
    said = str(original).strip().splitlines()[0] if str(original).strip() else type(original).__name__
    if isinstance(original, sqlite3.Error):
        code = getattr(original, "sqlite_errorcode", 0)
        # The low byte is the kind; what is above it says more exactly which call failed.
        known = _SQLITE.get(code & 0xFF)
    else:
        known = _POSTGRESQL.get(_sqlstate(error))
    return f"{known} ({said})" if known is not None else said


def _sqlstate(error: BaseException) -> str:
    original = error.orig if isinstance(error, DBAPIError) else error
    return getattr(original, "sqlstate", None) or ""

"""The tables of a run, as they came to be (`RUNS`) and as queries name them.

`answer`, `trajectory`, `verdict`, `metric`, `attempt` and `event` are only ever added to (an attempt is ended once). `identity`
is their summary, one narrow row for each (task, rollout): what is kept of it and what its current verdict says. It is
changed in the transaction that adds what it sums up, and every count and mean is taken from it. Large texts are last in
their rows, where a query that does not want them does not read them.

Times are seconds since the epoch. JSON is kept as ASCII text, which no database refuses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Final

from sqlalchemy import BigInteger, Column, Connection, Float, Integer, LargeBinary, MetaData, Table, Text
from sqlalchemy.dialects import postgresql, sqlite

from assay.answers.migrations import Form

_FIRST: Final = (
    "CREATE TABLE run (id TEXT PRIMARY KEY, created_at {real} NOT NULL, settings TEXT NOT NULL)",
    """CREATE TABLE command (
        id TEXT PRIMARY KEY, name TEXT NOT NULL, began_at {real} NOT NULL, ended_at {real}, settings TEXT NOT NULL)""",
    """CREATE TABLE answer (
        id TEXT PRIMARY KEY, task_id {text} NOT NULL, rollout INTEGER NOT NULL, task_digest TEXT, snapshot TEXT,
        agent TEXT NOT NULL, created_at {real} NOT NULL, agent_settings TEXT NOT NULL, dropped TEXT NOT NULL,
        extra TEXT NOT NULL, response TEXT, UNIQUE (task_id, rollout))""",
    "CREATE TABLE trajectory (answer_id TEXT PRIMARY KEY REFERENCES answer (id), zstd {bytes} NOT NULL)",
    """CREATE TABLE attempt (
        id TEXT PRIMARY KEY, task_id {text} NOT NULL, rollout INTEGER NOT NULL, answer_id TEXT REFERENCES answer (id),
        stage TEXT NOT NULL, command_id TEXT REFERENCES command (id), owner TEXT NOT NULL, repeatable INTEGER NOT NULL,
        began_at {real} NOT NULL, ended_at {real}, outcome TEXT, kind TEXT, verdict_id TEXT)""",
    "CREATE INDEX attempt_of ON attempt (task_id, rollout)",
    "CREATE INDEX attempt_open ON attempt (id) WHERE ended_at IS NULL",
    """CREATE TABLE event (
        attempt_id TEXT NOT NULL REFERENCES attempt (id), number INTEGER NOT NULL, kind TEXT NOT NULL, record TEXT NOT NULL,
        PRIMARY KEY (attempt_id, number))""",
    """CREATE TABLE verdict (
        seq {serial}, id TEXT NOT NULL UNIQUE, answer_id TEXT NOT NULL REFERENCES answer (id),
        command_id TEXT REFERENCES command (id), attempt_id TEXT REFERENCES attempt (id), status TEXT NOT NULL,
        reward {real}, verifier_digest TEXT, kind TEXT, caused_by TEXT, proven INTEGER NOT NULL, provisional INTEGER NOT NULL,
        flaky INTEGER NOT NULL, recoverable INTEGER NOT NULL, terminal INTEGER NOT NULL, evidence_key TEXT, settles TEXT,
        replaced BIGINT, created_at {real} NOT NULL, body TEXT NOT NULL)""",
    "CREATE INDEX verdict_of ON verdict (answer_id, seq)",
    "CREATE INDEX verdict_by ON verdict (command_id, seq)",
    """CREATE TABLE metric (
        verdict_seq BIGINT NOT NULL, name TEXT NOT NULL, value {real} NOT NULL, PRIMARY KEY (verdict_seq, name))""",
    """CREATE TABLE evidence (
        key TEXT PRIMARY KEY, task_id TEXT NOT NULL, verifier_digest TEXT, proven_by TEXT, floor {real}, at {real} NOT NULL)""",
    """CREATE TABLE identity (
        task_id {text} NOT NULL, rollout INTEGER NOT NULL, position BIGINT NOT NULL, answer_id TEXT REFERENCES answer (id),
        verdict_seq BIGINT, status TEXT, reward {real}, verifier_digest TEXT, kind TEXT, caused_by TEXT,
        proven INTEGER NOT NULL DEFAULT 0, provisional INTEGER NOT NULL DEFAULT 0, flaky INTEGER NOT NULL DEFAULT 0,
        recoverable INTEGER NOT NULL DEFAULT 0, terminal INTEGER NOT NULL DEFAULT 0, tries INTEGER NOT NULL DEFAULT 0,
        evidence_key TEXT, command_id TEXT, lease_owner TEXT, lease_until {real}, PRIMARY KEY (task_id, rollout))""",
    "CREATE INDEX identity_order ON identity (position, task_id, rollout)",
    "CREATE INDEX identity_answer ON identity (answer_id)",
    "CREATE INDEX identity_owner ON identity (lease_owner)",
    "CREATE INDEX identity_provisional ON identity (evidence_key) WHERE provisional = 1",
)

RUNS: Final = Form("runs", (_FIRST,))

INTERRUPTED: Final = "interrupted"
"""The outcome of an attempt whose process is gone."""

_tables: Final = MetaData()


def _table(name: str, *columns: Column[str] | Column[int] | Column[float] | Column[bytes]) -> Table:
    return Table(name, _tables, *columns)


def _text(name: str, *, null: bool = False, key: bool = False) -> Column[str]:
    return Column(name, Text, nullable=null, primary_key=key)


def _real(name: str, *, null: bool = False) -> Column[float]:
    return Column(name, Float(53), nullable=null)


def _integer(name: str, *, null: bool = False, key: bool = False, big: bool = False) -> Column[int]:
    return Column(name, BigInteger if big else Integer, nullable=null, primary_key=key)


run: Final = _table("run", _text("id", key=True), _real("created_at"), _text("settings"))

command: Final = _table(
    "command",
    _text("id", key=True),
    _text("name"),
    _real("began_at"),
    _real("ended_at", null=True),
    _text("settings"),
)

answer: Final = _table(
    "answer",
    _text("id", key=True),
    _text("task_id"),
    _integer("rollout"),
    _text("task_digest", null=True),
    _text("snapshot", null=True),
    _text("agent"),
    _real("created_at"),
    _text("agent_settings"),
    _text("dropped"),
    _text("extra"),
    _text("response", null=True),
)

trajectory: Final = _table("trajectory", _text("answer_id", key=True), Column("zstd", LargeBinary, nullable=False))

attempt: Final = _table(
    "attempt",
    _text("id", key=True),
    _text("task_id"),
    _integer("rollout"),
    _text("answer_id", null=True),
    _text("stage"),
    _text("command_id", null=True),
    _text("owner"),
    _integer("repeatable"),
    _real("began_at"),
    _real("ended_at", null=True),
    _text("outcome", null=True),
    _text("kind", null=True),
    _text("verdict_id", null=True),
)

event: Final = _table(
    "event", _text("attempt_id", key=True), _integer("number", key=True), _text("kind"), _text("record")
)

verdict: Final = _table(
    "verdict",
    _integer("seq", key=True, big=True),
    _text("id"),
    _text("answer_id"),
    _text("command_id", null=True),
    _text("attempt_id", null=True),
    _text("status"),
    _real("reward", null=True),
    _text("verifier_digest", null=True),
    _text("kind", null=True),
    _text("caused_by", null=True),
    _integer("proven"),
    _integer("provisional"),
    _integer("flaky"),
    _integer("recoverable"),
    _integer("terminal"),
    _text("evidence_key", null=True),
    _text("settles", null=True),
    _integer("replaced", null=True, big=True),
    _real("created_at"),
    _text("body"),
)

metric: Final = _table("metric", _integer("verdict_seq", key=True, big=True), _text("name", key=True), _real("value"))

evidence: Final = _table(
    "evidence",
    _text("key", key=True),
    _text("task_id"),
    _text("verifier_digest", null=True),
    _text("proven_by", null=True),
    _real("floor", null=True),
    _real("at"),
)

identity: Final = _table(
    "identity",
    _text("task_id", key=True),
    _integer("rollout", key=True),
    _integer("position", big=True),
    _text("answer_id", null=True),
    _integer("verdict_seq", null=True, big=True),
    _text("status", null=True),
    _real("reward", null=True),
    _text("verifier_digest", null=True),
    _text("kind", null=True),
    _text("caused_by", null=True),
    _integer("proven"),
    _integer("provisional"),
    _integer("flaky"),
    _integer("recoverable"),
    _integer("terminal"),
    _integer("tries"),
    _text("evidence_key", null=True),
    _text("command_id", null=True),
    _text("lease_owner", null=True),
    _real("lease_until", null=True),
)
TABLES: Final = tuple(_tables.tables.values())


def insert_once(connection: Connection, table: Table, values: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
    """Insert rows; those whose key is there already are left as they are."""
    connection.execute(inserting_once(connection.dialect.name, table), values)


@cache
def inserting_once(dialect: str, table: Table) -> postgresql.Insert | sqlite.Insert:
    """The statement of `insert_once`, made once: building one costs more than running it."""
    if dialect == "postgresql":
        return postgresql.insert(table).on_conflict_do_nothing()
    return sqlite.insert(table).on_conflict_do_nothing()

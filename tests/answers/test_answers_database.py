"""One store of rows, the same in both kinds of database."""

from __future__ import annotations

import asyncio
import resource
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, text

from assay.answers import Database, Form, StoreUnusable, open_database
from assay.failures import FailureEvent
from places import Where

FIRST = ("CREATE TABLE thing (id TEXT PRIMARY KEY, n BIGINT NOT NULL, body {bytes}, seen {real})",)
SECOND = ("CREATE TABLE other (id {serial}, thing_id TEXT NOT NULL REFERENCES thing (id))",)
THINGS = Form("things", (FIRST,))
NEWER = Form("things", (FIRST, SECOND))


@pytest.fixture
def database(where: Where) -> Iterator[Database]:
    with open_database(where.place, NEWER, namespace=where.namespace, pause=lambda _: None) as opened:
        yield opened


def put(name: str, n: int = 0) -> Callable[[Connection], str]:
    def work(connection: Connection) -> str:
        connection.execute(text("INSERT INTO thing (id, n) VALUES (:id, :n)"), {"id": name, "n": n})
        return name

    return work


def names(connection: Connection) -> list[str]:
    return list(connection.execute(text("SELECT id FROM thing ORDER BY id")).scalars())


async def test_what_is_written_is_read_by_the_next_process(database: Database, where: Where) -> None:
    assert await database.write(put("a")) == "a"
    assert database.write_now(put("b")) == "b"
    assert await database.read(names) == ["a", "b"]
    with open_database(where.place, NEWER, namespace=where.namespace, writing=False) as another:
        assert another.read_now(names) == ["a", "b"]


async def test_many_waiting_writes_share_commits_and_keep_their_order(database: Database) -> None:
    began = threading.Event()
    commits = []

    def slow(connection: Connection) -> None:
        began.wait(10)

    first = database.submit(slow)

    def counted(number: int) -> Callable[[Connection], None]:
        def work(connection: Connection) -> None:
            put(f"{number:03}")(connection)
            commits.append(id(connection.get_transaction()))

        return work

    waiting = [database.submit(counted(number)) for number in range(100)]
    began.set()
    first.result(10)
    for future in waiting:
        future.result(10)
    assert len(set(commits)) == 1
    assert await database.read(names) == [f"{number:03}" for number in range(100)]


def raising(connection: Connection) -> None:
    put("never")(connection)
    raise LookupError("the work's own")


def conflicting(connection: Connection) -> None:
    put("never")(connection)
    put("a")(connection)


def orphan(connection: Connection) -> None:
    put("never")(connection)
    connection.execute(text("INSERT INTO other (thing_id) VALUES ('nobody')"))


def nonsense(connection: Connection) -> None:
    put("never")(connection)
    connection.execute(text("SELECT * FROM no_such_table"))


@pytest.mark.parametrize("spoiler", [raising, conflicting, orphan, nonsense])
def test_a_write_that_raises_spoils_no_other(database: Database, spoiler: Callable[[Connection], Any]) -> None:
    database.write_now(put("a"))
    held = threading.Event()
    first = database.submit(lambda _: held.wait(10))
    before, bad, after = (database.submit(work) for work in (put("b"), spoiler, put("c")))
    held.set()
    assert first.result(10)
    assert (before.result(10), after.result(10)) == ("b", "c")
    with pytest.raises(Exception, match=r"own|thing|FOREIGN|foreign|other|no_such_table"):
        bad.result(10)
    assert database.read_now(names) == ["a", "b", "c"]


async def test_who_stops_waiting_does_not_undo_a_write(database: Database) -> None:
    held = threading.Event()
    database.submit(lambda _: held.wait(10))
    waiting = asyncio.ensure_future(database.write(put("kept")))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    held.set()
    database.write_now(put("later"))
    assert database.read_now(names) == ["kept", "later"]


def test_closing_makes_what_was_handed_over(where: Where) -> None:
    opened = open_database(where.place, THINGS, namespace=where.namespace)
    waiting = [opened.submit(put(f"{number}")) for number in range(20)]
    opened.close()
    opened.close()
    assert [future.result(0) for future in waiting] == [f"{number}" for number in range(20)]
    with pytest.raises(RuntimeError, match="closed"):
        opened.submit(put("late"))


def test_readers_cannot_write(database: Database) -> None:
    with pytest.raises(FailureEvent, match=r"read-?only|readonly"):
        database.read_now(put("a"))
    assert database.read_now(names) == []


def test_a_reader_sees_one_state_while_others_write(database: Database) -> None:
    database.write_now(put("a"))

    def twice(connection: Connection) -> list[list[str]]:
        first = names(connection)
        database.write_now(put(f"b{len(first)}"))
        return [first, names(connection)]

    assert database.read_now(twice) == [["a"], ["a"]]


def test_rows_are_streamed_while_others_write(database: Database) -> None:
    database.write_now(
        lambda c: (
            c.execute(text("INSERT INTO thing (id, n) VALUES (:id, 0)"), [{"id": f"{n:04}"} for n in range(2000)])
            and None
        )
    )
    stream = database.rows(text("SELECT id FROM thing ORDER BY id"), at_once=10)
    assert next(stream).id == "0000"
    database.write_now(put("zzz"))
    assert sum(1 for _ in stream) == 1999


def test_bytes_numbers_and_a_key_that_counts(database: Database) -> None:
    def work(connection: Connection) -> None:
        values = {"id": "x", "n": 2**62, "body": b"\0\xff", "seen": 0.1}
        connection.execute(text("INSERT INTO thing (id, n, body, seen) VALUES (:id, :n, :body, :seen)"), values)
        for _ in range(2):
            connection.execute(text("INSERT INTO other (thing_id) VALUES ('x')"))

    database.write_now(work)
    row = next(database.rows(text("SELECT n, body, seen FROM thing")))
    assert (row.n, bytes(row.body), row.seen) == (2**62, b"\0\xff", 0.1)
    assert [row.id for row in database.rows(text("SELECT id FROM other ORDER BY id"))] == [1, 2]


def test_an_older_store_is_brought_up_to_date(where: Where) -> None:
    with open_database(where.place, THINGS, namespace=where.namespace) as older:
        older.write_now(put("kept"))
    with pytest.raises(StoreUnusable, match="an older Assay wrote it"):
        open_database(where.place, NEWER, namespace=where.namespace, writing=False)
    with open_database(where.place, NEWER, namespace=where.namespace) as newer:
        newer.write_now(lambda c: c.execute(text("INSERT INTO other (thing_id) VALUES ('kept')")) and None)
        assert newer.read_now(names) == ["kept"]


@pytest.mark.parametrize("writing", [True, False])
def test_a_newer_store_is_refused_and_left_alone(where: Where, writing: bool) -> None:
    open_database(where.place, NEWER, namespace=where.namespace).close()
    with pytest.raises(StoreUnusable, match=r"a newer Assay wrote it \(form 2, this one knows 1\)"):
        open_database(where.place, THINGS, namespace=where.namespace, writing=writing)
    open_database(where.place, NEWER, namespace=where.namespace, writing=False).close()


def test_a_store_of_another_kind_is_refused(where: Where) -> None:
    open_database(where.place, THINGS, namespace=where.namespace).close()
    with pytest.raises(StoreUnusable, match="a store of things, not of keys"):
        open_database(where.place, Form("keys", (FIRST,)), namespace=where.namespace)


def test_nothing_is_made_for_reading(where: Where, tmp_path: Path) -> None:
    with pytest.raises(StoreUnusable, match="nothing is kept there yet"):
        open_database(where.place, THINGS, namespace=where.namespace, writing=False)
    assert list(tmp_path.iterdir()) == []


def test_a_step_that_fails_leaves_nothing(where: Where) -> None:
    broken = Form("things", (FIRST, ("CREATE TABLE other (id {serial})", "CREATE TABLE thing (id TEXT)")))
    with pytest.raises(StoreUnusable, match="already exists"):
        open_database(where.place, broken, namespace=where.namespace)
    with open_database(where.place, NEWER, namespace=where.namespace) as opened:
        assert opened.read_now(names) == []


MAKE = """
import sys
from assay.answers import Form, open_database
form = Form("things", tuple((f"CREATE TABLE t{n} (id {{serial}})",) for n in range(5)))
open_database(sys.argv[1], form, namespace=sys.argv[2]).close()
"""


def test_processes_that_open_a_new_store_at_once_do_not_disturb_each_other(where: Where) -> None:
    command = [sys.executable, "-c", MAKE, where.place, where.namespace]
    running = [subprocess.Popen(command, stderr=subprocess.PIPE) for _ in range(3)]
    assert [(process.communicate()[1], process.returncode) for process in running] == [(b"", 0)] * 3


def foreign(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE theirs (id)")
    connection.close()


BAD_FILES = {
    "text": (lambda path: path.write_text("not a database " * 100), "no SQLite database"),
    "folder": (lambda path: path.mkdir(), "cannot be opened"),
    "theirs": (foreign, "tables that are not Assay's"),
    "no folder": (lambda path: path.parent.rmdir(), "cannot be opened"),
}


@pytest.mark.parametrize(("make", "said"), BAD_FILES.values(), ids=BAD_FILES)
def test_a_file_that_is_no_store_is_refused(tmp_path: Path, make: Callable[[Path], object], said: str) -> None:
    path = tmp_path / "folder" / "run.sqlite"
    path.parent.mkdir()
    make(path)
    with pytest.raises(StoreUnusable, match=said):
        open_database(path, THINGS)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("mysql://me:hunter2@host/db", "postgresql://USER"),
        ("postgresql://me:hunter2@host:notaport/db", "cannot be read"),
        ("postgresql://me:hunter2@127.0.0.1:1/db", r"postgresql://me:\*\*\*@127.0.0.1:1/db .*cannot be opened"),
    ],
)
def test_a_url_that_leads_nowhere_is_refused_without_its_password(url: str, said: str) -> None:
    with pytest.raises(StoreUnusable, match=said) as raised:
        open_database(url, THINGS)
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize("namespace", ["", "Upper", 'quo"te', "a" * 64, "1st"])
def test_a_namespace_is_a_plain_name(tmp_path: Path, namespace: str) -> None:
    with pytest.raises(StoreUnusable, match="a-z, 0-9 and _"):
        open_database(tmp_path / "x", THINGS, namespace=namespace)


def test_namespaces_do_not_see_each_other(in_postgresql: Where) -> None:
    with (
        open_database(in_postgresql.place, THINGS, namespace=in_postgresql.namespace) as one,
        open_database(in_postgresql.place, THINGS, namespace=f"{in_postgresql.namespace}_b") as two,
    ):
        one.write_now(put("a"))
        assert two.read_now(names) == []


def test_a_commit_waits_for_the_disk(where: Where) -> None:
    with open_database(where.place, THINGS, namespace=where.namespace) as opened:
        if where.place.startswith("postgresql"):
            asked = opened.submit(lambda c: c.exec_driver_sql("SHOW synchronous_commit").scalar()).result()
            assert asked == "on"
        else:
            pragmas = ("journal_mode", "synchronous", "foreign_keys")
            values = opened.write_now(lambda c: [c.exec_driver_sql(f"PRAGMA {name}").scalar() for name in pragmas])
            assert values == ["wal", 2, 1]


def filling(connection: Connection) -> None:
    connection.exec_driver_sql("PRAGMA max_page_count=1")
    put("x" * 100_000)(connection)


def test_a_full_disk_is_said_and_spoils_no_other_write(tmp_path: Path) -> None:
    with open_database(tmp_path / "run.sqlite", THINGS) as opened:
        held = threading.Event()
        opened.submit(lambda _: held.wait(10))
        before, full, after = (opened.submit(work) for work in (put("a"), filling, put("b")))
        held.set()
        with pytest.raises(FailureEvent, match=r"run\.sqlite: the disk is full; make room") as raised:
            full.result(10)
        assert raised.value.kind == "persistence_failed"
        assert (before.result(10), after.result(10)) == ("a", "b")
        assert opened.read_now(names) == ["a", "b"]


def test_a_failing_disk_is_said_and_the_next_write_is_made(tmp_path: Path) -> None:
    """The file may grow no further: the system's write fails, as on a bad disk."""
    with open_database(tmp_path / "run.sqlite", THINGS) as opened:
        opened.write_now(put("kept"))
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
        try:
            with pytest.raises(FailureEvent, match=r"run\.sqlite: the disk failed"):
                opened.write_now(put("lost"))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        opened.write_now(put("later"))
        assert opened.read_now(names) == ["kept", "later"]


def test_a_write_whose_connection_is_cut_is_made_again(in_postgresql: Where) -> None:
    with open_database(in_postgresql.place, THINGS, namespace=in_postgresql.namespace, pause=lambda _: None) as opened:
        cut = []

        def work(connection: Connection) -> None:
            put("once")(connection)
            if not cut:
                cut.append(connection.exec_driver_sql("SELECT pg_backend_pid()").scalar())
                opened.read_now(lambda c: c.exec_driver_sql(f"SELECT pg_terminate_backend({cut[0]}, 5000)").scalar())
                connection.exec_driver_sql("SELECT 1")

        opened.write_now(work)
        assert (len(cut), opened.read_now(names)) == (1, ["once"])


def test_two_writers_that_lock_each_other_both_get_through(in_postgresql: Where) -> None:
    place, namespace = in_postgresql.place, in_postgresql.namespace
    with (
        open_database(place, THINGS, namespace=namespace) as one,
        open_database(place, THINGS, namespace=namespace) as two,
    ):
        one.write_now(put("a"))
        one.write_now(put("b"))
        met = threading.Barrier(2)

        def bump(first: str, second: str) -> Callable[[Connection], None]:
            tried = []

            def work(connection: Connection) -> None:
                connection.execute(text("UPDATE thing SET n = n + 1 WHERE id = :id"), {"id": first})
                if not tried:
                    tried.append(1)
                    met.wait(10)
                connection.execute(text("UPDATE thing SET n = n + 1 WHERE id = :id"), {"id": second})

            return work

        waiting = [one.submit(bump("a", "b")), two.submit(bump("b", "a"))]
        for future in waiting:
            future.result(30)
        assert [row.n for row in one.rows(text("SELECT n FROM thing ORDER BY id"))] == [2, 2]

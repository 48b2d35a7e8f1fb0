"""Connections that are slow, large, garbled, or too many: spoken to byte by byte."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from assay.server import Limits
from serving import ScriptedGrader, Served, served, until

Wire = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def connected(server: Served) -> AsyncIterator[Wire]:
    reader, writer = await asyncio.open_connection("127.0.0.1", int(server.server.url.rpartition(":")[2]))
    try:
        yield reader, writer
    finally:
        writer.close()
        await asyncio.gather(writer.wait_closed(), return_exceptions=True)


async def rest(reader: asyncio.StreamReader) -> bytes:
    """Until the server closes, however it does."""
    try:
        return await reader.read()
    except ConnectionError:
        return b""


async def reply(reader: asyncio.StreamReader) -> bytes:
    """One reply with a known length."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
    return head + await reader.readexactly(int(length.split(b":")[1]))


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: x\r\n",
        b"POST /verify HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{",
        b"POST /verify HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{",
        b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\nGET /hea",
    ],
    ids=["nothing", "a line", "half a head", "half a body", "half a chunk", "half a second head"],
)
async def test_who_is_too_slow_is_cut_off_without_a_status(dataset: Path, tmp_path: Path, sent: bytes) -> None:
    limits = Limits(head_s=0.1, body_s=0.1)
    async with (
        served(dataset, state=tmp_path / "state", limits=limits) as server,
        connected(server) as (reader, writer),
    ):
        writer.write(sent)
        heard = await rest(reader)
    assert heard.count(b"HTTP/1.1") == sent.count(b"\r\n\r\nGET")
    assert server.grader.visits == {}


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET /healthz HTTP/1.1\r\nHost: x\r\nA: " + b"x" * 2000 + b"\r\n\r\n", 431),
        (b"GET /healthz HTTP/1.1\r\nHost: x\r\nA: " + b"x" * 2000, 431),
        (b"GET /" + b"x" * 2000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 431),
        (b"GET /healthz HTTP/1.1\r\nHost: x\r\n" + b"".join(b"A%d: b\r\n" % n for n in range(200)) + b"\r\n", 431),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
        (b"hello\r\n\r\n", 400),
        (b"GET /healthz HTTP/9.9\r\n\r\n", 400),
        (b"POST /verify HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n", 400),
        (b"POST /verify HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (b"CONNECT host:80 HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"GET http://[ HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    ],
)
async def test_a_head_that_is_too_large_or_no_http(dataset: Path, tmp_path: Path, sent: bytes, status: int) -> None:
    limits = Limits(header_bytes=1000)
    async with (
        served(dataset, state=tmp_path / "state", limits=limits) as server,
        connected(server) as (reader, writer),
    ):
        writer.write(sent)
        heard = await rest(reader)
        assert heard.startswith(b"HTTP/1.1 %d " % status), heard
        assert b"x-assay-verifier: " in heard
        assert (await server.ask("GET", "/healthz")).status == 200


async def test_a_large_body_beside_a_small_head_limit(dataset: Path, tmp_path: Path) -> None:
    async with served(dataset, state=tmp_path / "state", limits=Limits(header_bytes=1000)) as server:
        assert (await server.verify(answer="a", padding="x" * 300_000)).status == 200


async def test_one_request_after_the_other_on_one_connection(dataset: Path, tmp_path: Path) -> None:
    request = b'POST /verify HTTP/1.1\r\nHost: x\r\nContent-Length: 15\r\n\r\n{"answer": "a"}'
    async with served(dataset, state=tmp_path / "state") as server, connected(server) as (reader, writer):
        for _ in range(2):
            writer.write(request)
            assert (await reply(reader)).startswith(b"HTTP/1.1 200")
        writer.write(request * 3)
        for _ in range(3):
            assert (await reply(reader)).startswith(b"HTTP/1.1 200")
    assert server.grader.visits == {"a": 5}


async def test_the_body_of_a_request_that_came_right_behind_another_is_no_head(dataset: Path, tmp_path: Path) -> None:
    body = b'{"answer": "b", "padding": "' + b"x" * 5000 + b'"}'
    head = b"POST /verify HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
    async with (
        served(dataset, state=tmp_path / "state", limits=Limits(header_bytes=1000)) as server,
        connected(server) as (reader, writer),
    ):
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n" + head)
        assert (await reply(reader)).startswith(b"HTTP/1.1 200")
        for start in range(0, len(body), 2000):
            writer.write(body[start : start + 2000])
            await writer.drain()
            await asyncio.sleep(0)
        assert (await reply(reader)).startswith(b"HTTP/1.1 200")
        # And the head after it is bounded as any other.
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\nA: " + b"x" * 2000)
        assert (await rest(reader)).startswith(b"HTTP/1.1 431")
    assert server.grader.visits == {"b": 1}


async def test_a_refusal_in_the_middle_of_a_body_leaves_the_connection_usable(dataset: Path, tmp_path: Path) -> None:
    async with (
        served(dataset, state=tmp_path / "state", limits=Limits(body_bytes=1000)) as server,
        connected(server) as (reader, writer),
    ):
        writer.write(b"POST /verify HTTP/1.1\r\nHost: x\r\nContent-Length: 200000\r\n\r\n")
        assert (await reply(reader)).startswith(b"HTTP/1.1 413")
        writer.write(b"x" * 200_000 + b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await reply(reader)).startswith(b"HTTP/1.1 200")


async def test_nothing_is_sent_that_is_not_asked_for(dataset: Path, tmp_path: Path) -> None:
    """`Expect: 100-continue` on a body that is too large: the refusal comes instead of the go-ahead."""
    async with (
        served(dataset, state=tmp_path / "state", limits=Limits(body_bytes=1000)) as server,
        connected(server) as (reader, writer),
    ):
        head = b"POST /verify HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: "
        writer.write(head + b"2000\r\n\r\n")
        assert (await reply(reader)).startswith(b"HTTP/1.1 413")
    async with served(dataset, state=tmp_path / "state") as server, connected(server) as (reader, writer):
        writer.write(head + b"2\r\n\r\n")
        assert await reader.readexactly(25) == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"{}")
        assert (await reply(reader)).startswith(b"HTTP/1.1 200")


async def test_more_connections_than_allowed_wait(dataset: Path, tmp_path: Path) -> None:
    async with (
        served(dataset, state=tmp_path / "state", limits=Limits(connections=2)) as server,
        connected(server) as first,
        connected(server),
        connected(server) as third,
    ):
        third[1].write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        first[1].write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await reply(first[0])).startswith(b"HTTP/1.1 200")
        waiting = asyncio.create_task(reply(third[0]))
        assert not waiting.done()
        assert len(server.server.listener._connections()) == 2
        first[1].close()
        assert (await waiting).startswith(b"HTTP/1.1 200")


async def test_a_client_that_does_not_read_its_reply_holds_nothing_up(dataset: Path, tmp_path: Path) -> None:
    grader = ScriptedGrader()
    async with served(dataset, grader, state=tmp_path / "state") as server, connected(server) as (_, writer):
        body = b'{"answer": "a", "padding": "' + b"x" * 4_000_000 + b'"}'
        writer.write(b"POST /verify HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        await until(lambda: bool(grader.visits["a"]))
        assert (await server.verify(answer="b")).status == 200

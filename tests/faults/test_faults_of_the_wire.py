"""Every way to lose a reply, met by a verify call, against verifiers that say different things of themselves.

Each cell says `runs tries end`: how often the verifier ran, how many attempts there were, and what came of the call:
`graded`, `lost` (the reply was, and a resend would not have been provably harmless or was lost as well), `HTTP n` (the
verifier's own answer) or `refused` (nothing that another attempt changes).

The columns: a verifier that says `stateless`; one that says `unsupported`; one that cannot say; one that says
`unsupported` and keeps idempotency keys. In the first table the first attempt alone meets the fault, in the second each.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import pytest

from assay.client import ServerClient, is_verify_transport_error, masked_verify_failure, verify_with_transport_retry
from assay.client.testing import ScriptedVerifier, dropping, faults, refusing, silent
from assay.failures import FailureEvent
from jumping import run

CERTIFICATE = Path(__file__).with_name("self_signed.pem")

VERIFIERS: dict[str, dict[str, Any]] = {
    "stateless": {"reverify_mode": "stateless"},
    "unsupported": {"reverify_mode": "unsupported"},
    "cannot say": {"reverify_mode": None},
    "keeps keys": {"reverify_mode": "unsupported", "keeps_keys": True},
}


@dataclass(frozen=True)
class Door:
    """An address at which the request never arrives."""

    opened: Callable[[], contextlib.AbstractContextManager[str]]
    scheme: str = "http"


@contextlib.contextmanager
def nowhere() -> Iterator[str]:
    yield "nowhere.invalid"


@contextlib.contextmanager
def nothing() -> Iterator[str]:
    yield "[1"


class Row(NamedTuple):
    name: str
    fault: faults.Fault | Door
    error: str
    """The class of the cause of each event."""
    once: tuple[str, str, str, str]
    always: tuple[str, str, str, str]
    request_bytes: int = 0


NEVER_DELIVERED = (("1 2 graded",) * 4, ("0 4 lost",) * 4)
LOST = (
    ("2 2 graded", "1 1 lost", "1 1 lost", "1 2 graded"),
    ("4 4 lost", "1 1 lost", "1 1 lost", "1 4 lost"),
)
NEVER_READ = (
    ("1 2 graded", "0 1 lost", "0 1 lost", "1 2 graded"),
    ("0 4 lost", "0 1 lost", "0 1 lost", "0 4 lost"),
)


def the_same(cell: str) -> tuple[tuple[str, str, str, str], tuple[str, str, str, str]]:
    return (cell, cell, cell, cell), (cell, cell, cell, cell)


# fmt: off
TABLE = [
    # The request surely never arrived: sent again to anyone.
    Row("DNS failure", Door(nowhere), "ClientConnectorDNSError", *NEVER_DELIVERED),
    Row("refused", Door(refusing), "ClientConnectorError", *NEVER_DELIVERED),
    Row("SYN dropped", Door(dropping), "ConnectionTimeoutError", *NEVER_DELIVERED),
    Row("TLS handshake hangs", Door(silent, "https"), "ConnectionTimeoutError", *NEVER_DELIVERED),
    Row("bad URL", Door(nothing), "InvalidUrlClientError", *the_same("0 1 refused")),
    # It may have arrived, and there is no reply.
    Row("closed before a byte", faults.no_reply(), "ServerDisconnectedError", *LOST),
    Row("reset before a byte", faults.no_reply("reset"), "ClientOSError", *LOST),
    Row("head never comes", faults.no_reply("stall"), "SocketTimeoutError", *LOST),
    Row("closed before it ran", faults.no_reply(executes=False), "ServerDisconnectedError", *NEVER_READ),
    Row("upload cut", faults.upload_cut(), "ClientOSError", *NEVER_READ),
    Row("upload stalls", faults.upload_stalls(), "TimeoutError", *NEVER_READ, request_bytes=8_000_000),
    Row("head cut, FIN", faults.cut_head(20), "ServerDisconnectedError", *LOST),
    Row("head cut, RST", faults.cut_head(20, "reset"), "ClientOSError", *LOST),
    Row("head stalls", faults.cut_head(20, "stall"), "SocketTimeoutError", *LOST),
    Row("body cut at 0", faults.cut_body(0), "ClientPayloadError", *LOST),
    Row("body cut, FIN", faults.cut_body(5), "ClientPayloadError", *LOST),
    Row("body cut, RST", faults.cut_body(5, "reset"), "ClientPayloadError", *LOST),
    Row("body stalls", faults.cut_body(5, "stall"), "SocketTimeoutError", *LOST),
    Row("chunked body cut, FIN", faults.cut_body(5, "fin", "chunked"), "ClientPayloadError", *LOST),
    Row("chunked body cut, RST", faults.cut_body(5, "reset", "chunked"), "ClientPayloadError", *LOST),
    Row("chunked body stalls", faults.cut_body(5, "stall", "chunked"), "SocketTimeoutError", *LOST),
    # Nothing in these says that they were cut, but that they do not parse.
    Row("close-delimited body cut, FIN", faults.cut_body(5, "fin", "close"), "ClientPayloadError", *LOST),
    Row("close-delimited body cut, RST", faults.cut_body(5, "reset", "close"), "ClientPayloadError", *LOST),
    Row("close-delimited body stalls", faults.cut_body(5, "stall", "close"), "SocketTimeoutError", *LOST),
    Row("coded body cut, its length agrees", faults.cut_coded(), "ClientPayloadError", *LOST),
    Row("bad coding", faults.bad_coding(), "ClientPayloadError", *LOST),
    # aiohttp gives these a status, 400, that nobody sent.
    Row("garbage", faults.no_http(), "ClientPayloadError", *LOST),
    Row("bad status line", faults.no_http(b"HTTP/1.1 twenty OK\r\n\r\n"), "ClientPayloadError", *LOST),
    Row("impossible header", faults.impossible_header(), "ClientPayloadError", *LOST),
    Row("oversize header", faults.oversize_header(), "ClientPayloadError", *LOST),
    Row("bad chunk size", faults.bad_chunk_size(), "ClientPayloadError", *LOST),
    Row("late reply", faults.late_reply(), "SocketTimeoutError", *LOST),
    # A proxy's word, where the verifier's own would be signed: lost in transport. Elsewhere an answer like any other.
    *(
        Row(f"{code} by a proxy", faults.status(code, signed=False, executes=True), "StatusError",
            (f"1 1 HTTP {code}", f"1 1 HTTP {code}", f"1 1 HTTP {code}", "1 2 graded"),
            (f"1 1 HTTP {code}", f"1 1 HTTP {code}", f"1 1 HTTP {code}", "1 4 lost"))
        for code in (502, 503, 504)
    ),
    # An answer, of any status.
    *(
        Row(f"{code} by the verifier", faults.status(code), "StatusError", *the_same(f"0 1 HTTP {code}"))
        for code in (400, 401, 404, 408, 409, 422, 429, 500, 502, 503, 504)
    ),
    Row("500 by a proxy", faults.status(500, signed=False), "StatusError", *the_same("0 1 HTTP 500")),
    Row("500, its body cut", faults.cut_status(500), "StatusError", *the_same("0 1 HTTP 500")),
    Row("redirect loop", faults.redirect_loop(), "StatusError", *the_same("0 1 HTTP 307")),
    Row("whole, and no JSON", faults.not_json(), "ValueError", *the_same("1 1 refused")),
    Row("another content type", faults.content_type(), "", *the_same("1 1 graded")),
    Row("no fault", faults.answered(), "", *the_same("1 1 graded")),
]
# fmt: on


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
@pytest.mark.parametrize("how", ["once", "always"])
def test_what_a_lost_reply_comes_to(row: Row, how: str) -> None:
    expected = dict(zip(VERIFIERS, getattr(row, how), strict=True))
    assert {name: run(met(row, VERIFIERS[name], how == "always")) for name in VERIFIERS} == expected


async def met(row: Row, verifier_says: dict[str, Any], always: bool) -> str:
    """The cell: one verify call that meets the row's fault."""
    times = 4 if always else 1
    script = [] if isinstance(row.fault, Door) else [row.fault] * times
    waits: list[float] = []
    tries = 0

    async def wait(seconds: float) -> None:
        waits.append(seconds)

    async with contextlib.AsyncExitStack() as stack:
        verifier = await stack.enter_async_context(ScriptedVerifier(script, **verifier_says))
        servers = {"verifier": verifier.url}
        if isinstance(row.fault, Door):
            servers["door"] = f"{row.fault.scheme}://{stack.enter_context(row.fault.opened())}"
        client = await stack.enter_async_context(ServerClient(servers))
        request = {"response": "x" * row.request_bytes}

        async def call() -> Any:
            nonlocal tries
            tries += 1
            reply = await client.post(
                "door" if "door" in servers and tries <= times else "verifier", "/verify", json=request
            )
            reply.raise_for_status()
            return reply.json()

        try:
            verdict = await verify_with_transport_retry(call, client, "verifier", sleep=wait, random=lambda: 1.0)
            assert verdict["reward"] == 1.0
            end = "graded"
        except FailureEvent as failure:
            check_events(failure, tries, row.error)
            end = ended(failure)
        assert waits == [0.5, 1.0, 2.0][: tries - 1]
        if verifier_says.get("keeps_keys"):
            assert len({post.headers["idempotency-key"] for post in verifier.posts}) <= 1
        return f"{len(verifier.executions)} {tries} {end}"


def check_events(failure: FailureEvent, tries: int, error: str) -> None:
    """One event for each attempt, in order, of one operation, each raised from what happened to that attempt."""
    events = [*failure.earlier, failure]
    assert [event.attempt_id for event in events] == [str(number + 1) for number in range(tries)]
    assert {(event.kind, event.boundary, event.stage, event.operation) for event in events} == {
        ("agent_route_failed", "agent", "verification", "verify")
    }
    assert len({event.operation_id for event in events}) == 1
    assert {type(event.__cause__).__name__ for event in events} == {error}


def ended(failure: FailureEvent) -> str:
    row = masked_verify_failure({"response": "kept"}, failure)
    assert (row["response"], row["reward"], row["mask_sample"]) == ("kept", 0.0, True)
    status = failure.http_status
    could_not_grade = status is not None and (status == 429 or status >= 500)
    assert row["_ng_failure_class"] == ("judge_failed" if could_not_grade else "agent_route_failed")
    if status is not None:
        return f"HTTP {status}"
    assert failure.__cause__ is not None
    lost = is_verify_transport_error(failure.__cause__) or "proxy_status" in failure.details
    return "lost" if lost else "refused"


class TlsRow(NamedTuple):
    name: str
    host: str
    trusted: bool
    fault: faults.Fault | None
    """None: the server speaks no TLS."""
    error: str
    cells: tuple[str, str, str, str]


CERTIFICATE_ERROR = "ClientConnectorCertificateError"
# fmt: off
OVER_TLS = [
    TlsRow("untrusted certificate", "localhost", False, faults.answered(), CERTIFICATE_ERROR, ("0 1 refused",) * 4),
    TlsRow("wrong name", "127.0.0.1", True, faults.answered(), CERTIFICATE_ERROR, ("0 1 refused",) * 4),
    TlsRow("TLS to a plain server", "localhost", True, None, "ClientConnectorSSLError", ("0 1 refused",) * 4),
    # A client that sends no key: nothing but the verifier's own word makes a resend harmless.
    TlsRow("TLS aborted in the body", "localhost", True, faults.cut_body(5, "reset"), "ClientPayloadError",
           ("2 2 graded", "1 1 lost", "1 1 lost", "1 1 lost")),
    TlsRow("no fault", "localhost", True, faults.answered(), "", ("1 1 graded",) * 4),
]
# fmt: on


@pytest.mark.parametrize("row", OVER_TLS, ids=lambda row: row.name)
def test_over_tls_with_a_client_of_somebody_elses(row: TlsRow) -> None:
    assert {name: run(met_over_tls(row, VERIFIERS[name])) for name in VERIFIERS} == dict(
        zip(VERIFIERS, row.cells, strict=True)
    )


async def speak_plainly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    writer.close()


async def met_over_tls(row: TlsRow, verifier_says: dict[str, Any]) -> str:
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(CERTIFICATE)
    trusting = ssl.create_default_context(cafile=str(CERTIFICATE) if row.trusted else None)
    tries = 0
    async with contextlib.AsyncExitStack() as stack:
        says = await stack.enter_async_context(ScriptedVerifier(**verifier_says))
        script = [] if row.fault is None else [row.fault]
        verifier = await stack.enter_async_context(ScriptedVerifier(script, tls=serving, **verifier_says))
        plain = await asyncio.start_server(speak_plainly, "127.0.0.1", 0)
        await stack.enter_async_context(plain)
        client = await stack.enter_async_context(ServerClient({"verifier": says.url}))
        session = await stack.enter_async_context(aiohttp.ClientSession())
        port = plain.sockets[0].getsockname()[1] if row.fault is None else int(verifier.url.rpartition(":")[2])

        async def call() -> Any:
            nonlocal tries
            tries += 1
            async with session.post(f"https://{row.host}:{port}/verify", json={}, ssl=trusting) as reply:
                return await reply.json()

        async def wait(seconds: float) -> None:
            pass

        try:
            await verify_with_transport_retry(call, client, "verifier", sleep=wait)
            end = "graded"
        except FailureEvent as failure:
            check_events(failure, tries, row.error)
            end = ended(failure)
        return f"{len(verifier.executions)} {tries} {end}"

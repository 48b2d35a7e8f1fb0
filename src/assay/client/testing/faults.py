"""Every way to lose a reply.

A fault is what the scripted verifier does with one honest answer. `executes` says whether the verifier ran before: most
faults strike on the way back, when it is too late to take anything back.
"""

from __future__ import annotations

import gzip
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

from assay.client.delivery import SIGNATURE
from assay.client.testing.exchange import Answer, Exchange

Ending = Literal["fin", "reset", "stall"]
Framing = Literal["length", "chunked", "close"]


@dataclass(frozen=True, slots=True)
class Fault:
    """One way to lose a reply, or none: see the functions of this module."""

    name: str
    strike: Callable[[Exchange], Awaitable[None]]
    """Sends what is sent of the answer, and does to the connection what is done."""
    executes: bool = True
    """Whether the verifier runs before it strikes."""
    takes_body: bool = True
    """Whether the server reads the request's body."""

    def __repr__(self) -> str:
        """Its name."""
        return self.name


def answered() -> Fault:
    """No fault: the answer arrives, whole."""

    async def strike(exchange: Exchange) -> None:
        await exchange.write(exchange.answer.head() + exchange.answer.body)

    return Fault("answered", strike)


def no_reply(ending: Ending = "fin", *, executes: bool = True) -> Fault:
    """Not a byte of the reply: the connection is closed, reset, or stays open and silent."""

    async def strike(exchange: Exchange) -> None:
        await _end(exchange, ending)

    return Fault(f"no_reply({ending})", strike, executes)


def cut_head(at: int = 20, ending: Ending = "fin") -> Fault:
    """The first `at` bytes of the reply's head, then the end."""

    async def strike(exchange: Exchange) -> None:
        await exchange.write(exchange.answer.head()[:at])
        await _end(exchange, ending)

    return Fault(f"cut_head({at}, {ending})", strike)


def cut_body(at: int = 5, ending: Ending = "fin", framing: Framing = "length") -> Fault:
    """The head and the first `at` bytes of the body, then the end.

    A body that is framed by the connection's own end (`close`) looks complete when it is cut.
    """

    async def strike(exchange: Exchange) -> None:
        answer, part = exchange.answer, exchange.answer.body[:at]
        if framing == "chunked":
            head = answer.head(content_length=None, transfer_encoding="chunked")
            part = b"%x\r\n%s" % (len(answer.body), part)
        else:
            head = answer.head() if framing == "length" else answer.head(content_length=None, connection="close")
        await exchange.write(head + part)
        await _end(exchange, ending)

    return Fault(f"cut_body({at}, {ending}, {framing})", strike)


def cut_coded(kept: float = 0.5) -> Fault:
    """A compressed body, cut by something that then stated the length of what it had left: the length agrees."""

    async def strike(exchange: Exchange) -> None:
        coded = gzip.compress(exchange.answer.body)
        await _send_coded(exchange, coded[: int(len(coded) * kept)])

    return Fault(f"cut_coded({kept})", strike)


def bad_coding() -> Fault:
    """A body that says it is compressed and is not."""

    async def strike(exchange: Exchange) -> None:
        await _send_coded(exchange, b"this is no gzip" * 4)

    return Fault("bad_coding", strike)


def no_http(reply: bytes = b"+OK POP3 server ready\r\n\r\n", name: str = "garbage") -> Fault:
    """Something that is no HTTP reply at all, or none that may be believed; then the connection ends."""

    async def strike(exchange: Exchange) -> None:
        await exchange.write(reply)
        await _end(exchange, "fin")

    return Fault(f"no_http({name})", strike)


def impossible_header() -> Fault:
    """A header line that is none."""
    return no_http(b"HTTP/1.1 200 OK\r\nthis is no header\r\n\r\n", "impossible header")


def oversize_header(size: int = 100_000) -> Fault:
    """A header larger than clients take."""
    return no_http(b"HTTP/1.1 200 OK\r\nx-filler: " + b"x" * size + b"\r\n\r\n", "oversize header")


def bad_chunk_size() -> Fault:
    """A chunk whose size is no number."""
    return no_http(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n", "bad chunk size")


def late_reply() -> Fault:
    """The whole answer, but only once the next request has come: it must not be taken for the answer to that one."""

    async def strike(exchange: Exchange) -> None:
        await exchange.until_next_request()
        await exchange.write(exchange.answer.head() + exchange.answer.body)
        exchange.close()

    return Fault("late_reply", strike)


def upload_cut() -> Fault:
    """The connection is reset before the request's body was taken."""

    async def strike(exchange: Exchange) -> None:
        exchange.reset()

    return Fault("upload_cut", strike, executes=False, takes_body=False)


def upload_stalls() -> Fault:
    """The server stops to take the request's body. Needs a body that fills the buffers between: some megabytes."""

    async def strike(exchange: Exchange) -> None:
        await exchange.until_the_server_ends()

    return Fault("upload_stalls", strike, executes=False, takes_body=False)


def redirect_loop(status: int = 307) -> Fault:
    """A redirect to the same place."""

    async def strike(exchange: Exchange) -> None:
        answer = Answer(status, b"", {**exchange.answer.headers, "location": exchange.request.path})
        await exchange.write(answer.head())

    return Fault(f"redirect_loop({status})", strike, executes=False)


def status(code: int, *, signed: bool | None = None, executes: bool = False, body: bytes = b"{}") -> Fault:
    """A reply with another status. `signed` False takes the verifier's signature off, as from a proxy; None leaves it."""

    async def strike(exchange: Exchange) -> None:
        headers = dict(exchange.answer.headers)
        if signed is not None:
            headers.pop(SIGNATURE, None)
        if signed:
            headers[SIGNATURE] = "test"
        await exchange.write(Answer(code, body, headers).head() + body)

    return Fault(f"status({code}{'' if signed is None else ', signed' if signed else ', unsigned'})", strike, executes)


def cut_status(code: int, at: int = 3) -> Fault:
    """A reply with another status whose body is cut: the status stands all the same."""

    async def strike(exchange: Exchange) -> None:
        answer = Answer(code, b'{"detail": "broken"}', exchange.answer.headers)
        await exchange.write(answer.head() + answer.body[:at])
        await _end(exchange, "fin")

    return Fault(f"cut_status({code})", strike, executes=False)


def content_type(name: str = "text/html") -> Fault:
    """The whole answer under another content type."""

    async def strike(exchange: Exchange) -> None:
        await exchange.write(exchange.answer.head(content_type=name) + exchange.answer.body)

    return Fault(f"content_type({name})", strike)


def not_json(body: bytes = b"<html>fine</html>") -> Fault:
    """A whole 200 reply that is no JSON."""

    async def strike(exchange: Exchange) -> None:
        await exchange.write(Answer(200, body, exchange.answer.headers).head() + body)

    return Fault("not_json", strike)


async def _send_coded(exchange: Exchange, coded: bytes) -> None:
    head = exchange.answer.head(content_encoding="gzip", content_length=str(len(coded)))
    await exchange.write(head + coded)


async def _end(exchange: Exchange, ending: Ending) -> None:
    if ending == "reset":
        exchange.reset()
    elif ending == "stall":
        await exchange.until_client_is_gone()
    else:
        exchange.close()

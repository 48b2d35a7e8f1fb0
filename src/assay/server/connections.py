"""Connections: uvicorn's HTTP parser with limits on how long and how large a request's head and body may be.

A connection that is too slow is cut without a reply: the client then knows that there was no answer, where a status would be
taken for the verifier's own.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from uvicorn import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from .limits import Limits

CUT: Final = "assay.cut"
"""In a request's `scope["state"]`: call it to cut the connection without a reply."""

ENDED: Final = "assay.ended"
"""In a request's `scope["state"]`: a future that is done when the connection is gone."""

_NO_HEAD: Final = b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
_NO_HTTP: Final = b"HTTP/1.1 400 Bad Request\r\n"


class _HeadTooLarge(Exception):
    pass


class _Joining:
    """A transport that sends what is written in one turn of the loop at once: a reply's head and body are one packet."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._waiting: list[bytes] = []

    def write(self, data: bytes) -> None:
        if not self._waiting:
            self._loop.call_soon(self._send)
        self._waiting.append(data)

    def close(self) -> None:
        self._send()
        self._transport.close()

    def abort(self) -> None:
        self._waiting.clear()
        self._transport.abort()

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def _send(self) -> None:
        if self._waiting:
            data = self._waiting[0] if len(self._waiting) == 1 else b"".join(self._waiting)
            self._waiting.clear()
            self._transport.write(data)


class Connection(HttpToolsProtocol):
    """One client's connection."""

    def __init__(self, config: Config, state: ServerState, limits: Limits) -> None:
        """`state` is shared by all connections of a server."""
        self.ended = asyncio.get_running_loop().create_future()
        """Set when the connection is gone."""
        super().__init__(config, state, {CUT: self.cut, ENDED: self.ended})
        self._limits = limits
        self._timer: asyncio.TimerHandle | None = None
        self._between = False
        """Requests: nothing of the next one has come."""
        self._in_head = True
        self._head_bytes = 0
        self._too_large = False

    @property
    def busy(self) -> bool:
        """Whether a request has begun that has not been answered."""
        return self.cycle is not None and not self.cycle.response_complete

    def cut(self) -> None:
        """Drop the connection: no reply, whatever is on its way."""
        if self.cycle is not None:
            self.cycle.disconnected = not self.cycle.response_complete
        self.transport.abort()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as the parent does
        """See `asyncio.Protocol`."""
        super().connection_made(transport)
        self.transport = _Joining(transport, self.loop)  # type: ignore[assignment] # has all that is used of one
        self._give(self._limits.head_s)

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self._stop_timer()
        super().connection_lost(exc)
        if not self.ended.done():
            self.ended.set_result(None)

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        if self._between:
            self._between = False
            self._begin_head()
        was_in_head = self._in_head
        super().data_received(data)
        if was_in_head and self._in_head and not self.transport.is_closing():
            # All of it belonged to a head that is not complete: the parser itself would take any amount.
            self._head_bytes += len(data)
            if self._head_bytes > self._limits.header_bytes:
                self._too_large = True
                self.send_400_response("")

    def on_message_begin(self) -> None:
        """See `httptools`."""
        super().on_message_begin()
        # A head that came in one packet with the end of the request before it: what comes next is not the first of it.
        self._between = False
        if not self._in_head:
            self._begin_head()

    def on_headers_complete(self) -> None:
        """See `httptools`."""
        self._in_head = False
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > self._limits.header_bytes:
            self._too_large = True
            raise _HeadTooLarge
        super().on_headers_complete()
        self._give(self._limits.body_s)

    def on_message_complete(self) -> None:
        """See `httptools`."""
        self._stop_timer()
        self._between = True
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """The reply to what is no HTTP, or has too large a head."""
        most = self._limits.header_bytes
        said = f"the request's head is larger than {most} bytes" if self._too_large else "this is no HTTP request"
        body = f'{{"detail": "{said}"}}'.encode()
        head = _NO_HEAD if self._too_large else _NO_HTTP
        for name, value in self.server_state.default_headers:
            head += name + b": " + value + b"\r\n"
        head += b"content-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body)
        self.transport.write(head + body)
        self.transport.close()

    def _begin_head(self) -> None:
        self._in_head = True
        self._head_bytes = 0
        self._give(self._limits.head_s)

    def _give(self, seconds: float) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(seconds, self.cut)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _unsupported_upgrade_warning(self) -> None:
        """A client that would like to speak something else is answered in HTTP/1.1; that is worth no warning."""


def as_protocol(made: Any) -> Connection:
    """What `connect_accepted_socket` gave back, as what it is."""
    assert isinstance(made, Connection)  # noqa: S101 - what its factory makes
    return made

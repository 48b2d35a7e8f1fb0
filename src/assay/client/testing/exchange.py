"""One request at the scripted verifier, and what may be done to its reply."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_HEAD_MAX = 64 * 1024


@dataclass(frozen=True, slots=True)
class Request:
    """What reached the server."""

    method: str
    path: str
    headers: Mapping[str, str]
    """By their names in lower case."""
    body: bytes = field(default=b"", repr=False)
    """Empty when it was not taken."""

    def json(self) -> Any:
        """The body, parsed. Raises `ValueError`."""
        return json.loads(self.body)


@dataclass(frozen=True, slots=True)
class Answer:
    """An honest reply, before anything happens to it."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)

    def head(self, **fields: str | None) -> bytes:
        """The status line and headers; `fields` replaces headers (`_` for `-`), and takes out those that are None."""
        headers: dict[str, str | None] = {
            "content-type": "application/json",
            "content-length": str(len(self.body)),
            **{name.lower(): value for name, value in self.headers.items()},
            **{name.replace("_", "-"): value for name, value in fields.items()},
        }
        lines = [f"{name}: {value}" for name, value in headers.items() if value is not None]
        return "\r\n".join([f"HTTP/1.1 {self.status} Status", *lines, "", ""]).encode("latin-1")


class Exchange:
    """A request, the honest answer to it, and the connection, for a fault to spoil."""

    def __init__(
        self,
        request: Request,
        answer: Answer,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        next_request: asyncio.Event,
    ) -> None:
        """Made by the server for each request."""
        self.request = request
        self.answer = answer
        self._reader = reader
        self._writer = writer
        self._next_request = next_request
        self.open = True
        """Whether the connection may carry another request."""

    async def write(self, content: bytes) -> None:
        """Send bytes; nothing happens when the client is gone."""
        with contextlib.suppress(ConnectionError):
            self._writer.write(content)
            await self._writer.drain()

    def close(self) -> None:
        """End the connection in good order (FIN)."""
        self.open = False
        self._writer.close()

    def reset(self) -> None:
        """Cut the connection off (RST)."""
        self.open = False
        connection = self._writer.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()

    async def until_client_is_gone(self) -> None:
        """Say nothing more, until the client has closed its end."""
        self.open = False
        with contextlib.suppress(ConnectionError):
            while await self._reader.read(_HEAD_MAX):
                pass
        self._writer.close()

    async def until_the_server_ends(self) -> None:
        """Neither read nor write anything more."""
        await asyncio.Event().wait()

    async def until_next_request(self) -> None:
        """Wait until another request has reached the server."""
        await self._next_request.wait()


async def read_head(reader: asyncio.StreamReader) -> Request | None:
    """The head of a request; None at the end of the connection, and for what is no request."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        method, path, _ = first.split(" ")
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError, ValueError):
        return None
    pairs = (line.partition(":") for line in lines if line)
    return Request(method, path, {name.strip().lower(): value.strip() for name, _, value in pairs})


async def read_body(reader: asyncio.StreamReader, request: Request) -> Request | None:
    """The request with its body, which must have a length; None when the client went away before its end."""
    try:
        length = int(request.headers.get("content-length", "0"))
        body = await reader.readexactly(length)
    except (asyncio.IncompleteReadError, ConnectionError, ValueError):
        return None
    return Request(request.method, request.path, request.headers, body)

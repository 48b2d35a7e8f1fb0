"""A proxy in front of a real server that spoils replies in the ways a network does."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

WAYS = (
    "undelivered",
    "dropped",
    "reset",
    "head cut",
    "body cut",
    "body reset",
    "unsized body cut",
    "garbage",
    "proxy's 502",
)
RESET = struct.pack("ii", 1, 0)


class Spoiler:
    """Passes requests on one by one; a share of the replies is spoiled, after the server has done its work."""

    def __init__(self, port: int, chance: random.Random, *, share: float = 1 / 3, gets_too: bool = False) -> None:
        self.port = port
        self.spoiled: Counter[str] = Counter()
        self._chance = chance
        self._share = share
        self._gets_too = gets_too

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=2**24, backlog=1000)
        async with server:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while (request := await self._message(reader)) and await self._exchange(request, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _exchange(self, request: bytes, writer: asyncio.StreamWriter) -> bool:
        """Whether the connection can be used again."""
        spoil = self._gets_too or request.startswith(b"POST")
        way = self._chance.choice(WAYS) if spoil and self._chance.random() < self._share else None
        if way is not None:
            self.spoiled[way] += 1
        if way == "undelivered":
            return False
        server, upstream = await asyncio.open_connection("127.0.0.1", self.port, limit=2**24)
        try:
            upstream.write(request)
            reply = await self._message(server)
        finally:
            upstream.close()
        if not reply:
            return False
        head, _, body = reply.partition(b"\r\n\r\n")
        cut = self._chance.randrange(max(1, len(body)))
        match way:
            case None:
                writer.write(reply)
                return True
            case "head cut":
                writer.write(head[: self._chance.randrange(len(head))])
            case "body cut" | "body reset":
                writer.write(head + b"\r\n\r\n" + body[:cut])
            case "unsized body cut":
                lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"content-length")]
                writer.write(b"\r\n".join([*lines, b"connection: close"]) + b"\r\n\r\n" + body[:cut])
            case "garbage":
                writer.write(b"\x00\x01 no status line\r\n\r\n")
            case "proxy's 502":
                writer.write(b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 3\r\nconnection: close\r\n\r\nbad")
        if way in ("reset", "body reset"):
            await writer.drain()
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            writer.transport.abort()
        return False

    async def _message(self, reader: asyncio.StreamReader) -> bytes:
        """A whole request or reply with a known length; empty at the end."""
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            return b""
        lengths = [line.split(b":")[1] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
        return head + (await reader.readexactly(int(lengths[0])) if lengths else b"")

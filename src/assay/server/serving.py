"""Serving: the socket, the connections, and an end in which nobody gets a false answer."""

from __future__ import annotations

import asyncio
import contextlib
import email.utils
import logging
import socket
from typing import Any, Final

from uvicorn import Config
from uvicorn.server import ServerState

from .connections import Connection, as_protocol
from .limits import Limits

_BACKLOG: Final = 4096
_KEEP_ALIVE_S: Final = 75
"""Longer than clients keep idle connections, so that it is they who close them: else a request meets a closed door."""
_NO_DESCRIPTOR_S: Final = 0.1
_log = logging.getLogger("assay.server")


class Listener:
    """Accepts connections on one socket and hands them to an ASGI application."""

    def __init__(self, app: Any, version: str, limits: Limits) -> None:
        """`version` is said in every reply (`X-Assay-Verifier`)."""
        self._config = Config(
            app,
            loop="asyncio",
            http="httptools",
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            # Whoever may say where a request comes from may use another client's keys.
            proxy_headers=False,
            timeout_keep_alive=_KEEP_ALIVE_S,
        )
        self._config.load()
        self._limits = limits
        self._version = version.encode()
        self._state = ServerState()
        self._free = asyncio.Semaphore(limits.connections)
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, sock: socket.socket) -> None:
        """Begin to accept on a bound socket, which is the listener's from here on."""
        sock.setblocking(False)
        sock.listen(_BACKLOG)
        self._tell_time()
        self._tasks = [asyncio.create_task(self._accept(sock)), asyncio.create_task(self._tick())]

    async def stop(self) -> None:
        """Accept no more connections, and close those on which nobody waits for a reply. The others go on."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for connection in self._connections():
            connection.shutdown()

    async def finish(self, patience_s: float) -> None:
        """Let the last replies go out, then drop every connection that is left. Whoever still waits gets no reply."""
        deadline = asyncio.get_running_loop().time() + patience_s
        while (left := self._connections()) and (seconds := deadline - asyncio.get_running_loop().time()) > 0:
            await asyncio.wait([connection.ended for connection in left], timeout=seconds)
        for connection in self._connections():
            connection.cut()
        while self._state.tasks:
            await asyncio.wait(tuple(self._state.tasks))

    def _connections(self) -> list[Connection]:
        return [as_protocol(connection) for connection in self._state.connections]

    async def _accept(self, sock: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        with contextlib.closing(sock):
            while True:
                await self._free.acquire()
                try:
                    client, _ = await loop.sock_accept(sock)
                except OSError as error:
                    # No descriptor is left, or the client went away already.
                    _log.warning("a connection could not be accepted: %s", error)
                    self._free.release()
                    await asyncio.sleep(_NO_DESCRIPTOR_S)
                    continue
                except BaseException:
                    self._free.release()
                    raise
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                try:
                    _, made = await loop.connect_accepted_socket(
                        lambda: Connection(self._config, self._state, self._limits), client
                    )
                except OSError:
                    client.close()
                    self._free.release()
                    continue
                as_protocol(made).ended.add_done_callback(lambda _: self._free.release())

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(1)
            self._tell_time()

    def _tell_time(self) -> None:
        self._state.default_headers = [
            (b"date", email.utils.formatdate(usegmt=True).encode()),
            (b"x-assay-verifier", self._version),
        ]

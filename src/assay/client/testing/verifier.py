"""A verifier server that follows a script: real sockets, and a reply that can be lost in every way."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import ssl
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from assay.client.delivery import SIGNATURE
from assay.client.testing.exchange import Answer, Exchange, Request, read_body, read_head
from assay.client.testing.faults import Fault, answered

Grade = Callable[[Mapping[str, Any]], "Mapping[str, Any] | Awaitable[Mapping[str, Any]]"]

_BACKLOG = 4096
"""Thousands may come at once; who finds the queue full waits for a second before it knocks again."""


@dataclass(frozen=True, slots=True)
class Execution:
    """One time that the verifier ran."""

    key: str | None
    """The idempotency key of the request."""
    request: Mapping[str, Any]


def full_marks(request: Mapping[str, Any]) -> Mapping[str, Any]:
    """The verdict of a verifier that likes everything."""
    return {"reward": 1.0, "mask_sample": False, "failure_kind": None, "failure_reason": None}


class ScriptedVerifier:
    """A verifier server on the loopback. An async context manager: it listens inside the block.

    Each `POST` meets the next fault of `script`, each `GET` the next of `probe_script`; after the script's end everything is
    answered. It counts what reached it, and how often the verifier ran, which is what a lost reply is about.
    """

    def __init__(
        self,
        script: Iterable[Fault] = (),
        *,
        probe_script: Iterable[Fault] = (),
        reverify_mode: str | None = "unknown",
        keeps_keys: bool = False,
        grade: Grade = full_marks,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`reverify_mode` is what it says of itself; None: it has no such route, and cannot say.

        One that `keeps_keys` says so, signs every reply, runs once for a key and sends the saved verdict again. `grade` is
        given the request and returns the verdict's fields, which are laid over the request's own.
        """
        self._script = iter(script)
        self._probe_script = iter(probe_script)
        self._mode = reverify_mode
        self._keeps_keys = keeps_keys
        self._grade = grade
        self._tls = tls
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._kept: dict[str, tuple[bytes, asyncio.Task[Answer]]] = {}
        self._arrived = asyncio.Event()
        self.url = ""
        """Where it listens; known inside the block."""
        self.executions: list[Execution] = []
        """Every time that the verifier ran, in order."""
        self.posts: list[Request] = []
        """Every `POST` whose head arrived, whatever became of it."""
        self.probes: list[str] = []
        """The path of every `GET`."""

    async def __aenter__(self) -> ScriptedVerifier:
        """Listen on a port of the system's choice."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls, backlog=_BACKLOG)
        port = self._server.sockets[0].getsockname()[1]
        self.url = f"{'https' if self._tls else 'http'}://127.0.0.1:{port}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Cut whatever is still open."""
        if self._server is not None:
            self._server.close()
        working = [*self._connections, *(task for _, task in self._kept.values())]
        for task in working:
            task.cancel()
        await asyncio.gather(*working, return_exceptions=True)
        if self._server is not None:
            await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - a connection is served in a task
        self._connections.add(task)
        try:
            while await self._serve_one(reader, writer):
                pass
        except asyncio.CancelledError:
            # The server's end: asyncio would report a served connection that was cancelled.
            pass
        finally:
            self._connections.discard(task)
            writer.close()
            with contextlib.suppress(OSError, asyncio.CancelledError):
                await writer.wait_closed()

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        request = await read_head(reader)
        if request is None:
            return False
        arrived, self._arrived = self._arrived, asyncio.Event()
        arrived.set()
        following = self._arrived
        if request.method == "POST":
            self.posts.append(request)
            fault = next(self._script, None) or answered()
        else:
            self.probes.append(request.path)
            fault = next(self._probe_script, None) or answered()
        whole = await read_body(reader, request) if fault.takes_body else request
        if whole is None:
            return False
        answer = await self._answer(whole) if fault.executes or whole.method == "GET" else self._signed(200, {})
        exchange = Exchange(whole, answer, reader, writer, following)
        await fault.strike(exchange)
        return exchange.open and request.headers.get("connection", "").lower() != "close"

    async def _answer(self, request: Request) -> Answer:
        route = (request.method, request.path.partition("?")[0])
        if route == ("GET", "/reverify_mode") and self._mode is not None:
            return self._signed(200, self._mode)
        if route == ("GET", "/capabilities") and self._keeps_keys:
            return self._signed(200, {"idempotency": True})
        if route != ("POST", "/verify"):
            return self._signed(404, {"detail": "no such route"})
        key = request.headers.get("idempotency-key")
        if not self._keeps_keys or key is None:
            return await self._execute(request, key)
        if key in self._kept:
            body, task = self._kept[key]
            if body != request.body:
                return self._signed(422, {"detail": "this key was used for another request"})
            answer = await asyncio.shield(task)
            return Answer(answer.status, answer.body, {**answer.headers, "idempotency-replayed": "true"})
        task = asyncio.create_task(self._execute(request, key))
        self._kept[key] = request.body, task
        return await asyncio.shield(task)

    async def _execute(self, request: Request, key: str | None) -> Answer:
        try:
            fields = request.json()
        except ValueError:
            fields = None
        if not isinstance(fields, dict):
            return self._signed(422, {"detail": "the body must be a JSON object"})
        self.executions.append(Execution(key, fields))
        graded = self._grade(fields)
        verdict = await graded if inspect.isawaitable(graded) else graded
        return self._signed(200, {**{name: fields[name] for name in fields if name != "workspace"}, **verdict})

    def _signed(self, status: int, body: Any) -> Answer:
        headers = {SIGNATURE: "scripted"} if self._keeps_keys else {}
        return Answer(status, json.dumps(body).encode(), headers)

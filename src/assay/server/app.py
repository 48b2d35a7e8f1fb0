"""The ASGI application: who asks, how much, and which route answers.

`POST /verify` goes straight to its handler: what a framework does for each request would cost more than all the rest.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Mapping, MutableMapping
from typing import Any, Final

from assay.failures import HEADER_NAME, encode_header

from .bodies import ClientGone, Receive, read_body, refuse_larger
from .connections import CUT, ENDED
from .refusal import Refused
from .replies import Send, json_response, refusal_response, send_json
from .request import read_deadline, read_key, read_verify
from .routes import make_routes
from .service import Service
from .verifications import Outcome, Running, reply_of

_OBSERVED: Final = re.compile(r"/ng-rollout/[^/]+(?=/)")
"""What tools that observe rollouts put before a path."""
_PROBES: Final = frozenset({"/healthz", "/health", "/livez", "/readyz"})
"""For everybody: they say nothing about tasks or verdicts."""
_LARGE: Final = 256 * 1024
"""Bytes of a body that is parsed in a thread of its own."""
_KEY: Final = b"idempotency-key"
_DEADLINE: Final = b"x-assay-deadline-s"
_REPLAYED: Final = (b"idempotency-replayed", b"true")
_log = logging.getLogger("assay.server")


class Application:
    """One server's ASGI application."""

    def __init__(self, service: Service) -> None:
        """`service` stays the caller's to close."""
        self._service = service
        self.routes = make_routes(service)

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http":
            await self.routes(scope, receive, send)  # type: ignore[arg-type] # ASGI, in other words
            return
        path = scope["path"]
        if path.startswith("/ng-rollout/"):
            path = scope["path"] = _OBSERVED.sub("", path, count=1)
        try:
            await self._answer(scope, path, receive, send)
        except ClientGone:
            self._service.metrics.abandoned()
        except Refused as refused:
            self._service.metrics.refused(refused.status)
            await refusal_response(refused)(scope, receive, send)  # type: ignore[arg-type] # ASGI, in other words
        except Exception:
            _log.exception("a bug in Assay: %s %s failed", scope["method"], path)
            reply = json_response({"detail": "a bug in Assay; the server's log has more"}, 500)
            await reply(scope, receive, send)  # type: ignore[arg-type] # ASGI, in other words

    async def _answer(self, scope: MutableMapping[str, Any], path: str, receive: Receive, send: Send) -> None:
        service = self._service
        headers: dict[bytes, bytes] = dict(scope["headers"])
        address = scope["client"][0] if scope.get("client") else None
        client = ""
        if path not in _PROBES:
            client = service.tokens.client_of(headers.get(b"authorization"), address)
        length = _text(headers, b"content-length")
        if path == "/verify":
            if scope["method"] != "POST":
                raise _OnlyPost
            await self._verify(scope, headers, length, client, receive, send)
            return
        if path.startswith("/snapshots/"):
            # Streamed by its route, which counts, too.
            refuse_larger(length, service.limits.snapshot_bytes)
            await self.routes(scope, receive, send)  # type: ignore[arg-type] # ASGI, in other words
            return
        body = await read_body(receive, length, service.limits.body_bytes, service.held)
        try:
            await self.routes(scope, _Again(body, receive), send)  # type: ignore[arg-type] # ASGI, in other words
        finally:
            service.held.give_back(len(body))

    async def _verify(
        self,
        scope: Mapping[str, Any],
        headers: Mapping[bytes, bytes],
        length: str | None,
        client: str,
        receive: Receive,
        send: Send,
    ) -> None:
        service = self._service
        key = read_key(_text(headers, _KEY))
        deadline_s = read_deadline(_text(headers, _DEADLINE))
        body = await read_body(receive, length, service.limits.body_bytes, service.held)
        size = len(body)
        try:
            request = read_verify(body) if size < _LARGE else await asyncio.to_thread(read_verify, body)
            running = service.verifications.begin(request, client, key, deadline_s)
        except BaseException:
            service.held.give_back(size)
            raise
        # Held for as long as the work holds it, even when the client is gone.
        running.task.add_done_callback(lambda _: service.held.give_back(size))
        del body
        outcome = await self._outcome(running, scope["state"])
        if outcome is not None:
            extra = [_REPLAYED] if outcome.replayed else []
            if outcome.report is not None:
                extra.append((HEADER_NAME.lower().encode(), encode_header(outcome.report).encode()))
            await send_json(send, reply_of(request, outcome), extra)

    async def _outcome(self, running: Running, connection: Mapping[str, Any]) -> Outcome | None:
        """What the work came to; None when there is nobody to tell, or nothing that may be told."""
        # The connection's own end, not ASGI's message about it: that would be one more task for each request.
        await asyncio.wait((running.task, connection[ENDED]), return_when=asyncio.FIRST_COMPLETED)
        if not running.task.done():
            self._service.metrics.abandoned()
            if not running.keyed:
                running.task.cancel()
                await asyncio.wait((running.task,))
            return None
        if running.task.cancelled():
            # The server stops. Any status would be taken for the verifier's answer.
            connection[CUT]()
            return None
        return running.task.result()


class _OnlyPost(Refused):
    def __init__(self) -> None:
        super().__init__(405, "the method must be POST")

    def headers(self) -> dict[str, str]:
        return {"Allow": "POST"}


class _Again:
    """Gives a body that was read already; after it, what the connection has."""

    def __init__(self, body: bytes, receive: Receive) -> None:
        self._body: bytes | None = body
        self._receive = receive

    async def __call__(self) -> Mapping[str, Any]:
        if self._body is None:
            return await self._receive()
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}


def _text(headers: Mapping[bytes, bytes], name: bytes) -> str | None:
    value = headers.get(name)
    return value.decode("latin-1") if value is not None else None

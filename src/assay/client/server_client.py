"""A client for servers known by name, with evidence of what became of each request.

Nothing below it retries or follows: one call is one request on a connection of its own, so that a resend is always its
caller's decision, and a late reply can never answer the next request.
"""

from __future__ import annotations

import io
import json as _json
import re
import socket
from collections.abc import Mapping
from types import SimpleNamespace, TracebackType
from typing import Any, Final

from aiohttp import (
    AddrInfoType,
    ClientError,
    ClientPayloadError,
    ClientSession,
    ClientTimeout,
    DummyCookieJar,
    TCPConnector,
    TraceConfig,
    TraceRequestHeadersSentParams,
)

from assay.client.delivery import is_no_http, mark_delivery
from assay.client.operation import idempotency_key, seconds_left
from assay.client.reply import Reply, refuse_cut

CONNECT_S: Final = 5.0
READ_S: Final = 3_600.0
"""A reply may wait for a queue, a repeat and controls."""
UPLOAD_S: Final = 600.0
"""Beside the wait for the reply: no other limit ends an upload that the server stops to take."""

_IDLE_S: Final = 30
_PROBE_EVERY_S: Final = 10
_PROBES: Final = 6


_SCHEMES: Final = ("http://", "https://")


def require_url(what: str, url: str) -> None:
    """Raises `ValueError`, with the URL that was probably meant, for a text that is no base URL. `what` says whose it is."""
    if not url.startswith(_SCHEMES) or not url.partition("://")[2].partition("/")[0].strip():
        meant = _meant(url)
        guess = f"; did you mean {meant!r}?" if meant is not None else ""
        raise ValueError(f"{what} must be a URL that begins with http:// or https://, got {url!r}{guess}")


def _meant(url: str) -> str | None:
    if "://" in url and not url.startswith(_SCHEMES):
        return None
    host = re.sub(r"^(?:https?:)?/*", "", url)
    if not host or any(character.isspace() for character in host):
        return None
    return f"{'https' if url.startswith('https:') else 'http'}://{host}"


class ServerClient:
    """Requests to servers by name. An async context manager; requests are made inside its block.

    `servers` maps names to base URLs, which may have a path. `token` is sent to each of them as a bearer token. `connect_s`
    limits name resolution, connecting and the TLS handshake together, `read_s` each wait for bytes of the reply; a whole
    request may take `connect_s + read_s` and `UPLOAD_S` more. No limit on how many run at once: that is the caller's.
    """

    def __init__(
        self,
        servers: Mapping[str, str],
        token: str | None = None,
        connect_s: float = CONNECT_S,
        read_s: float = READ_S,
        total_s: float | None = None,
    ) -> None:
        """Nothing is opened yet. `total_s` sets the limit of a whole request itself, in seconds.

        Raises `ValueError` for a URL that does not begin with `http://` or `https://`, or a URL in the mapping's place.
        """
        if isinstance(servers, str):
            raise ValueError(f'servers: give URLs by name, such as {{"verifier": "{_meant(servers) or servers}"}}')  # noqa: TRY004 - what all wrong values raise
        for name, url in servers.items():
            require_url(f"servers: {name!r}", url)
        self._servers = {name: url.rstrip("/") for name, url in servers.items()}
        self._headers = {"Accept": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
        total = connect_s + read_s + UPLOAD_S if total_s is None else total_s
        self._timeout = ClientTimeout(total=total, connect=connect_s, sock_connect=connect_s, sock_read=read_s)
        self._session: ClientSession | None = None

    async def __aenter__(self) -> ServerClient:
        """Open nothing but the means."""
        trace = TraceConfig()
        trace.on_request_headers_sent.append(_headers_sent)
        self._session = ClientSession(
            # Without a limit nobody waits for another's connection; a kept one may be cut just when it is used again.
            connector=TCPConnector(limit=0, force_close=True, socket_factory=_kept_alive),
            cookie_jar=DummyCookieJar(),
            headers=self._headers,
            timeout=self._timeout,
            trace_configs=[trace],
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close every connection."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def get(self, name: str, path: str, *, headers: Mapping[str, str] | None = None) -> Reply:
        """The reply of the server `name`, of any status, redirects included.

        Raises what `post` raises. A GET is harmless: aiohttp may send it twice when the connection was dropped.
        """
        return await self._request("GET", name, path, None, dict(headers or {}))

    async def post(self, name: str, path: str, *, json: Any, headers: Mapping[str, str] | None = None) -> Reply:
        """The reply to `json`, of any status, redirects included. Within a verify call its operation id goes along.

        Raises an error of aiohttp's, or `TimeoutError`, when the reply was lost or the request never arrived, marked with
        the evidence which of the two it was (`may_be_delivered`); `ClientPayloadError` for a reply that is no HTTP, and for
        JSON that was cut where no length could tell. `KeyError` for a name without a URL, `ValueError` for what is no JSON
        and for a host that is none. `headers` go along; a session cookie for one, since the client itself keeps none.
        """
        body = _json.dumps(json, allow_nan=False, separators=(",", ":")).encode()
        sent = {"Content-Type": "application/json", **(headers or {})}
        if (key := idempotency_key()) is not None:
            sent["Idempotency-Key"] = key
        if (left := seconds_left()) is not None:
            sent["X-Assay-Deadline-S"] = f"{left:.3f}"
        return await self._request("POST", name, path, body, sent)

    async def _request(self, method: str, name: str, path: str, body: bytes | None, headers: dict[str, str]) -> Reply:
        if self._session is None:
            raise RuntimeError("ServerClient makes requests inside `async with ServerClient(…) as client:`")
        if name not in self._servers:
            raise KeyError(f"no server is named {name!r}; there are {', '.join(sorted(self._servers)) or 'none'}")
        evidence = SimpleNamespace(headers_sent=False)
        try:
            async with self._session.request(
                method,
                self._servers[name] + path,
                data=None if body is None else io.BytesIO(body),
                headers=headers,
                allow_redirects=False,
                trace_request_ctx=evidence,
            ) as response:
                content = bytearray()
                try:
                    async for chunk in response.content.iter_any():
                        content += chunk
                except (ClientError, OSError):
                    # The status of a reply that is no success stands, whatever became of its body.
                    if 200 <= response.status < 300:
                        raise
                reply = Reply(response.status, response.headers, bytes(content))
                refuse_cut(reply)
                return reply
        except (ClientError, OSError) as error:
            delivered = bool(evidence.headers_sent)
            if is_no_http(error):
                lost = ClientPayloadError(f"the reply is no HTTP: {error}")
                mark_delivery(lost, delivered)
                raise lost from error
            mark_delivery(error, delivered)
            raise


async def _headers_sent(session: ClientSession, context: SimpleNamespace, told: TraceRequestHeadersSentParams) -> None:
    # Told just before the head is handed to the connection: without this not a byte of it was written.
    context.trace_request_ctx.headers_sent = True


def _kept_alive(address: AddrInfoType) -> socket.socket:
    """A socket that notices within a minute and a half that its peer's machine is gone: a reply may take an hour."""
    family, kind, protocol, *_ = address
    made = socket.socket(family=family, type=kind, proto=protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", _IDLE_S), ("TCP_KEEPINTVL", _PROBE_EVERY_S), ("TCP_KEEPCNT", _PROBES)):
        # Named so on Linux alone.
        if hasattr(socket, option):
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    return made

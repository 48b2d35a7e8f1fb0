"""Replies, written to the client as ASGI messages."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

from starlette.responses import Response

from .refusal import Refused

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


def json_response(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A JSON reply. ASCII: a lone surrogate in a request is echoed as the escape it came as."""
    body = json.dumps(value, allow_nan=False).encode("ascii")
    return Response(body, status, headers=headers, media_type="application/json")


def refusal_response(refused: Refused) -> Response:
    """The reply to a request that was not served."""
    return json_response(refused.body(), refused.status, refused.headers())


async def send_json(send: Send, body: bytes, headers: list[tuple[bytes, bytes]]) -> None:
    """A reply of 200 whose body is JSON already."""
    await send(
        {
            "type": "http.response.start",
            "status": 200,
            "headers": [
                (b"content-type", b"application/json"),
                (b"content-length", b"%d" % len(body)),
                *headers,
            ],
        }
    )
    await send({"type": "http.response.body", "body": body})

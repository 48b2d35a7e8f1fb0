"""Reading a request's body: at most so much of one, and at most so much of all together."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from .refusal import NotAdmitted, Refused

Receive = Callable[[], Awaitable[Mapping[str, Any]]]


class ClientGone(Exception):
    """The client went away before its request was complete."""


class Held:
    """Bytes of bodies that the server holds."""

    def __init__(self, most: int) -> None:
        """`most` bounds all of them together."""
        self._most = most
        self.bytes = 0

    def take(self, count: int) -> None:
        """Hold more. Raises `NotAdmitted` when that is too much."""
        if self.bytes + count > self._most:
            raise NotAdmitted(
                f"the requests that wait and run hold {self.bytes:,} bytes, and no more fit; nothing ran",
                retry_after_s=2,
            )
        self.bytes += count

    def give_back(self, count: int) -> None:
        """Hold less."""
        self.bytes -= count


def refuse_larger(length: str | None, most: int) -> None:
    """Look at a `Content-Length` before anything is read. Raises `Refused` (413)."""
    if length is not None and (not length.isdecimal() or int(length[:20]) > most):
        raise too_large(most)


async def read_body(receive: Receive, length: str | None, most: int, held: Held) -> bytes:
    """The whole body; what it holds of `held` is the caller's to give back.

    Raises `Refused` (413 over `most` bytes), `NotAdmitted`, and `ClientGone`.
    """
    refuse_larger(length, most)
    parts: list[bytes] = []
    size = 0
    try:
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            part = message.get("body", b"")
            if size + len(part) > most:
                raise too_large(most)
            held.take(len(part))
            size += len(part)
            parts.append(part)
            if not message.get("more_body", False):
                return parts[0] if len(parts) == 1 else b"".join(parts)
    except BaseException:
        held.give_back(size)
        raise


def too_large(most: int) -> Refused:
    """413: the body is over `most` bytes."""
    return Refused(413, f"the body is larger than the {most:,} bytes that this server takes")

"""What the server accepts of anybody, before it knows who they are and what they want."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Limits:
    """Each is a flag of `assay serve`."""

    body_bytes: int = 64 * MIB
    """Of one request. A larger one is refused (413)."""
    snapshot_bytes: int = 4096 * MIB
    """Of one uploaded archive, as it is sent. It is streamed to disk, never held."""
    held_bytes: int = 1024 * MIB
    """Of the bodies of all requests that are read, wait or run, together, as they came. Over it: not admitted (503).

    Memory is bounded by a multiple of it, since each request is held parsed: 2 to 8 times its body when that is mostly text or
    numbers, about 25 times when it is JSON of nothing but small objects and lists.
    """
    header_bytes: int = 16 * 1024
    """Of one request's line and headers. Over it: 431."""
    head_s: float = 10.0
    """Seconds in which a request's head must have come, from the connection or its first byte on; else it is cut."""
    body_s: float = 600.0
    """Seconds in which a request's body must have come; else the connection is cut."""
    connections: int = 4096
    """At once. Further ones wait unaccepted."""
    queue: int = 2048
    """Verifications that wait for room. Further ones are not admitted (503)."""

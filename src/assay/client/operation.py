"""The verify call that is running: what its attempts have in common, for the client below it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(slots=True)
class Operation:
    """One verify call, while an attempt of it runs."""

    operation_id: str
    """The same for every attempt: the server's idempotency key."""
    deadline: float | None
    """When nobody waits for the reply any more, by the event loop's clock."""
    keyed: bool = False
    """Whether the request of this attempt carries the key."""


_current: ContextVar[Operation | None] = ContextVar("assay_verify_operation", default=None)


@contextmanager
def running(operation: Operation | None) -> Iterator[None]:
    """Make `operation` the one that runs in this context, or with None: no one."""
    token = _current.set(operation)
    try:
        yield
    finally:
        _current.reset(token)


def idempotency_key() -> str | None:
    """The id of the verify call that is running, to be sent as `Idempotency-Key`; None outside of one.

    `ServerClient` sends it by itself. A client of your own may ask for it, too; to ask is to promise that the request
    carries it: a server that keeps keys may then be sent the request again after a reply was lost.
    """
    operation = _current.get()
    if operation is None:
        return None
    operation.keyed = True
    return operation.operation_id


def seconds_left() -> float | None:
    """Seconds until the deadline of the verify call that is running; None where there is none."""
    operation = _current.get()
    if operation is None or operation.deadline is None:
        return None
    return max(0.0, operation.deadline - asyncio.get_running_loop().time())

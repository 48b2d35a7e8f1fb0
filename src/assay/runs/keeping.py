"""Writes that outlive what stops a command: a disk that is full for a moment, and Ctrl-C."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, TypeVar

from assay.failures import FailureEvent, is_infrastructure

T = TypeVar("T")
Sleep = Callable[[float], Awaitable[None]]

PAUSES_S: Final = (0.5, 1.0, 2.0, 4.0, 8.0)
"""How long is waited before another try at a write: an answer that took hours is worth it."""


class CannotKeep(Exception):
    """Nothing can be kept any more, so nothing more must be begun. Says why."""


async def finished(work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is brought to its end even when the caller is cancelled meanwhile."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        if not task.cancelled():
            # Whoever was stopped has nobody left to tell; the next command finds what is not there.
            task.exception()
        raise


async def kept(write: Callable[[], Awaitable[T]], sleep: Sleep) -> T:
    """What `write` returns; tried again while the place fails. It must be harmless to repeat.

    Raises `CannotKeep` when it keeps failing, and what else it raises.
    """
    for pause in (*PAUSES_S, None):
        try:
            return await write()
        except FailureEvent as failure:
            if not is_infrastructure(failure.kind):
                raise
            if pause is None:
                raise CannotKeep(failure.reason) from failure
        await sleep(pause)
    raise AssertionError("the last try returns or raises")

"""Blocking work beside the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import TypeVar

from assay.workspaces import scratch_folder

T = TypeVar("T")


async def whole(work: Callable[[threading.Event], T]) -> T:
    """Work in a thread that has ended when this returns or is cancelled; the event asks it to end early."""
    stop = threading.Event()
    running = asyncio.ensure_future(asyncio.to_thread(work, stop))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        stop.set()
        await asyncio.wait([running])
        if not running.cancelled():
            # That it was stopped: asked for, or it would be logged as lost.
            running.exception()
        raise


@asynccontextmanager
async def scratch(name: str, *, place: Path | None = None) -> AsyncIterator[Path]:
    """`scratch_folder`, removed in a thread: a client can have filled it with very many files."""
    with ExitStack() as kept:
        folder = kept.enter_context(scratch_folder(name, place=place))
        try:
            yield folder
        finally:
            await whole(lambda _: kept.close())

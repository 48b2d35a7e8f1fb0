"""Waiting for descriptors and futures where a cancellation must not cut the waiting short."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
from collections.abc import Callable, Iterator
from typing import Any

BLOCK = 1 << 20


@contextlib.contextmanager
def readable(fd: int) -> Iterator[asyncio.Future[None]]:
    """A future that is done once `fd` is readable: a pidfd when its process has died, a pipe when there is data or an end."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()

    def done() -> None:
        loop.remove_reader(fd)
        if not future.done():
            future.set_result(None)

    loop.add_reader(fd, done)
    try:
        yield future
    finally:
        loop.remove_reader(fd)
        future.cancel()


class Insistence:
    """Waits that go on when the task is cancelled, and remember that it was.

    For cleaning up: what must be done is done first, and `release` lets the cancellation go on then.
    """

    def __init__(self) -> None:
        """Nothing was cancelled yet."""
        self.cancelled = False
        """Whether the task was cancelled while it waited."""

    async def wait(self, *futures: asyncio.Future[Any], timeout_s: float) -> bool:
        """Whether one of the futures is done within the time (with none: False, after the time)."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while True:
            left = deadline - loop.time()
            try:
                if futures:
                    await asyncio.wait(futures, timeout=max(0.0, left), return_when=asyncio.FIRST_COMPLETED)
                else:
                    await asyncio.sleep(max(0.0, left))
            except asyncio.CancelledError:
                self.cancelled = True
            if any(future.done() for future in futures):
                return True
            if loop.time() >= deadline:
                return False

    async def until_readable(self, fd: int, timeout_s: float) -> bool:
        """Whether `fd` becomes readable within the time."""
        if readable_within(fd, 0):
            return True
        with readable(fd) as future:
            return await self.wait(future, timeout_s=timeout_s)

    async def run(self, work: Callable[[], Any]) -> Any:
        """What `work` returns, run in a thread and never abandoned half way."""
        future = asyncio.get_running_loop().run_in_executor(None, work)
        while not future.done():
            await self.wait(future, timeout_s=3600)
        return future.result()

    def release(self) -> None:
        """Raise the cancellation that came meanwhile, if one did."""
        if self.cancelled:
            raise asyncio.CancelledError


def readable_within(fd: int, timeout_s: float) -> bool:
    """Whether a descriptor of any number is readable within the time: a pidfd when its process has ended. Blocks."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(timeout_s * 1000))


def read_available(fd: int) -> bytes | None:
    """What can be read from a non-blocking descriptor now; None when there is nothing yet, empty at its end."""
    try:
        return os.read(fd, BLOCK)
    except BlockingIOError:
        return None

"""Who may run now: a bounded queue, fair between clients."""

from __future__ import annotations

import asyncio
import math
import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from .refusal import NotAdmitted

_RETRY_MAX_S: Final = 60


@dataclass(slots=True, eq=False)
class Deadline:
    """When nobody waits for a piece of work any more, on the admission's clock. Several may wait: the latest counts."""

    at: float

    def extend(self, at: float) -> None:
        """One more waits, until `at`."""
        self.at = max(self.at, at)


@dataclass(slots=True, eq=False)
class _Waiting:
    room: asyncio.Future[None]
    deadline: Deadline


class Admission:
    """At most `concurrency` at once, at most `queue` waiting; the queue is served round-robin over clients."""

    def __init__(self, concurrency: int, queue: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` is that of deadlines, in seconds."""
        self.clock = clock
        self.running = 0
        self.waiting = 0
        self._concurrency = concurrency
        self._queue = queue
        self._closed = False
        self._clients: OrderedDict[str, deque[_Waiting]] = OrderedDict()
        self._mean_s = 1.0

    @property
    def open(self) -> bool:
        """Whether work is accepted."""
        return not self._closed

    def close(self) -> None:
        """Admit nobody any more, what waits already included: whoever waits is to be cancelled."""
        self._closed = True

    @asynccontextmanager
    async def room(self, client: str, deadline: Deadline) -> AsyncIterator[None]:
        """Wait for room and hold it for the length of the block. Raises `NotAdmitted` when there is none to be had."""
        await self._enter(client, deadline)
        began = self.clock()
        try:
            yield
        finally:
            self._mean_s += 0.1 * (self.clock() - began - self._mean_s)
            self._leave()

    def refuse_if_full(self) -> None:
        """Raises `NotAdmitted` when work that comes now would find no room."""
        if self._closed:
            raise NotAdmitted("the server is stopping and takes no new work; nothing ran", retry_after_s=5)
        if self.running >= self._concurrency and self.waiting >= self._queue:
            raise NotAdmitted(
                f"{self.waiting} verifications wait already; nothing ran", retry_after_s=self._retry_after_s()
            )

    async def _enter(self, client: str, deadline: Deadline) -> None:
        self.refuse_if_full()
        if self.running < self._concurrency:
            self._refuse_late(deadline)
            self.running += 1
            return
        one = _Waiting(asyncio.get_running_loop().create_future(), deadline)
        self._clients.setdefault(client, deque()).append(one)
        self.waiting += 1
        try:
            await one.room
        except asyncio.CancelledError:
            if one.room.done() and not one.room.cancelled() and one.room.exception() is None:
                # Room was given in the very moment in which nobody wanted it any more.
                self._leave()
            else:
                self._forget(client, one)
            raise

    def _leave(self) -> None:
        self.running -= 1
        while not self._closed and self.running < self._concurrency and (one := self._next()) is not None:
            if one.room.done():
                continue
            if one.deadline.at <= self.clock():
                one.room.set_exception(_late())
                continue
            self.running += 1
            one.room.set_result(None)

    def _next(self) -> _Waiting | None:
        """The first in line of the client whose turn it is; the client then goes to the back."""
        if not self._clients:
            return None
        client, line = self._clients.popitem(last=False)
        one = line.popleft()
        self.waiting -= 1
        if line:
            self._clients[client] = line
        return one

    def _forget(self, client: str, one: _Waiting) -> None:
        line = self._clients.get(client)
        if line is None or one not in line:
            return
        line.remove(one)
        self.waiting -= 1
        if not line:
            del self._clients[client]

    def _refuse_late(self, deadline: Deadline) -> None:
        if deadline.at <= self.clock():
            raise _late()

    def _retry_after_s(self) -> int:
        return max(1, min(_RETRY_MAX_S, math.ceil(self._mean_s * self.waiting / self._concurrency)))


def _late() -> NotAdmitted:
    return NotAdmitted("the client's deadline passed before there was room; nothing ran")

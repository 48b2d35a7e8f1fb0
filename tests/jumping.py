"""An event loop whose clock jumps to the next timer when nothing else can happen: limits of an hour in milliseconds.

What the loop waits for are sockets of this very process, so what was sent is there at once. A pause that would be longer
than `PATIENCE_S` is cut to it, and the clock put forward by the rest.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

PATIENCE_S = 0.02
Result = TypeVar("Result")


class _Selector(selectors.DefaultSelector):
    jumped_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout <= PATIENCE_S:
            return super().select(timeout)
        found = super().select(PATIENCE_S)
        if not found:
            self.jumped_s += timeout - PATIENCE_S
        return found


class JumpingLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jumping = _Selector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return super().time() + self._jumping.jumped_s


def run(main: Coroutine[Any, Any, Result]) -> Result:
    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        return runner.run(main)

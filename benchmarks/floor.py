"""The floor: fork a bare interpreter and wait for the child, which does nothing. No isolation, no verifier, no verdict.

The process that forks is small and lives long, as a server would, and times itself.
"""

from __future__ import annotations

import os
import subprocess
import time
from types import TracebackType

from .work import PYTHON

_PROGRAM = """
import os, sys, time
for line in sys.stdin:
    taken = []
    for _ in range(int(line)):
        began = time.perf_counter()
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
        taken.append(time.perf_counter() - began)
    print(*taken, flush=True)
"""


class Floor:
    """The process that forks."""

    def __init__(self, cpus: set[int] | None = None) -> None:
        """`cpus`: the processors it may use; None: this process' own."""
        self._running = subprocess.Popen(
            [PYTHON, "-I", "-S", "-c", _PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        if cpus is not None:
            os.sched_setaffinity(self._running.pid, cpus)

    def __enter__(self) -> Floor:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._running.communicate()

    def begin(self, times: int) -> None:
        """Have it fork so many times, one after the other."""
        assert self._running.stdin is not None
        self._running.stdin.write(f"{times}\n")

    def end(self) -> list[float]:
        """Seconds of each, when it has done what it was told."""
        assert self._running.stdout is not None
        return [float(word) for word in self._running.stdout.readline().split()]

    def take(self, times: int) -> list[float]:
        """Seconds of each of so many, one after the other."""
        self.begin(times)
        return self.end()

    def take_apart(self, times: int, apart_s: float) -> list[float]:
        """The same, so many seconds between them."""
        seconds = []
        for _ in range(times):
            time.sleep(apart_s)
            seconds += self.take(1)
        return seconds


def rate(cpus: set[int], times: int) -> float:
    """Forks a second of two such processes together on these processors."""
    with Floor(cpus) as one, Floor(cpus) as other:
        for floor in (one, other):
            floor.take(min(times, 200))
        began = time.perf_counter()
        for floor in (one, other):
            floor.begin(times)
        for floor in (one, other):
            floor.end()
        return 2 * times / (time.perf_counter() - began)

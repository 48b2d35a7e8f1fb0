"""Estimates from one number or two for each task: an interval by bootstrap, pass@k.

The tasks are what was drawn, so tasks are what is drawn again, each with all its rows. Nothing here holds more than
`BLOCKS` sums, however many tasks there are: with more of them than that, tasks are put into blocks at random, and blocks are
drawn again, which estimates the same spread.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

BLOCKS: Final = 2000
RESAMPLES: Final = 1000
_SEED: Final = 20_240_229
"""The same rows give the same interval, whenever and wherever it is asked for."""
_LOW, _HIGH = 0.025, 0.975


@dataclass
class Spread:
    """Sums of a ratio's two parts over tasks, from which its interval is drawn."""

    tasks: int = 0
    """That have a value."""
    _parts: list[list[float]] = field(default_factory=list)
    _draw: random.Random = field(default_factory=lambda: random.Random(_SEED))  # noqa: S311 - statistics, no secret

    def add(self, total: float, weight: float) -> None:
        """One task: the sum of its values, and how many there are. One with none says nothing."""
        if not weight:
            return
        self.tasks += 1
        if len(self._parts) < BLOCKS:
            self._parts.append([total, weight])
            return
        block = self._parts[self._draw.randrange(BLOCKS)]
        block[0] += total
        block[1] += weight

    def interval(self) -> tuple[float, float] | None:
        """The middle 95 % of the means of `RESAMPLES` draws; None with fewer than two tasks, which say nothing of a spread."""
        if self.tasks < 2:
            return None
        # A generator of its own: what was drawn while tasks came in has no part in it.
        draw = random.Random(_SEED)  # noqa: S311 - as above
        means = []
        for _ in range(RESAMPLES):
            drawn = draw.choices(self._parts, k=len(self._parts))
            means.append(math.fsum(part[0] for part in drawn) / math.fsum(part[1] for part in drawn))
        means.sort()
        return _quantile(means, _LOW), _quantile(means, _HIGH)


@dataclass
class PassAt:
    """pass@k over tasks, for 0/1 rewards: the chance that one of k tries at a task succeeds, without bias.

    With n tries of which c succeeded: 1 - C(n-c, k) / C(n, k). Only tasks with k graded tries count.
    """

    _sums: dict[int, float] = field(default_factory=dict)
    _tasks: dict[int, int] = field(default_factory=dict)

    def add(self, tries: int, successes: int, ks: Iterable[int]) -> None:
        """One task."""
        for k in ks:
            if tries >= k:
                self._sums[k] = self._sums.get(k, 0.0) + pass_at(tries, successes, k)
                self._tasks[k] = self._tasks.get(k, 0) + 1

    def estimates(self) -> list[tuple[int, float, int]]:
        """k, the estimate, and over how many tasks; for each k that some task has enough tries for."""
        return [(k, self._sums[k] / self._tasks[k], self._tasks[k]) for k in sorted(self._sums)]


def pass_at(tries: int, successes: int, k: int) -> float:
    """The chance that k different ones of `tries` hold a success."""
    if tries - successes < k:
        return 1.0
    missed = 1.0
    for number in range(tries - successes + 1, tries + 1):
        missed *= 1.0 - k / number
    return 1.0 - missed


def ks_up_to(most: int) -> list[int]:
    """Which k are shown: 1, 2, 4, 8, … and the number of tries itself."""
    ks = [2**power for power in range(most.bit_length()) if 2**power <= most]
    return ks if most in ks or most < 1 else [*ks, most]


def _quantile(ordered: Sequence[float], share: float) -> float:
    position = share * (len(ordered) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)

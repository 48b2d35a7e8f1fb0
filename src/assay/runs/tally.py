"""What a command has done so far, and what is told of it as it goes on."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from assay.answers import Identity


class Happened(NamedTuple):
    """Something that is on disk by the time it is told; `skipped` is what was not done."""

    what: str
    """`answered`, `graded`, `masked`, `agent_failed`, `skipped`."""
    identity: Identity
    about: Mapping[str, Any]
    """`reward`, or `kind` and `reason`; `verdict_id` or `answer_id`."""


@dataclass
class Tally:
    """Counts of one command."""

    todo: int = 0
    """Identities that it was for when it began."""
    answered: int = 0
    """Agents that left an answer, which is kept."""
    graded: int = 0
    total: float = 0.0
    """Sum of the rewards of `graded`."""
    masked: Counter[str] = field(default_factory=Counter)
    """Verdicts without a reward, by kind."""
    agent_failed: Counter[str] = field(default_factory=Counter)
    """Agents that left none, by kind of failure."""
    skipped: Counter[str] = field(default_factory=Counter)
    """What could not be done, by reason."""
    open: set[Identity] = field(default_factory=set)
    """Identities that this command leaves without a reward."""
    exhausted: Counter[str] = field(default_factory=Counter)
    """Rows that no command takes up any more, since they were tried as often as they may be, by the command that does when it
    may try more."""
    bugs: list[str] = field(default_factory=list)
    """Tracebacks of what should not have happened, one for each row that it left as it was."""
    stopped: str | None = None
    """Why it ended early, when it did."""
    began: float = field(default_factory=time.monotonic)

    @property
    def done(self) -> int:
        """Identities that it is through with."""
        return self.graded + self.masked.total() + self.agent_failed.total() + self.skipped.total() + len(self.bugs)

    @property
    def mean(self) -> float | None:
        """Over what it graded itself; None before the first."""
        return self.total / self.graded if self.graded else None

    @property
    def rate(self) -> float:
        """Identities a second."""
        return self.done / max(time.monotonic() - self.began, 1e-6)

    @property
    def left_s(self) -> float | None:
        """Seconds to go at this rate; None before the first."""
        return max(self.todo - self.done, 0) / self.rate if self.done else None

    def note(self, happened: Happened) -> None:
        """Count it."""
        about = happened.about
        if happened.what == "answered":
            self.answered += 1
            return
        if happened.what == "graded":
            self.graded += 1
            self.total += about["reward"]
            self.open.discard(happened.identity)
            return
        counts = {"masked": self.masked, "agent_failed": self.agent_failed, "skipped": self.skipped}[happened.what]
        counts[about["kind"]] += 1
        self.open.add(happened.identity)

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "todo": self.todo,
            "done": self.done,
            "answered": self.answered,
            "graded": self.graded,
            "mean": self.mean,
            "masked": dict(self.masked),
            "agent_failed": dict(self.agent_failed),
            "skipped": dict(self.skipped),
            "exhausted": dict(self.exhausted),
            "seconds": round(time.monotonic() - self.began, 3),
        }


Watch = Callable[[Tally, Happened], None]
"""Told of everything that happened, in order."""


def unwatched(tally: Tally, happened: Happened) -> None:
    """Tell nobody."""

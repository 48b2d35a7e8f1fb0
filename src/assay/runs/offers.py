"""Answers that somebody else's program kept, on their way into a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from assay.answers import Identity
from assay.runs.left import Left
from assay.tasks import Task


class Problem(NamedTuple):
    """What cannot be taken, and why. The rest goes on."""

    where: str
    """A line, a folder."""
    reason: str
    missing: Identity | None = None
    """What it would have been an answer to: part of the run all the same, so that no mean loses it in silence."""


@dataclass(frozen=True, slots=True)
class Offer:
    """An answer that can be taken."""

    where: str
    task: Task
    identity: Identity
    left: Callable[[], AbstractAsyncContextManager[Left]]
    """Makes it ready, for the length of a block. Raises `FailureEvent` when it cannot."""
    task_digest: str | None = None
    """Of the task as the agent was given it, where the source says."""
    snapshot: str | None = None
    """Of a workspace that is among the run's own already."""
    agent: str = "replay"
    agent_settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Numbering:
    """Which try at a task each answer is: as its source says, else the next one."""

    _given: Counter[str] = field(default_factory=Counter)
    _taken: dict[Identity, str] = field(default_factory=dict)

    def identity(self, task_id: str, rollout: int | None, where: str) -> Identity | Problem:
        """The identity of the answer at `where`, or that there is another one of it."""
        if rollout is None:
            while Identity(task_id, self._given[task_id]) in self._taken:
                self._given[task_id] += 1
            rollout = self._given[task_id]
        one = Identity(task_id, rollout)
        if one in self._taken:
            return Problem(
                where, f"{task_id}, rollout {rollout}, is answered in {self._taken[one]} already; that one is kept"
            )
        self._taken[one] = where
        return one

"""What an agent left when it had done its work on a task, and who does such work."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from assay.answers import Identity
from assay.failures import FailureEvent
from assay.tasks import Task


@dataclass(frozen=True, slots=True)
class Left:
    """An answer before it is kept."""

    workspace: Path | FailureEvent | None
    """A folder of ours; for a multi-step task it holds one for each step. A failure: why what there is cannot be had.
    None: the agent was given no workspace, so the untouched environment is."""
    response: Any = None
    trajectory: Path | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    """What is to be exported with it: usage, times, fields of the row that it came from."""


class Agent(Protocol):
    """Whoever works on tasks. Safe for many at once."""

    def working(self, task: Task, identity: Identity) -> AbstractAsyncContextManager[Left]:
        """Work on a task; what was left is there for the length of the block.

        Raises `FailureEvent` when there is no answer: what it left is then nobody's.
        """
        ...

"""The tasks that a server grades, as they are on the disk now."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from assay.failures import FailureEvent
from assay.tasks import Dataset, Task, TaskInvalid, load_dataset, load_task
from assay.tasks.nearest import nearest
from assay.tasks.shown import shown
from assay.tasks.strict_json import canonical_json

from .refusal import Refused, malformed
from .request import VerifyRequest

_LOOK_AGAIN_S: Final = 1.0
"""A task's files are looked at again at most so often, and for at most a twentieth of the time."""
_NAME_MAX: Final = 300
"""Characters of a name that is worth a guess at what was meant."""
_WEAKEST_FIRST: Final = ("unsupported", "unknown", "stateless")


@dataclass(frozen=True, slots=True, eq=False)
class Chosen:
    """The task that a request is about, checked against it."""

    task: Task
    digest: str
    verifier_digest: str
    stateless: bool
    """Whether verifying the same answer again is harmless."""
    row: Mapping[str, Any]
    """What the request adds to the task's own data."""


@dataclass(slots=True)
class _Known:
    task: Task
    seen: tuple[object, ...]
    look_at: float


class Catalogue:
    """The tasks by id. A task whose files change is read again before the next answer to it is verified."""

    def __init__(self, dataset: Dataset, *, network: bool = False, clock: Callable[[], float] = time.monotonic) -> None:
        """`network`: verifiers may use it, so none of them is stateless."""
        self._network = network
        self._clock = clock
        self.invalid = dataset.invalid
        self._known = {task.id: _Known(task, (), 0.0) for task in dataset.tasks}
        self._locks: dict[str, asyncio.Lock] = {}

    @property
    def ids(self) -> tuple[str, ...]:
        """All tasks, sorted."""
        return tuple(sorted(self._known))

    @property
    def reverify_mode(self) -> str:
        """The weakest of the tasks: `unsupported`, else `unknown`, else `stateless`."""
        modes = {self.mode_of(known.task) for known in self._known.values()}
        return next((mode for mode in _WEAKEST_FIRST if mode in modes), "unknown")

    def mode_of(self, task: Task) -> str:
        """A task's own mode. Nobody can say what a verifier does on a network."""
        return "unknown" if task.reverify_mode == "stateless" and self._network else task.reverify_mode

    async def choose(self, request: VerifyRequest) -> Chosen:
        """The task for a request: `task_id`, else the only task there is.

        Raises `Refused`: 422 when no task is named or a field contradicts it, 404 for one that is not here, 409 when
        its digest is not the one that the request names.
        """
        if request.task_id is None and len(self._known) != 1:
            raise malformed("task_id", f"must name one of the {len(self._known)} tasks here (GET /tasks)")
        task = await self.find(request.task_id if request.task_id is not None else next(iter(self._known)))
        if request.task_digest is not None and request.task_digest != task.digest:
            raise Refused(
                409,
                f"task_digest: the answer is to another version of {task.id}: this server has {task.digest}",
                field="task_digest",
            )
        for name, value in request.row.items():
            if name in task.task_data and canonical_json(task.task_data[name]) != canonical_json(value):
                raise malformed(name, f"the task has another value: {shown(task.task_data[name])}; leave it out")
        return Chosen(task, task.digest, task.verifier_digest, self.mode_of(task) == "stateless", request.row)

    async def find(self, task_id: str) -> Task:
        """The task of that id, as it is now, its digests computed. Raises `Refused` (404, or 409 when it went bad)."""
        known = self._known.get(task_id)
        if known is None:
            guess = nearest(task_id, list(self._known)[:1000]) if len(task_id) <= _NAME_MAX else None
            hint = f"; did you mean {guess!r}?" if guess else " (GET /tasks lists them)"
            raise Refused(404, f"task_id: there is no task {shown(task_id)} here{hint}", field="task_id")
        if self._clock() >= known.look_at:
            async with self._locks.setdefault(task_id, asyncio.Lock()):
                if self._clock() >= known.look_at:
                    await asyncio.to_thread(self._look_again, known)
        return known.task

    def _look_again(self, known: _Known) -> None:
        began = self._clock()
        try:
            seen = _state_of(known.task)
            if seen != known.seen:
                # The first look finds the task as it was loaded when the server started; it is read again all the same.
                task = load_task(_place_of(known.task))
                # All of those that grading asks for: they read every file, and that is to happen here, in a thread.
                _ = task.digest, task.verifier_digest, task.solution_digest
                known.task, known.seen = task, seen
        except (TaskInvalid, FailureEvent, OSError) as error:
            reason = error.reason if isinstance(error, FailureEvent) else str(error)
            raise Refused(409, f"the task {known.task.id} cannot be read any more: {reason}", field="task_id") from None
        now = self._clock()
        known.look_at = now + max(_LOOK_AGAIN_S, 20 * (now - began))


def load_catalogue(dataset: Path, *, network: bool = False) -> Catalogue:
    """The tasks of a dataset folder, or of a single task folder. Raises `TaskInvalid` when there is none that can be used."""
    loaded = load_dataset(dataset)
    if not loaded.tasks:
        raise TaskInvalid(*(problem for invalid in loaded.invalid for problem in invalid.problems))
    return Catalogue(loaded, network=network)


def _place_of(task: Task) -> Path:
    return task.folder / task.row_id if task.row_id is not None else task.folder


def _state_of(task: Task) -> tuple[object, ...]:
    """What tells that a task's files changed: name, size, time and number of each, those of its dataset included."""
    found: list[object] = []
    for place, folders, names in os.walk(task.folder):
        folders.sort()
        found += [_stamp(Path(place, name)) for name in (*folders, *sorted(names))]
    for above in (task.folder.absolute().parent, task.folder.absolute().parent.parent):
        found += [_stamp(above / name) for name in ("dataset.toml", "verifier.py")]
    return tuple(found)


def _stamp(path: Path) -> tuple[object, ...]:
    try:
        status = path.lstat()
    except FileNotFoundError:
        return (path.name,)
    return path.name, status.st_mode, status.st_size, status.st_mtime_ns, status.st_ino

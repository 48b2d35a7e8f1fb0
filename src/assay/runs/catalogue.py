"""The tasks of a run's dataset, as they are on the disk now."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from assay.answers import Identity
from assay.failures import FailureEvent
from assay.failures.kinds import TASK_INVALID
from assay.grading import WrongArgument
from assay.grading.bases import find_base
from assay.tasks import InvalidTask, Task, VerifierSource, load_dataset
from assay.tasks.rows import ROWS_FILE


@dataclass(frozen=True, slots=True)
class Catalogue:
    """The tasks by id, and those that cannot be used."""

    tasks: Mapping[str, Task]
    invalid: Mapping[str, InvalidTask]
    """By the id that they would have: rows of a mean must not vanish because a task was broken."""

    def identities(self, rollouts: int) -> list[Identity]:
        """What a run over all of them is for: each task once, then each a second time, …"""
        names = [*self.tasks, *self.invalid]
        return [Identity(name, rollout) for rollout in range(rollouts) for name in names]

    def find(self, task_id: str) -> Task:
        """A task by its id. Raises `FailureEvent`, `assay:task_invalid`, for one that cannot be used or is not there."""
        if task_id in self.tasks:
            return self.tasks[task_id]
        problems = self.invalid[task_id].problems if task_id in self.invalid else ("it is not in the dataset any more",)
        raise FailureEvent(TASK_INVALID, f"{task_id}: {'; '.join(problems)}", stage="admission")

    def require_rootfs(self, rootfs: str | None, state: Path) -> None:
        """Raises `FailureEvent`, `assay:image_missing`, for a root filesystem that is not there: it would fail all rows."""
        task = next(iter(self.tasks.values()), None)
        if rootfs is not None and task is not None:
            find_base(task, rootfs, state)

    @property
    def verifiers_digest(self) -> str:
        """Over the digests of all verifiers: whether today's are those of yesterday. Reads every verifier."""
        records = sorted(f"{name} {_verifier_digest(task)}\n" for name, task in self.tasks.items())
        return f"sha256:{hashlib.sha256(''.join(records).encode()).hexdigest()}"

    def with_verifier(self, path: Path) -> Catalogue:
        """The same tasks, each graded by the Python file at `path`. Raises `WrongArgument`: multi-step tasks cannot be."""
        if path.suffix != ".py" or not path.is_file():
            raise WrongArgument(
                f"verifier: {path} must be a Python file that is there; a test.sh is changed in its task"
            )
        stepped = [name for name, task in self.tasks.items() if task.steps]
        if stepped:
            raise WrongArgument(
                f"verifier: {stepped[0]} has steps, each with a verifier of its own; change it there, or choose tasks with --task"
            )
        source = VerifierSource("python", path.absolute(), "dataset")
        changed = {name: replace(task, verifier=source) for name, task in self.tasks.items()}
        return replace(self, tasks=changed)

    def chosen(self, wanted: set[str]) -> Catalogue:
        """Those tasks alone."""
        return replace(self, tasks={name: task for name, task in self.tasks.items() if name in wanted})


def load_catalogue(folder: str) -> Catalogue:
    """The tasks of a dataset, or a single one. Raises `TaskInvalid` when there is none."""
    dataset = load_dataset(folder)
    tasks = dict(dataset.by_id)
    invalid = {_id_of(one.path): one for one in dataset.invalid}
    return Catalogue(tasks, {name: one for name, one in invalid.items() if name not in tasks})


def _id_of(path: Path) -> str:
    path = path.absolute()
    row = not path.is_dir() and (path.parent / ROWS_FILE).exists()
    return f"{path.parent.name}/{path.name}" if row else path.name


def _verifier_digest(task: Task) -> str | None:
    try:
        return task.verifier_digest
    except (FailureEvent, OSError):
        # Said of its answers when they are met.
        return None

"""Assay grades what an AI agent did: a task and a workspace in, an honest reward or a typed failure out.

`load_task(path)`, `await grade(task, workspace, response)` and `grade_sync` are the whole of it for most users. They are
imported when they are first used, so that `import assay` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from assay.failures import FailureEvent
    from assay.grading import Captured, Verdict, grade, grade_sync
    from assay.tasks import Task, load_dataset, load_task

__version__ = "0.1.0"

_HOMES = {
    "Captured": "assay.grading",
    "FailureEvent": "assay.failures",
    "Task": "assay.tasks",
    "Verdict": "assay.grading",
    "grade": "assay.grading",
    "grade_sync": "assay.grading",
    "load_dataset": "assay.tasks",
    "load_task": "assay.tasks",
}

__all__ = [
    "Captured",
    "FailureEvent",
    "Task",
    "Verdict",
    "__version__",
    "grade",
    "grade_sync",
    "load_dataset",
    "load_task",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'assay' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)

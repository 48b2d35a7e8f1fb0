"""Rows of NeMo Gym's rollouts, and our own exported ones: one answer a line."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from assay.failures import FailureEvent
from assay.failures.kinds import WORKSPACE_INVALID
from assay.grading import WrongArgument
from assay.runs.catalogue import Catalogue
from assay.runs.left import Left
from assay.runs.offers import Numbering, Offer, Problem
from assay.runs.performing import UNCAPTURED as UNCAPTURED_KINDS
from assay.runs.verifying import UNCAPTURED, is_rows_own
from assay.tasks import Task, canonical_json

_LINE_MAX: Final = 256 * 1024 * 1024
_SAID: Final = ("reward", "mask_sample", "failure_kind", "failure_reason")
"""What its own program made of it: kept beside the answer, and no verdict of ours."""
_NOT_KEPT: Final = frozenset({"response", "workspace", "verdict", "task_id", "task_digest", *_SAID})


def offered_rows(path: Path, catalogue: Catalogue) -> Iterator[Offer | Problem]:
    """Every line of a JSONL as an answer or a problem. Raises `WrongArgument` when it cannot be read at all. Blocks."""
    numbering = Numbering()
    try:
        with path.open("rb") as file:
            number = 0
            while line := file.readline(_LINE_MAX):
                number += 1
                where = f"{path.name}, line {number}"
                torn = not line.endswith(b"\n")
                if torn and len(line) == _LINE_MAX:
                    yield Problem(where, f"is longer than {_LINE_MAX} bytes")
                    while (rest := file.readline(_LINE_MAX)) and not rest.endswith(b"\n"):
                        pass
                    continue
                if line.strip():
                    yield _offer(line, where, catalogue, numbering, torn=torn)
    except OSError as error:
        raise WrongArgument(f"from: {path} cannot be read: {error.strerror}") from None


def _offer(line: bytes, where: str, catalogue: Catalogue, numbering: Numbering, *, torn: bool) -> Offer | Problem:
    try:
        row = json.loads(line, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        if torn:
            return Problem(where, "is torn: the file ends in the middle of it, as when its writer was killed")
        return Problem(where, f"is no JSON: {error}")
    if not isinstance(row, dict):
        return Problem(where, f"is no row: a JSON object was expected, got {type(row).__name__}")
    task = _task_of(row, catalogue)
    if isinstance(task, str):
        return Problem(where, task)
    for name, value in row.items():
        if is_rows_own(name) and name in task.task_data and not _same(task.task_data[name], value):
            return Problem(where, f"contradicts the task {task.id}: {name} is something else there")
    response = row.get("response")
    if not isinstance(response, str | dict | None):
        return Problem(where, f"response must be an object or a text, got {type(response).__name__}")
    rollout = row.get("_ng_rollout_index")
    if rollout is not None and (not isinstance(rollout, int) or isinstance(rollout, bool) or rollout < 0):
        return Problem(where, f"_ng_rollout_index must be a number from 0, got {rollout!r:.50}")
    one = numbering.identity(task.id, rollout, where)
    if isinstance(one, Problem):
        return one
    try:
        snapshot, uncaptured = _snapshot_of(row), _is_uncaptured(row)
    except ValueError as error:
        return Problem(where, str(error), one)
    if response is None and snapshot is None and not uncaptured:
        failed = row.get("_ng_failure_class") or row.get("failure_kind")
        said = f" (its program says {failed})" if failed else ""
        return Problem(where, f"holds no answer: no response{said}", one)
    extra = {name: value for name, value in row.items() if name not in _NOT_KEPT and not name.startswith("_ng_failure")}
    recorded = {name: row[name] for name in _SAID if row.get(name) is not None}
    if recorded:
        extra["_assay_recorded"] = recorded

    @asynccontextmanager
    async def left() -> AsyncIterator[Left]:
        yield Left(None, response, None, extra)

    digest = row.get("task_digest")
    return Offer(where, task, one, left, digest if isinstance(digest, str) else None, snapshot)


def no_workspace(digest: str, where: str) -> FailureEvent:
    """What to say of a row whose workspace is not among the run's."""
    return FailureEvent(
        WORKSPACE_INVALID,
        f"its workspace {digest} is not in {where}; give the --snapshots of the run that it came from, or replay that run's "
        "folder",
    )


def _task_of(row: Mapping[str, Any], catalogue: Catalogue) -> Task | str:
    """The task that a row is about, or why there is none."""
    name = row.get("_ng_task_id", row.get("task_id"))
    if name is not None:
        if not isinstance(name, str):
            return f"names its task by {type(name).__name__}, not by text"
        return catalogue.tasks.get(name, f"is of the task {name!r:.200}, which the dataset does not have")
    tasks = list(catalogue.tasks.values())
    if len(tasks) == 1:
        return tasks[0]
    index = row.get("_ng_task_index")
    own = {field: value for field, value in row.items() if is_rows_own(field)}
    if isinstance(index, int) and 0 <= index < len(tasks):
        known = tasks[index].task_data
        # A number alone is no proof: the data must be the task's own.
        if own and all(field in known and _same(known[field], value) for field, value in own.items()):
            return tasks[index]
    alike = [
        task
        for task in tasks
        if own and all(field in task.task_data and _same(task.task_data[field], value) for field, value in own.items())
    ]
    if len(alike) == 1:
        return alike[0]
    return "does not say which task it is of: no _ng_task_id or task_id, and its fields are those of no single task"


def _snapshot_of(row: Mapping[str, Any]) -> str | None:
    """The workspace that a row names. Raises `ValueError` for one that cannot be had: the untouched environment is another."""
    workspace = row.get("workspace")
    if workspace is None:
        return None
    snapshot = workspace.get("snapshot") if isinstance(workspace, dict) and len(workspace) == 1 else None
    if isinstance(snapshot, str):
        return snapshot
    got = f"{{{', '.join(map(repr, workspace))}}}" if isinstance(workspace, dict) else type(workspace).__name__
    raise ValueError(f'workspace must be {{"snapshot": "sha256:…"}}, of a run\'s --snapshots, got {got:.200}')


def _is_uncaptured(row: Mapping[str, Any]) -> bool:
    """Whether a row says why its workspace could not be captured. Raises `ValueError` when it says something else there."""
    record = row.get(UNCAPTURED)
    if record is None:
        return False
    try:
        kind = FailureEvent.from_record(record).kind
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise ValueError(f"{UNCAPTURED} is no record of a failure: {error}") from None
    if kind not in UNCAPTURED_KINDS:
        raise ValueError(f"{UNCAPTURED} must be of {' or '.join(UNCAPTURED_KINDS)}, got {kind}")
    if row.get("workspace") is not None:
        raise ValueError(f"has both a workspace and {UNCAPTURED}; there is one or the other")
    return True


def _same(one: Any, other: Any) -> bool:
    return bool(canonical_json(one) == canonical_json(other))


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")

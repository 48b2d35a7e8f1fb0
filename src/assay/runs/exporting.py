"""A run as the field's JSONL: `rollouts.jsonl` (graded rows), `rollouts_failures.jsonl` (masked rows, rows without an answer).

A row is the request as it would be verified, and the reply: what the verify route answers, with the fields by which other
tools recover (`_ng_failure_class`, …) where there is no reward. A file has its name only once it is whole and on disk.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from assay.answers import (
    Answer,
    Choice,
    Database,
    Exported,
    Identity,
    attempts_at,
    exported,
    identities,
    outcomes,
    require_tasks,
)
from assay.grading import WrongArgument

ROWS: Final = "rollouts.jsonl"
FAILURES: Final = "rollouts_failures.jsonl"


@dataclass(frozen=True, slots=True)
class Export:
    """What was written."""

    rows: Path
    failures: Path
    graded: int
    masked: int
    """Of them: answers whose verdict is a failure."""
    agent_failed: int
    """Rows without an answer, since their agent failed: among the failures, too."""
    ungraded: int
    """Answers without any verdict: in neither file."""
    missing: int
    """Identities that nobody has worked on: in neither file."""

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "rows": str(self.rows),
            "failures": str(self.failures),
            "graded": self.graded,
            "masked": self.masked,
            "agent_failed": self.agent_failed,
            "ungraded": self.ungraded,
            "missing": self.missing,
        }


def export(database: Database, out: Path, *, choice: Choice | None = None) -> Export:
    """Write both files into the folder `out`, which is made; files of the same names are replaced in one step each.

    Streams. Blocks. Raises `WrongArgument` when they cannot be written or the choice of tasks fits none, and as the store does.
    """
    require_tasks(choice, database)
    graded = masked = agent_failed = ungraded = missing = 0
    numbers: dict[str, int] = {}
    for one in identities(database):
        numbers.setdefault(one.task_id, len(numbers))
    try:
        out.mkdir(parents=True, exist_ok=True)
        with _whole(out / FAILURES) as failures, _whole(out / ROWS) as rows:
            for item in exported(database, choice=choice):
                if item.verdict is None:
                    ungraded += 1
                elif item.verdict.body["status"] == "graded":
                    graded += 1
                    _write(rows, _graded_row(item, numbers))
                else:
                    masked += 1
                    _write(failures, _masked_row(database, item, numbers))
            for outcome in outcomes(database, choice=choice):
                if outcome.answer_id is None and outcome.kind is not None:
                    agent_failed += 1
                    terminal = outcome.state == "terminal"
                    _write(failures, _unanswered_row(database, outcome.identity, numbers, terminal=terminal))
                elif outcome.answer_id is None:
                    missing += 1
    except OSError as error:
        raise WrongArgument(f"out: {out} cannot be written: {error.strerror}; nothing there was changed") from None
    return Export(out / ROWS, out / FAILURES, graded, masked, agent_failed, ungraded, missing)


def _request(answer: Answer, numbers: Mapping[str, int]) -> dict[str, Any]:
    row = {**answer.extra, "response": answer.response}
    if answer.snapshot is not None:
        row["workspace"] = {"snapshot": answer.snapshot}
    if answer.task_digest is not None:
        row["task_digest"] = answer.task_digest
    return {**row, **_numbers(answer.identity, numbers), "_assay_answer_id": answer.id}


def _numbers(one: Identity, numbers: Mapping[str, int]) -> dict[str, Any]:
    return {
        "_ng_task_id": one.task_id,
        "_ng_task_index": numbers.get(one.task_id),
        "_ng_rollout_index": one.rollout,
    }


def _graded_row(item: Exported, numbers: Mapping[str, int]) -> dict[str, Any]:
    assert item.verdict is not None  # noqa: S101 - who calls has looked
    body = item.verdict.body
    reply = {"reward": body["reward"], "mask_sample": False, "failure_kind": None, "failure_reason": None}
    return {**_request(item.answer, numbers), **reply, "verdict": body}


def _masked_row(database: Database, item: Exported, numbers: Mapping[str, int]) -> dict[str, Any]:
    assert item.verdict is not None  # noqa: S101 - who calls has looked
    body = item.verdict.body
    masked = _masked(database, item.answer.identity, "verification", body["failure"], terminal=item.terminal)
    return {**_request(item.answer, numbers), **masked, "verdict": body}


def _unanswered_row(database: Database, one: Identity, numbers: Mapping[str, int], *, terminal: bool) -> dict[str, Any]:
    return {"response": None, **_numbers(one, numbers), **_masked(database, one, "agent", None, terminal=terminal)}


def _masked(
    database: Database, one: Identity, stage: str, failure: Mapping[str, Any] | None, *, terminal: bool
) -> dict[str, Any]:
    events: dict[str, Any] = {}
    for attempt in attempts_at(database, one):
        if attempt.stage == stage:
            events |= {record["event_id"]: record for record in attempt.events}
    if failure is None:
        # The newest is the one that ended it.
        failure = list(events.values())[-1]
    events.setdefault(failure["event_id"], failure)
    kind = failure["kind"]
    return {
        "reward": 0.0,
        "mask_sample": True,
        "failure_kind": kind,
        "failure_reason": failure["reason"],
        "_ng_failure_class": kind,
        "_ng_failure_events": events,
        "_ng_failure_id": failure["event_id"],
        "_ng_failure_terminal": terminal,
        "_ng_failure_message": failure["reason"],
        "_ng_failure_stage": failure["stage"],
    }


def _write(file: IO[bytes], row: Mapping[str, Any]) -> None:
    file.write(json.dumps(row, allow_nan=False).encode() + b"\n")


@contextmanager
def _whole(path: Path) -> Iterator[IO[bytes]]:
    """A file that takes the place of `path` when the block ends well, whole and on disk; else nothing changes."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    partial = Path(name)
    try:
        with os.fdopen(handle, "wb", buffering=1024 * 1024) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.chmod(0o644)
        partial.replace(path)
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise

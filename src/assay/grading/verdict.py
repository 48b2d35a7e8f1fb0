"""The verdict: what one verification of one answer came to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any

RULE = "evidence-1"
"""The rule of evidence by which `decide` settles ambiguous outcomes; a changed rule gets another name."""


class CausedBy(StrEnum):
    """Who is to blame for a failure."""

    SUBMISSION = "submission"
    VERIFIER = "verifier"
    INFRASTRUCTURE = "infrastructure"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of the verification that decided, and of the whole call."""

    queue_s: float = 0.0
    prepare_s: float = 0.0
    run_s: float = 0.0
    read_s: float = 0.0
    total_s: float = 0.0
    """From the call to the verdict: repeats and controls included."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome. `reward` is a finite number exactly when `status` is "graded"."""

    verdict_id: str
    """A ULID: sorts by time."""
    task_id: str
    task_digest: str | None
    verifier_digest: str | None
    base: str | None
    """"host", or the root filesystem's name or folder."""
    status: str
    """"graded" or "failed"."""
    reward: float | None
    metrics: Mapping[str, float] = field(default_factory=dict)
    checks: tuple[Mapping[str, Any], ...] = ()
    ended: Mapping[str, Any] | None = None
    """How the verifier ended: `how`, `code`, `signal`. Null when it never started."""
    limits_hit: tuple[str, ...] = ()
    unmet: tuple[str, ...] = ()
    """Wishes of the task (`memory_mb`, `cpus`, …) that cannot be enforced here."""
    dropped_files: tuple[Mapping[str, Any], ...] = ()
    """Sockets, devices and FIFOs of the workspace, which no verifier sees."""
    discarded_reward: float | None = None
    """One that was written before a limit ended the verifier."""
    rule: str = RULE
    provisional: bool = False
    evidence: Mapping[str, Any] | None = None
    """`key`: under which evidence that this verifier works is kept; `floor`: the reward of "nothing achieved", None when it is
    not known. What a store needs to settle a provisional verdict later. None for a multi-step task."""
    usage: Mapping[str, Any] = field(default_factory=dict)
    proven: bool = False
    """Whether this verifier was seen to give more than the floor for this task."""
    flaky: bool = False
    """Graded only when it was repeated."""
    caused_by: CausedBy | None = None
    failure: Mapping[str, Any] | None = None
    """A failure record (`FailureEvent.to_record`)."""
    trust: str = "separate"
    replaced: tuple[str, ...] = ()
    """Shared mode, where the task's image is at hand: programs and libraries that decide a verdict and are not the image's."""
    sandbox: str | None = None
    timing: Timing = field(default_factory=Timing)
    log_tail: str = ""
    found: tuple[Mapping[str, Any], ...] = ()
    """What was in the reward folder."""
    logs: Mapping[str, Any] = field(default_factory=lambda: {"folder": None, "truncated": False})
    answer_id: str | None = None
    steps: tuple[Mapping[str, Any], ...] = ()
    """For a multi-step task, in order: each step's verdict object with its name as `step`, of a step that was not reached
    `step` and `status` alone."""

    @property
    def graded(self) -> bool:
        """Whether there is a reward."""
        return self.status == "graded"

    def to_dict(self) -> dict[str, Any]:
        """The verdict object of `assay verify --json`: JSON types only, in the order of the documentation."""
        record = _shallow(self)
        record["timing"] = _shallow(self.timing)
        record["caused_by"] = self.caused_by.value if self.caused_by else None
        answer_id = record.pop("answer_id")
        return {"verdict_id": record.pop("verdict_id"), "answer_id": answer_id, **record}


def _shallow(value: Verdict | Timing) -> dict[str, Any]:
    """The fields by name. What is in them is JSON already; `asdict` would copy it all, for a tenth of a millisecond."""
    return {part.name: getattr(value, part.name) for part in fields(value)}

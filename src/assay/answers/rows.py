"""What a run keeps, as values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from assay.answers.schema import INTERRUPTED


class Identity(NamedTuple):
    """What an answer is an answer to: the n-th try at a task. At most one answer is kept for each."""

    task_id: str
    rollout: int
    """From 0."""


@dataclass(frozen=True, slots=True)
class Run:
    """A run as it was asked for."""

    id: str
    """A ULID."""
    created_at: float
    settings: Mapping[str, Any]
    """Whatever `runs/` needs to go on with it: dataset, agent, its settings. JSON values."""


@dataclass(frozen=True, slots=True)
class Command:
    """A command that wrote to the run."""

    id: str
    """A ULID."""
    name: str
    """`run`, `resume`, `recover`, `regrade`, …"""
    began_at: float
    ended_at: float | None
    """None: it still runs, or was killed."""
    settings: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Answer:
    """What an agent left, kept once and never changed."""

    id: str
    """A ULID."""
    identity: Identity
    task_digest: str | None
    """Of the task as the agent was given it."""
    snapshot: str | None
    """Digest of its workspace among the snapshots; None: only a response."""
    response: Any
    """The final response: a Responses API object, text, or None."""
    agent: str
    """Its name: `oracle`, `command`, …"""
    agent_settings: Mapping[str, Any] = field(default_factory=dict)
    created_at: float = 0.0
    dropped: Sequence[Mapping[str, Any]] = ()
    """What the capture left out: `path`, `type`, `bytes`."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Fields of a row that the answer came from, to be exported again; usage and times of the agent."""


@dataclass(frozen=True, slots=True)
class Claim:
    """An identity that is this process' to work on until its lease ends."""

    identity: Identity
    answer_id: str | None
    """None: the agent has to run first."""
    tries: int
    """Counted attempts so far of the kind that it last failed with."""


@dataclass(frozen=True, slots=True)
class Kept:
    """What became of a verdict that was handed in."""

    seq: int
    """Its place in the order of verdicts."""
    current: bool
    """Whether it is the answer's current one: False for a failed one beside a graded one of the same verifier."""
    settled: tuple[Identity, ...] = ()
    """Identities whose provisional verdict was settled by what it proves; perhaps its own."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """An identity and its current verdict, without the large parts."""

    identity: Identity
    answer_id: str | None
    status: str | None
    """`graded`, `failed`, or None: no verdict yet."""
    reward: float | None
    verifier_digest: str | None
    kind: str | None
    """Of the failure; of a graded one too, when it was graded at the floor because of it."""
    caused_by: str | None
    proven: bool
    provisional: bool
    flaky: bool
    state: str
    """One of `STATES`."""
    tries: int


@dataclass(frozen=True, slots=True)
class KeptVerdict:
    """A verdict in an answer's history."""

    seq: int
    id: str
    answer_id: str
    command_id: str | None
    attempt_id: str | None
    settles: str | None
    """The id of the provisional verdict that it settles: nothing was run for it."""
    created_at: float
    body: Mapping[str, Any]
    """The verdict object, as `assay verify --json` prints it."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """A try at an answer, or at grading one."""

    id: str
    """A ULID."""
    identity: Identity
    answer_id: str | None
    stage: str
    """`agent` or `verification`."""
    command_id: str | None
    owner: str
    """The process that made it."""
    repeatable: bool
    """Whether it may be made again when nobody knows how it ended: False for a verifier that is not stateless."""
    began_at: float
    ended_at: float | None
    """None: it still runs, or its process is gone."""
    outcome: str | None
    """`answered`, `graded`, `failed`, or `interrupted`."""
    kind: str | None
    """Of the failure that ended it."""
    verdict_id: str | None
    events: Sequence[Mapping[str, Any]] = ()
    """Records of every failure that was seen, oldest first."""

    @property
    def begun_for_good(self) -> bool:
        """Whether it must not be made again, though nobody knows how it ended."""
        unknown = self.ended_at is None or self.outcome == INTERRUPTED
        return self.stage == "verification" and not self.repeatable and unknown


class Waiting(NamedTuple):
    """Evidence that current provisional verdicts wait for."""

    key: str
    task_id: str
    verifier_digest: str | None
    floor: float | None
    """As far as verdicts have told it."""


@dataclass(frozen=True, slots=True)
class Exported:
    """All that is to be said of an identity with an answer."""

    answer: Answer
    verdict: KeptVerdict | None
    terminal: bool
    """Whether verifying the saved answer alone cannot settle it."""


@dataclass(frozen=True, slots=True)
class Change:
    """What a command's verdict replaced."""

    identity: Identity
    before: Mapping[str, Any] | None
    """`status`, `reward`, `kind`, `verifier_digest` of the verdict that was current before; None: there was none."""
    after: Mapping[str, Any]
    """The same of the command's own."""
    current: bool
    """Whether the command's verdict is now the current one."""

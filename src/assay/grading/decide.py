"""Graded or failed, and who caused it: the rule of evidence `evidence-1`, as a pure function.

If every crash were masked, crashing the grader would be a way to dodge a bad reward; if every crash were a zero, a broken
verifier would poison a whole run. So an ambiguous outcome is settled by evidence that this verifier works: `decide` looks
at what was observed and at the evidence so far, and either settles the verdict or names the one piece of evidence that it
wants next. Whoever calls it fetches that piece and asks again; every piece can be had at most once, so it ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from assay.failures import FailureEvent, is_infrastructure

from .observation import Observation, Standing
from .rewards import Reward
from .verdict import CausedBy

MAX_INFRASTRUCTURE_TRIES = 3
"""How often one verification is tried in all when the infrastructure fails it."""


class Ask(StrEnum):
    """The piece of evidence that is wanted next."""

    AGAIN = "again"
    """The same verification again: the infrastructure failed it."""
    REPEAT = "repeat"
    """The same verification once more: its outcome was ambiguous."""
    CONTROLS = "controls"
    """The untouched environment, and the task's own solution, by the same verifier."""


@dataclass(frozen=True, slots=True)
class Controls:
    """What the verifier says of answers whose worth is known."""

    untouched: Observation
    solution: Observation | None
    """None: the task has no solution."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that is known beside the observation."""

    stateless: bool = True
    """Whether this verifier may run twice for the same answer."""
    allowed: bool = True
    """False with `--no-control`: nothing more is run for evidence's sake."""
    tries: int = 1
    """How often this observation has been tried, this time included."""
    repeat: Observation | None = None
    """The second look at an ambiguous first one."""
    controls: Controls | None = None
    proven_before: bool = False
    """Another answer to this task was graded above the floor, or the controls proved the verifier earlier."""
    range_low: float | None = None
    """The lower bound of the task's `reward_range`."""
    untouched_asked: bool = False
    """Whether the untouched environment was graded, or tried, before: `untouched_before` is then all there is to know."""
    untouched_before: float | None = None
    """Its reward; None when it was not graded."""


@dataclass(frozen=True, slots=True)
class Settled:
    """The decision."""

    reward: Reward | None
    """Set: graded. None: failed."""
    deciding: Observation
    """The observation whose traces belong in the verdict."""
    failure: FailureEvent | None = None
    caused_by: CausedBy | None = None
    proven: bool = False
    flaky: bool = False
    provisional: bool = False


def floor_of(evidence: Evidence) -> float:
    """The reward of "nothing achieved": the lower bound of the declared range, else at most 0."""
    if evidence.range_low is not None:
        return evidence.range_low
    untouched = evidence.untouched_before
    if evidence.controls is not None and evidence.controls.untouched.reward is not None:
        untouched = evidence.controls.untouched.reward.value
    return min(0.0, untouched) if untouched is not None else 0.0


def floor_is_known(evidence: Evidence) -> bool:
    """Whether `floor_of` is more than a guess: a crash must not be worth more than a bad answer."""
    return evidence.range_low is not None or evidence.controls is not None or evidence.untouched_asked


def is_proven(evidence: Evidence) -> bool:
    """Whether this verifier was seen to give more than the floor for this task (rule 2)."""
    if evidence.proven_before:
        return True
    controls = evidence.controls
    if controls is None or controls.solution is None or controls.solution.reward is None:
        return False
    solution = controls.solution.reward.value
    untouched = controls.untouched.reward
    return solution > (untouched.value if untouched is not None else floor_of(evidence))


def decide(first: Observation, evidence: Evidence) -> Settled | Ask:
    """Settle the verdict, or name the evidence that is wanted next.

    `first` is the first observation that was not the infrastructure's failure, or the last one when there is none such.
    """
    flaky = False
    now = first
    if first.standing is Standing.AMBIGUOUS and evidence.repeat is not None:
        now = evidence.repeat
        flaky = now.standing is Standing.GRADED
    if now.standing is Standing.REFUSED:
        return Settled(None, now, now.failure, _blame_of_refusal(now))
    if now.standing is Standing.INFRASTRUCTURE:
        may_run_again = (evidence.stateless or not now.started) and _may_pass(now)
        if may_run_again and evidence.tries < MAX_INFRASTRUCTURE_TRIES:
            return Ask.AGAIN
        return Settled(None, now, now.failure, CausedBy.INFRASTRUCTURE)
    if now.standing is Standing.GRADED:
        return _graded(now, evidence, flaky)
    return _ambiguous(first, evidence)


def _graded(now: Observation, evidence: Evidence, flaky: bool) -> Settled | Ask:
    reward = now.reward
    assert reward is not None  # noqa: S101 - what GRADED means
    if reward.value > floor_of(evidence):
        return Settled(reward, now, proven=True, flaky=flaky)
    if not is_proven(evidence) and _may_ask_controls(evidence):
        return Ask.CONTROLS
    return Settled(reward, now, proven=is_proven(evidence), flaky=flaky)


def _ambiguous(first: Observation, evidence: Evidence) -> Settled | Ask:
    failure = first.failure
    assert failure is not None  # noqa: S101 - what AMBIGUOUS means
    if evidence.repeat is None and first.started and evidence.stateless and evidence.allowed:
        return Ask.REPEAT
    if is_proven(evidence) and floor_is_known(evidence):
        return Settled(Reward(floor_of(evidence)), first, failure, CausedBy.SUBMISSION, proven=True)
    if _may_ask_controls(evidence):
        return Ask.CONTROLS
    solution = evidence.controls.solution if evidence.controls is not None else None
    if solution is not None and solution.standing is Standing.AMBIGUOUS:
        return Settled(None, first, failure, CausedBy.VERIFIER)
    return Settled(None, first, failure, CausedBy.UNKNOWN, provisional=True)


def _may_pass(now: Observation) -> bool:
    """Whether trying at once may help. A judge that failed was asked several times already: that is for later."""
    return now.failure is not None and is_infrastructure(now.failure.kind)


def _may_ask_controls(evidence: Evidence) -> bool:
    return evidence.controls is None and evidence.stateless and evidence.allowed


def _blame_of_refusal(now: Observation) -> CausedBy | None:
    """A machine that lacks what the task needs is the infrastructure's fault; an unreadable input is nobody's of these."""
    kind = now.failure.kind if now.failure is not None else ""
    lacking = kind in ("assay:image_missing", "assay:guarantee_unmet") or is_infrastructure(kind)
    return CausedBy.INFRASTRUCTURE if lacking else None

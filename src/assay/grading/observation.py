"""What one run of a verifier came to, before anyone decides what that means."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from assay.failures import FailureEvent

from .rewards import Reward
from .verdict import Timing


class Standing(StrEnum):
    """What an observation can be taken for."""

    GRADED = "graded"
    """A valid reward, and the verifier ended by itself."""
    AMBIGUOUS = "ambiguous"
    """No reward, for a reason that a broken verifier and a hostile submission could equally have caused."""
    INFRASTRUCTURE = "infrastructure"
    """The sandbox could not be made or was lost, by evidence from outside it."""
    REFUSED = "refused"
    """Nothing was run: the task or the workspace cannot be read, or a guarantee or an image is missing."""


@dataclass(frozen=True, slots=True)
class Run:
    """The traces of a verifier that was started."""

    ended: Mapping[str, Any]
    limits_hit: tuple[str, ...] = ()
    checks: tuple[Mapping[str, Any], ...] = ()
    found: tuple[Mapping[str, Any], ...] = ()
    log_tail: str = ""
    truncated: bool = False
    discarded_reward: float | None = None
    usage: Mapping[str, Any] = field(default_factory=dict)
    """What was used beside the verifier's own sandbox: `runs` of the submission and their `run_s`, wall-clock
    seconds; `judge_calls`, their `judge_s`, `judge_input_tokens` and `judge_output_tokens`."""
    unmet: tuple[str, ...] = ()
    """Wishes of the verifier's own that cannot be enforced here."""


@dataclass(frozen=True, slots=True)
class Observation:
    """One look at one answer. `reward` is set exactly when GRADED, `failure` exactly when not."""

    standing: Standing
    reward: Reward | None = None
    failure: FailureEvent | None = None
    run: Run | None = None
    """None when the verifier never started."""
    timing: Timing = field(default_factory=Timing)

    @property
    def started(self) -> bool:
        """Whether the verifier's own code may have run."""
        return self.run is not None


def graded(reward: Reward, run: Run | None = None, timing: Timing | None = None) -> Observation:
    """An observation of a reward."""
    return Observation(Standing.GRADED, reward=reward, run=run, timing=timing or Timing())


def not_graded(
    standing: Standing, failure: FailureEvent, run: Run | None = None, timing: Timing | None = None
) -> Observation:
    """An observation of anything else."""
    return Observation(standing, failure=failure, run=run, timing=timing or Timing())

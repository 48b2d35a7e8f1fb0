"""Two runs side by side: what differs, row by row and in the means."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from assay.answers import Choice, Database, Identity, Outcome, outcomes, require_tasks
from assay.runs.estimates import Spread


@dataclass(frozen=True, slots=True)
class Difference:
    """A row that is not the same in both."""

    identity: Identity
    a: Outcome | None
    """None: it is no part of the first run."""
    b: Outcome | None

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "task_id": self.identity.task_id,
            "rollout": self.identity.rollout,
            "a": _shown(self.a),
            "b": _shown(self.b),
        }


@dataclass
class Comparison:
    """The sums of a comparison; complete once its differences are exhausted."""

    common: int = 0
    """Rows that are graded in both: what the means here are over."""
    same: int = 0
    """Rows of both with the same outcome."""
    better: int = 0
    """Graded in both, and more in the second."""
    worse: int = 0
    graded_only_a: int = 0
    """Graded in the first, masked or missing in the second."""
    graded_only_b: int = 0
    only_a: int = 0
    """Identities that the second run does not have."""
    only_b: int = 0
    other_verifier: int = 0
    """Rows graded in both, by different verifiers: what differs may be theirs."""
    mean_a: float | None = None
    """Over the common rows."""
    mean_b: float | None = None
    delta: float | None = None
    interval: tuple[float, float] | None = None
    """95 % of the delta, bootstrapped over the tasks, each with its rows of both runs."""

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {**asdict(self), "interval": list(self.interval) if self.interval is not None else None}


def compare(a: Database, b: Database, comparison: Comparison, *, choice: Choice | None = None) -> Iterator[Difference]:
    """Every row that differs, by task and rollout, streamed; `comparison` is filled in on the way. Blocks.

    Both runs are read side by side in one order, so nothing is held but one task's sums. Raises `WrongArgument` for a choice
    of tasks that fits none in either.
    """
    require_tasks(choice, a, b)
    spread = Spread()
    task, total, rows = "", 0.0, 0
    totals_a: list[float] = []
    totals_b: list[float] = []
    for one, first, second in _merged(
        outcomes(a, choice=choice, by_task=True), outcomes(b, choice=choice, by_task=True)
    ):
        if one.task_id != task:
            spread.add(total, rows)
            task, total, rows = one.task_id, 0.0, 0
        if first is not None and second is not None and first.reward is not None and second.reward is not None:
            rows += 1
            total += second.reward - first.reward
            totals_a.append(first.reward)
            totals_b.append(second.reward)
            if len(totals_a) >= 1000:
                # Exact sums, without holding every reward.
                totals_a, totals_b = [math.fsum(totals_a)], [math.fsum(totals_b)]
        if _count(comparison, first, second):
            yield Difference(one, first, second)
    spread.add(total, rows)
    if comparison.common:
        comparison.mean_a = math.fsum(totals_a) / comparison.common
        comparison.mean_b = math.fsum(totals_b) / comparison.common
        comparison.delta = comparison.mean_b - comparison.mean_a
        comparison.interval = spread.interval()


def _count(comparison: Comparison, a: Outcome | None, b: Outcome | None) -> bool:
    """Count a row; whether it differs."""
    if a is None or b is None:
        comparison.only_a += b is None
        comparison.only_b += a is None
        return True
    if a.reward is not None and b.reward is not None:
        comparison.common += 1
        comparison.other_verifier += a.verifier_digest != b.verifier_digest
        comparison.better += b.reward > a.reward
        comparison.worse += b.reward < a.reward
    else:
        comparison.graded_only_a += a.reward is not None
        comparison.graded_only_b += b.reward is not None
    differs = (a.status, a.reward, a.kind) != (b.status, b.reward, b.kind)
    comparison.same += not differs
    return differs


def _merged(a: Iterator[Outcome], b: Iterator[Outcome]) -> Iterator[tuple[Identity, Outcome | None, Outcome | None]]:
    first, second = next(a, None), next(b, None)
    while first is not None or second is not None:
        # By bytes, as both stores sort.
        left = _key(first.identity) if first is not None else None
        right = _key(second.identity) if second is not None else None
        take_a = right is None or (left is not None and left <= right)
        take_b = left is None or (right is not None and right <= left)
        taken = (first if take_a else None, second if take_b else None)
        one = taken[0] or taken[1]
        assert one is not None  # noqa: S101 - one of them is there
        yield one.identity, *taken
        first = next(a, None) if take_a else first
        second = next(b, None) if take_b else second


def _key(one: Identity) -> tuple[bytes, int]:
    return one.task_id.encode("utf-8", "surrogatepass"), one.rollout


def _shown(one: Outcome | None) -> dict[str, Any] | None:
    if one is None:
        return None
    return {
        "state": one.state,
        "status": one.status,
        "reward": one.reward,
        "kind": one.kind,
        "caused_by": one.caused_by,
        "verifier_digest": one.verifier_digest,
    }

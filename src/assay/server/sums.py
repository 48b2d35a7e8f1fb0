"""Means over the rows that were graded, and how many were not."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from assay.failures.kinds import INVALID_REWARD


@dataclass(slots=True)
class Sum:
    """A group of rows: numbers of the graded ones, kinds of the masked ones."""

    rewards: list[float] = field(default_factory=list)
    metrics: dict[str, list[float]] = field(default_factory=dict)
    masked: Counter[str] = field(default_factory=Counter)

    def add(self, row: Mapping[str, Any]) -> None:
        """Count one row. A masked one, and one whose reward is no finite number, is in no mean."""
        kind = row.get("failure_kind") or row.get("_ng_failure_class")
        reward = row.get("reward")
        if row.get("mask_sample") is True or kind or not _is_number(reward):
            self.masked[kind if isinstance(kind, str) and kind else INVALID_REWARD] += 1
            return
        assert isinstance(reward, int | float)  # noqa: S101 - looked at above
        self.rewards.append(float(reward))
        verdict = row.get("verdict")
        metrics = verdict.get("metrics") if isinstance(verdict, Mapping) else None
        for name, value in metrics.items() if isinstance(metrics, Mapping) else ():
            if _is_number(value):
                self.metrics.setdefault(name, []).append(float(value))

    def means(self) -> dict[str, float]:
        """`mean/reward` and `mean/NAME`; nothing when no row was graded."""
        named = {"reward": self.rewards} | self.metrics
        return {f"mean/{name}": _mean(values) for name, values in named.items() if values}

    def record(self) -> dict[str, Any]:
        """Means, and the counts that say what they are means of."""
        return {**self.means(), "graded": len(self.rewards), "masked": dict(sorted(self.masked.items()))}


def aggregate(rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The reply of `POST /aggregate_metrics` for replies of `POST /verify`."""
    whole = Sum()
    groups: dict[str, Sum] = {}
    for row in rows:
        whole.add(row)
        groups.setdefault(_group(row), Sum()).add(row)
    return {
        "group_level_metrics": [{"group": name, **found.record()} for name, found in sorted(groups.items())],
        "agent_metrics": whole.record(),
        "key_metrics": {name: value for name, value in whole.means().items() if name == "mean/reward"},
        "graded": len(whole.rewards),
        "masked": dict(sorted(whole.masked.items())),
    }


def _group(row: Mapping[str, Any]) -> str:
    """What rows are of the same task by: the first of these that a row has."""
    for name in ("_ng_task_index", "task_id", "_ng_task_id"):
        if (value := row.get(name)) is not None:
            return str(value)
    verdict = row.get("verdict")
    return str(verdict.get("task_id", "")) if isinstance(verdict, Mapping) else ""


def _mean(values: list[float]) -> float:
    # Divided first, and kept between its bounds: the sum of large numbers is no float any more.
    mean = sum(value / len(values) for value in values)
    return max(min(values), min(max(values), mean))


def _is_number(value: object) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False

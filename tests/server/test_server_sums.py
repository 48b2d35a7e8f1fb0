"""Means over graded rows alone."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from assay.server.sums import aggregate
from serving import served


def graded(reward: float, **metrics: float) -> dict[str, Any]:
    return {"reward": reward, "mask_sample": False, "verdict": {"task_id": "t", "metrics": metrics}}


def masked(kind: str) -> dict[str, Any]:
    return {"reward": 0.0, "mask_sample": True, "failure_kind": kind, "verdict": {"task_id": "t"}}


def test_masked_rows_are_in_no_mean() -> None:
    said = aggregate(
        [graded(1, cases=3), graded(0), masked("session_lost"), masked("judge_failed"), masked("session_lost")]
    )
    assert said["agent_metrics"]["mean/reward"] == 0.5
    assert said["agent_metrics"]["mean/cases"] == 3.0
    assert (said["graded"], said["masked"]) == (2, {"judge_failed": 1, "session_lost": 2})
    assert said["key_metrics"] == {"mean/reward": 0.5}


def test_without_a_graded_row_there_is_no_mean() -> None:
    said = aggregate([masked("session_lost")])
    assert said["key_metrics"] == {}
    assert said["agent_metrics"] == {"graded": 0, "masked": {"session_lost": 1}}


@pytest.mark.parametrize(
    ("row", "kind"),
    [
        ({"reward": None}, "assay:invalid_reward"),
        ({"reward": "1"}, "assay:invalid_reward"),
        ({"reward": True}, "assay:invalid_reward"),
        ({"reward": 10**400}, "assay:invalid_reward"),
        ({}, "assay:invalid_reward"),
        ({"reward": 1.0, "mask_sample": True}, "assay:invalid_reward"),
        ({"reward": 1.0, "failure_kind": "x"}, "x"),
        ({"reward": 0.0, "_ng_failure_class": "judge_failed"}, "judge_failed"),
    ],
)
def test_what_is_no_reward_is_masked(row: dict[str, Any], kind: str) -> None:
    assert aggregate([row, graded(1)])["masked"] == {kind: 1}
    assert aggregate([row, graded(1)])["graded"] == 1


def test_groups_are_tasks() -> None:
    rows = [
        {**graded(1), "_ng_task_index": 1},
        {**graded(0), "_ng_task_index": 1},
        {**graded(1), "task_id": "b"},
        graded(0),
    ]
    groups = {group["group"]: group["mean/reward"] for group in aggregate(rows)["group_level_metrics"]}
    assert groups == {"1": 0.5, "b": 1.0, "t": 0.0}


@pytest.mark.parametrize("values", [[1.7e308] * 5, [1e308, -1e308], [5e-324] * 3])
def test_a_mean_is_between_its_values(values: list[float]) -> None:
    mean = aggregate([graded(value) for value in values])["key_metrics"]["mean/reward"]
    assert min(values) <= mean <= max(values)
    assert math.isfinite(mean)


async def test_over_http(dataset: Path, tmp_path: Path) -> None:
    async with served(dataset, state=tmp_path / "state") as server:
        rows = [(await server.verify(answer="a")).json(), masked("session_lost")]
        said = await server.ask("POST", "/aggregate_metrics", json={"verify_responses": rows})
        refused = await server.ask("POST", "/aggregate_metrics", json={"verify_responses": [1]})
    assert said.json()["agent_metrics"] == {"mean/reward": 1.0, "graded": 1, "masked": {"session_lost": 1}}
    assert (refused.status, refused.json()["field"]) == (422, "verify_responses")

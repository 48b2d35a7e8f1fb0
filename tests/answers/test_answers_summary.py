"""Counts and means: what is in them, what is left out, and that this is said."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from math import fsum
from typing import Any

import pytest
from making import answered, failed, fill, graded, provisional

from assay.answers import (
    Histogram,
    Identity,
    Masked,
    MetricMean,
    Store,
    TaskRewards,
    choice_of,
    histogram,
    metric_means,
    open_store,
    outcomes,
    rewards_by_task,
    totals,
)
from assay.failures import FailureEvent
from places import Where


@pytest.fixture
def store(where: Where) -> Iterator[Store]:
    with open_store(where.place, namespace=where.namespace) as opened:
        yield opened


async def put(store: Store, task: str, rollout: int, verdict: dict[str, Any] | None) -> None:
    answer_id = await answered(store, task, rollout)
    if verdict is not None:
        await store.keep_verdict(answer_id, {**verdict, "verdict_id": f"{task}{rollout}"})


async def mixed_run(store: Store) -> None:
    """Two planned rollouts of five tasks, everything that can become of them."""
    await store.plan([Identity(task, rollout) for task in "abcde" for rollout in (0, 1)])
    rows: dict[tuple[str, int], dict[str, Any] | None] = {
        ("a", 0): graded(1.0, "v1", metrics={"m": 1.0, "n": 2.0}),
        ("a", 1): graded(0.0, "v1", metrics={"m": 0.0}),
        ("b", 0): graded(0.0, "v2", proven=False),
        ("b", 1): provisional("k", None),
        ("c", 0): failed("judge_failed"),
        ("c", 1): failed("judge_failed"),
        ("d", 0): failed("assay:missing_reward", caused_by="verifier"),
        ("d", 1): None,
        ("e", 0): graded(0.0, "v1", caused_by="submission", failure=FailureEvent("assay:cpu_limit", "x").to_record()),
    }
    for (task, rollout), verdict in rows.items():
        await put(store, task, rollout, verdict)


async def test_a_mean_says_what_it_is_a_mean_of(store: Store) -> None:
    await mixed_run(store)
    found = totals(store.database)
    assert (found.planned, found.answered, found.graded, found.ungraded, found.unanswered) == (10, 9, 4, 1, 1)
    assert found.planned == found.graded + sum(row.rows for row in found.masked) + found.ungraded + found.unanswered
    assert (found.mean, found.low, found.high, found.binary) == (0.25, 0.0, 1.0, True)
    assert found.masked == (
        Masked("judge_failed", "infrastructure", 2, 0),
        Masked("assay:missing_reward", "unknown", 1, 1),
        Masked("assay:missing_reward", "verifier", 1, 0),
    )
    assert found.states == {"missing": 1, "scored": 4, "recoverable": 3, "exhausted": 0, "terminal": 2}
    assert found.verifiers == {"v1": 3, "v2": 1}
    assert (found.unproven, found.unproven_zeros, found.floored, found.flaky, found.held) == (1, 1, 1, 0, 0)


async def test_masking_a_row_takes_it_out_of_the_denominator_too(store: Store) -> None:
    for n, verdict in enumerate([graded(1.0), graded(0.0), failed()]):
        await put(store, "t", n, verdict)
    assert (totals(store.database).mean, totals(store.database).graded) == (0.5, 2)
    (answer,) = [one for one in outcomes(store.database) if one.status == "failed"]
    assert answer.answer_id is not None
    await store.keep_verdict(answer.answer_id, graded(0.0))
    assert (totals(store.database).mean, totals(store.database).graded) == (1 / 3, 3)


async def test_nothing_has_no_mean(store: Store) -> None:
    await store.plan([Identity("t", 0)])
    found = totals(store.database)
    assert (found.mean, found.low, found.high, found.graded, found.masked) == (None, None, None, 0, ())
    assert (histogram(store.database), metric_means(store.database)) == (None, [])


async def test_rewards_by_task_have_what_was_left_out_beside_them(store: Store) -> None:
    await mixed_run(store)
    assert list(rewards_by_task(store.database)) == [
        TaskRewards("a", 2, 2, 2, 1.0, 1, 2),
        TaskRewards("b", 2, 2, 1, 0.0, 0, 0),
        TaskRewards("c", 2, 2, 0, 0.0, 0, 0),
        TaskRewards("d", 2, 2, 0, 0.0, 0, 0),
        TaskRewards("e", 2, 1, 1, 0.0, 0, 1),
    ]


async def test_metrics_are_means_over_the_rows_that_have_them(store: Store) -> None:
    await mixed_run(store)
    assert metric_means(store.database) == [MetricMean("m", 2, 0.5), MetricMean("n", 1, 2.0)]
    # A regraded row has the metrics of its current verdict alone.
    first = next(outcomes(store.database))
    assert first.answer_id is not None
    await store.keep_verdict(first.answer_id, graded(1.0, "v3", metrics={"m": 4.0}))
    assert metric_means(store.database) == [MetricMean("m", 2, 2.0)]


async def test_a_choice_narrows_every_count(store: Store) -> None:
    await mixed_run(store)
    chosen = choice_of("[ab]")
    assert (totals(store.database, choice=chosen).planned, totals(store.database, choice=chosen).mean) == (4, 1 / 3)
    assert [row.task_id for row in rewards_by_task(store.database, choice=chosen)] == ["a", "b"]
    assert totals(store.database, choice=choice_of(None, ["status=failed"])).graded == 0


SPREADS = {
    "spread": ([0.0, 0.1, 0.25, 0.5, 0.99, 1.0], 4, (2, 1, 1, 2)),
    "one value": ([0.5, 0.5], 10, (2,)),
    "negative": ([-2.0, -1.0, 2.0], 2, (2, 1)),
    "thirds": ([0.0, 1 / 3, 2 / 3, 1.0], 3, (1, 1, 2)),
}


@pytest.mark.parametrize(("rewards", "bins", "counts"), SPREADS.values(), ids=SPREADS)
async def test_every_reward_is_in_one_bin(
    store: Store, rewards: list[float], bins: int, counts: tuple[int, ...]
) -> None:
    for n, reward in enumerate(rewards):
        await put(store, "t", n, graded(reward))
    assert histogram(store.database, bins) == Histogram(min(rewards), max(rewards), counts)


def test_many_rows_are_added_up_as_one_by_one(where: Where) -> None:
    with open_store(where.place, namespace=where.namespace) as store:
        fill(store, 2000)
        rows = list(outcomes(store.database))
        found = totals(store.database)
        assert (found.graded, found.mean) == (2000, fsum(row.reward or 0 for row in rows) / 2000)
        by_task = Counter(row.identity.task_id for row in rows)
        assert {row.task_id: row.graded for row in rewards_by_task(store.database)} == by_task


MEASURE = """
import json, resource, sys
from assay.answers import (choice_of, exported, histogram, metric_means, open_store, outcomes, rewards_by_task, totals)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
with open_store(sys.argv[1], namespace=sys.argv[2], writing=False) as store:
    database = store.database
    counted = [totals(database).graded, histogram(database) is None, len(metric_means(database))]
    counted += [sum(1 for _ in stream(database)) for stream in (outcomes, rewards_by_task, exported)]
print(json.dumps([counted, before, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss]))
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_rows(where: Where, soaking: bool) -> None:
    """Twice: what more rows add is far less than the rows are."""
    rows = (10_000, 100_000) if soaking else (4_000, 16_000)
    used = []
    response = json.dumps({"output": "x" * 3000})
    for number, count in enumerate(rows):
        place = where.place if where.place.startswith("postgresql") else f"{where.place}-{number}"
        namespace = f"{where.namespace}_{number}"
        with open_store(place, namespace=namespace) as store:
            fill(store, count, response)
        done = subprocess.run(
            [sys.executable, "-c", MEASURE, place, namespace], capture_output=True, text=True, check=True
        )
        counted, before, after = json.loads(done.stdout)
        assert counted == [count, False, 3, count, count // 4, count]
        used.append(after - before)
        assert after < 300_000
    grown = (rows[1] - rows[0]) * 3  # kilobytes of responses alone
    assert used[1] - used[0] < grown / 4

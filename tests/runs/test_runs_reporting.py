"""A mean never changes its denominator in silence."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from answers.making import failed, graded, new_answer, provisional
from assay.answers import Answer, Identity, Store, choice_of, open_store
from assay.runs import Report, summarise


async def plan(store: Store, tasks: int, rollouts: int = 1) -> None:
    await store.plan([Identity(f"t{task}", rollout) for rollout in range(rollouts) for task in range(tasks)])


async def put(store: Store, task: str, verdict: dict[str, object] | None, rollout: int = 0) -> None:
    answer: Answer = new_answer(task, rollout)
    await store.keep_answer(answer)
    if verdict is not None:
        await store.keep_verdict(answer.id, {**verdict, "task_id": task})


async def all_graded(store: Store) -> None:
    await plan(store, 2)
    await put(store, "t0", graded(1.0))
    await put(store, "t1", graded(0.0))


async def masked(store: Store) -> None:
    await plan(store, 3)
    await put(store, "t0", graded(1.0))
    await put(store, "t1", failed("judge_failed"))
    await put(store, "t2", failed("verifier_error", caused_by="verifier"))


async def missing(store: Store) -> None:
    await plan(store, 4)
    await put(store, "t0", graded(1.0))
    await put(store, "t1", graded(0.0))


async def ungraded(store: Store) -> None:
    await plan(store, 2)
    await put(store, "t0", graded(0.5))
    await put(store, "t1", None)


async def waiting(store: Store) -> None:
    await plan(store, 2)
    await put(store, "t0", graded(1.0))
    await put(store, "t1", provisional("key"))


async def mixed(store: Store) -> None:
    await plan(store, 2, 2)
    for rollout in range(2):
        await put(store, "t0", graded(1.0, f"v{rollout}"), rollout)
        await put(store, "t1", graded(0.0, "v9"), rollout)


async def two_verifiers_of_two_tasks(store: Store) -> None:
    await plan(store, 2)
    await put(store, "t0", graded(1.0, "v0"))
    await put(store, "t1", graded(1.0, "v1"))


async def nothing(store: Store) -> None:
    await plan(store, 2)


Fill = Callable[[Store], Awaitable[None]]


def facts(report: Report) -> dict[str, object]:
    record = report.to_dict()
    shown = ("mean", "denominator", "planned", "masked", "ungraded", "unanswered", "partial", "mixed")
    # Whatever the mean leaves out is counted, once.
    assert record["planned"] == record["denominator"] + record["masked"] + record["ungraded"] + record["unanswered"]
    assert sum(record["masked_by_kind"].values()) == sum(record["masked_by_cause"].values()) == record["masked"]
    assert sum(record["states"].values()) == record["planned"]
    assert sum(record["verifiers"].values()) == record["denominator"]
    return {name: record[name] for name in shown}


@pytest.mark.parametrize(
    ("fill", "mean", "denominator", "planned", "left_out", "partial", "is_mixed"),
    [
        (all_graded, 0.5, 2, 2, {}, False, False),
        (masked, 1.0, 1, 3, {"masked": 2}, True, False),
        (missing, 0.5, 2, 4, {"unanswered": 2}, True, False),
        (ungraded, 0.5, 1, 2, {"ungraded": 1}, True, False),
        (waiting, 1.0, 1, 2, {"masked": 1}, True, False),
        (mixed, 0.5, 4, 4, {}, False, True),
        (two_verifiers_of_two_tasks, 1.0, 2, 2, {}, False, False),
        (nothing, None, 0, 2, {"unanswered": 2}, True, False),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
async def test_what_the_mean_is_over(
    tmp_path: Path,
    fill: Fill,
    mean: float | None,
    denominator: int,
    planned: int,
    left_out: dict[str, int],
    partial: bool,
    is_mixed: bool,
) -> None:
    with open_store(tmp_path / "run.sqlite") as store:
        await fill(store)
        found = facts(summarise(store.database))
    counts = {"masked": 0, "ungraded": 0, "unanswered": 0, **left_out}
    assert found == {
        "mean": mean, "denominator": denominator, "planned": planned, **counts, "partial": partial, "mixed": is_mixed
    }  # fmt: skip


async def test_masked_rows_by_kind_and_by_who_caused_it(tmp_path: Path) -> None:
    with open_store(tmp_path / "run.sqlite") as store:
        await masked(store)
        record = summarise(store.database).to_dict()
    assert record["masked_by_kind"] == {"judge_failed": 1, "verifier_error": 1}
    assert record["masked_by_cause"] == {"infrastructure": 1, "verifier": 1}


async def test_zeros_of_unproven_verifiers_are_counted_apart_and_their_tasks_named(tmp_path: Path) -> None:
    with open_store(tmp_path / "run.sqlite") as store:
        await plan(store, 3)
        await put(store, "t0", graded(0.0, proven=False))
        await put(store, "t1", graded(0.0, proven=True))
        await put(store, "t2", graded(1.0))
        report = summarise(store.database)
    assert (report.totals.unproven_zeros, report.unproven_tasks, report.unproven_named) == (1, 1, ("t0",))


async def test_chosen_rows_are_their_own_denominator(tmp_path: Path) -> None:
    with open_store(tmp_path / "run.sqlite") as store:
        await masked(store)
        report = summarise(store.database, choice=choice_of("t[01]"))
    assert (report.totals.graded, report.totals.planned, report.tasks) == (1, 2, 2)


async def test_pass_at_k_is_given_where_rewards_are_0_or_1(tmp_path: Path) -> None:
    with open_store(tmp_path / "run.sqlite") as store:
        await plan(store, 2, 2)
        for rollout, reward in ((0, 1.0), (1, 0.0)):
            await put(store, "t0", graded(reward), rollout)
        await put(store, "t1", graded(0.0))
        assert summarise(store.database).pass_at == ((1, 0.25, 2), (2, 1.0, 1))
        await put(store, "t1", graded(0.5), 1)
        assert summarise(store.database).pass_at == ()

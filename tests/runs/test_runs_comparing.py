"""Two runs side by side."""

from __future__ import annotations

from pathlib import Path

from answers.making import failed, graded, new_answer
from assay.answers import Identity, open_store
from assay.runs import Comparison, compare

Rows = dict[tuple[str, int], dict[str, object] | None]


async def lay(path: Path, rows: Rows) -> None:
    with open_store(path) as store:
        await store.plan([Identity(*one) for one in rows])
        for (task, rollout), verdict in rows.items():
            if verdict is not None:
                answer = new_answer(task, rollout)
                await store.keep_answer(answer)
                await store.keep_verdict(answer.id, {**verdict, "task_id": task})


async def compared(tmp_path: Path, a: Rows, b: Rows) -> tuple[list[tuple[str, int]], Comparison]:
    await lay(tmp_path / "a.sqlite", a)
    await lay(tmp_path / "b.sqlite", b)
    found = Comparison()
    with (
        open_store(tmp_path / "a.sqlite", writing=False) as one,
        open_store(tmp_path / "b.sqlite", writing=False) as two,
    ):
        rows = [tuple(row.identity) for row in compare(one.database, two.database, found)]
    return rows, found  # type: ignore[return-value]


async def test_rows_and_means(tmp_path: Path) -> None:
    """The order of planning is not that of comparing, and a row that only one run graded is in neither mean."""
    a: Rows = {
        ("z", 0): graded(1.0),
        ("b", 0): graded(0.0),
        ("b", 1): graded(0.5),
        ("ä", 0): graded(1.0),
        ("m", 0): None,
    }
    b: Rows = {
        ("b", 1): graded(0.5),
        ("b", 0): graded(1.0),
        ("m", 0): graded(1.0),
        ("z", 0): failed("judge_failed"),
        ("new", 0): graded(1.0),
    }
    rows, found = await compared(tmp_path, a, b)
    assert rows == [("b", 0), ("m", 0), ("new", 0), ("z", 0), ("ä", 0)]
    assert (found.common, found.same, found.better, found.worse) == (2, 1, 1, 0)
    assert (found.only_a, found.only_b, found.graded_only_a, found.graded_only_b) == (1, 1, 1, 1)
    assert (found.mean_a, found.mean_b, found.delta) == (0.25, 0.75, 0.5)
    assert found.interval is None


async def test_a_run_is_the_same_as_itself(tmp_path: Path) -> None:
    rows: Rows = {(f"t{number}", 0): graded(number / 10) for number in range(10)}
    different, found = await compared(tmp_path, rows, rows)
    assert different == []
    assert (found.same, found.delta, found.interval) == (10, 0.0, (0.0, 0.0))


async def test_different_verifiers_are_said(tmp_path: Path) -> None:
    _, found = await compared(tmp_path, {("t", 0): graded(1.0, "v1")}, {("t", 0): graded(1.0, "v2")})
    assert (found.other_verifier, found.same) == (1, 1)


async def test_no_row_in_common_has_no_mean(tmp_path: Path) -> None:
    _, found = await compared(tmp_path, {("t", 0): graded(1.0)}, {("u", 0): graded(1.0)})
    assert (found.common, found.mean_a, found.delta) == (0, None, None)

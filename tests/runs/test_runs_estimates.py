"""Intervals and pass@k against what is known of them."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from assay.runs.estimates import BLOCKS, PassAt, Spread, ks_up_to, pass_at


def spread_of(values: list[float]) -> tuple[float, float] | None:
    spread = Spread()
    for value in values:
        spread.add(value, 1)
    return spread.interval()


@pytest.mark.parametrize("tasks", [50, BLOCKS * 3])
def test_an_interval_is_as_wide_as_the_spread_of_the_mean(tasks: int) -> None:
    """Within a tenth of what theory says, with fewer tasks than blocks and with more."""
    draw = random.Random(1)
    values = [float(draw.random() < 0.3) for _ in range(tasks)]
    found = spread_of(values)
    assert found is not None
    mean = sum(values) / tasks
    width = 2 * 1.96 * math.sqrt(mean * (1 - mean) / tasks)
    assert found[0] < mean < found[1]
    assert abs((found[1] - found[0]) / width - 1) < 0.1


def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    draw, held = random.Random(2), 0
    for _ in range(60):
        found = spread_of([draw.gauss(0.5, 0.2) for _ in range(40)])
        assert found is not None
        held += found[0] <= 0.5 <= found[1]
    assert 51 <= held <= 60


def test_the_tasks_are_drawn_not_the_rows() -> None:
    """Ten rows of each task, all alike: as wide as one row of each, where drawing rows would claim three times the certainty."""
    one, ten = Spread(), Spread()
    draw = random.Random(3)
    for _ in range(100):
        value = float(draw.random() < 0.5)
        one.add(value, 1)
        ten.add(value * 10, 10)
    assert one.interval() == pytest.approx(ten.interval())


def test_the_same_rows_give_the_same_interval() -> None:
    values = [number % 7 / 7 for number in range(5000)]
    assert spread_of(values) == spread_of(values)


@pytest.mark.parametrize("values", [[], [1.0]])
def test_fewer_than_two_tasks_say_nothing_of_a_spread(values: list[float]) -> None:
    assert spread_of(values) is None


def test_a_task_without_a_graded_row_has_no_part_in_it() -> None:
    spread = Spread()
    for weight in (1, 0, 1, 0):
        spread.add(float(weight), weight)
    assert (spread.tasks, spread.interval()) == (2, (1.0, 1.0))


@pytest.mark.parametrize("tries", [1, 3, 6])
def test_pass_at_k_is_the_share_of_draws_that_hold_a_success(tries: int) -> None:
    for successes, k in itertools.product(range(tries + 1), range(1, tries + 1)):
        outcomes = [number < successes for number in range(tries)]
        draws = list(itertools.combinations(outcomes, k))
        assert pass_at(tries, successes, k) == pytest.approx(sum(map(any, draws)) / len(draws))


def test_only_tasks_with_enough_tries_count() -> None:
    passed = PassAt()
    passed.add(4, 2, ks_up_to(4))
    passed.add(1, 1, ks_up_to(1))
    assert passed.estimates() == [(1, 0.75, 2), (2, pytest.approx(5 / 6), 1), (4, 1.0, 1)]


@pytest.mark.parametrize(
    ("most", "expected"), [(0, []), (1, [1]), (3, [1, 2, 3]), (8, [1, 2, 4, 8]), (10, [1, 2, 4, 8, 10])]
)
def test_which_k_are_shown(most: int, expected: list[int]) -> None:
    assert ks_up_to(most) == expected

"""Whose doing a time limit is: the machine's, only when neither the sandbox nor what ran beside it used a processor."""

from __future__ import annotations

import pytest

from assay.grading.starvation import starved
from assay.sandbox import Ended, ExecResult

CASES = [
    # how, waited, used, used beside it, cpus -> starved
    (Ended.WALL_LIMIT, 6.0, 1.0, 0.0, None, True),
    (Ended.WALL_LIMIT, 4.9, 1.0, 0.0, None, False),
    (Ended.WALL_LIMIT, 9.0, 5.0, 0.0, None, False),
    (Ended.WALL_LIMIT, 6.0, 1.0, 0.0, 0.5, True),
    (Ended.WALL_LIMIT, 6.0, 2.5, 0.0, 0.5, False),
    (Ended.WALL_LIMIT, 8.0, 1.6, 6.4, None, False),
    (Ended.WALL_LIMIT, 8.0, 1.6, 1.0, None, True),
    (Ended.WALL_LIMIT, 0.0, 0.0, 0.0, None, False),
    (Ended.EXITED, 9.0, 0.1, 0.0, None, False),
]


@pytest.mark.parametrize(("how", "waited", "used", "beside", "cpus", "expected"), CASES)
def test_who_used_the_time_up(
    how: Ended, waited: float, used: float, beside: float, cpus: float | None, expected: bool
) -> None:
    assert starved(ExecResult(how, wall_s=10.0, cpu_s=used, run_delay_s=waited), cpus, beside) is expected


@pytest.mark.parametrize(("delay", "cpu"), [(None, 1.0), (9.0, None)])
def test_what_is_not_known_is_nobodys_excuse(delay: float | None, cpu: float | None) -> None:
    assert not starved(ExecResult(Ended.WALL_LIMIT, wall_s=10.0, cpu_s=cpu, run_delay_s=delay), None, 0.0)

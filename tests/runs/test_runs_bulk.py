"""Reading a run of many answers: streamed, so its memory does not grow with them."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.runs import COMMANDS, cost_of, make_run

from runs.worlds import soaking

FEW, MANY = (10_000, 100_000) if soaking() else (1000, 10_000)
MOST_MB = 300


@pytest.mark.slow
def test_memory_does_not_grow_with_a_run(tmp_path: Path) -> None:
    few, many = make_run(tmp_path / "few", FEW), make_run(tmp_path / "many", MANY)
    for name in COMMANDS:
        less, more = cost_of(name, few, FEW), cost_of(name, many, MANY)
        assert more.peak_mb < MOST_MB, (name, more)
        assert more.peak_mb < less.peak_mb * 1.5, (name, less, more)

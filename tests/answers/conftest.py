"""A fresh place for rows, in each kind of database in turn."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest

from places import Where

_numbers = itertools.count(1)


@pytest.fixture(params=["sqlite", "postgresql"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> Where:
    if request.param == "sqlite":
        return Where(str(tmp_path / "run.sqlite"), "assay")
    return Where(request.getfixturevalue("postgresql"), f"test_{next(_numbers)}")


@pytest.fixture
def in_postgresql(postgresql: str) -> Where:
    return Where(postgresql, f"test_{next(_numbers)}")


@pytest.fixture
def soaking() -> bool:
    """Whether the long form of a test was asked for."""
    return os.environ.get("ASSAY_SOAK") == "1"

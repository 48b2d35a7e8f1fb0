from __future__ import annotations

from pathlib import Path

import pytest

from serving import make_dataset


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """One stateless task."""
    return make_dataset(tmp_path / "dataset")


@pytest.fixture
def counting(tmp_path: Path) -> Path:
    """One task whose verifier must not be run twice."""
    return make_dataset(tmp_path / "counting", "unsupported")

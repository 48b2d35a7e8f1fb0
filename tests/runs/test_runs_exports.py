"""The room's public names."""

from __future__ import annotations

import assay.runs


def test_what_is_exported_is_sorted_and_there() -> None:
    assert sorted(assay.runs.__all__) == assay.runs.__all__
    for name in assay.runs.__all__:
        assert getattr(assay.runs, name) is not None


def test_every_public_name_of_the_room_is_listed() -> None:
    own = {
        name
        for name, value in vars(assay.runs).items()
        if not name.startswith("_") and getattr(value, "__module__", "").startswith("assay.runs")
    }
    assert own <= set(assay.runs.__all__)

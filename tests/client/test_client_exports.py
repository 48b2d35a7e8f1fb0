"""What the room exports is sorted, complete and there."""

from __future__ import annotations

from types import ModuleType

import pytest

import assay.client
import assay.client.testing


@pytest.mark.parametrize("module", [assay.client, assay.client.testing])
def test_exports(module: ModuleType) -> None:
    exported = list(module.__all__)
    # Constants, then classes, then functions, as the linter sorts them.
    assert exported == sorted(exported, key=lambda name: (not name.isupper(), not name[0].isupper(), name))
    assert all(hasattr(module, name) for name in exported)
    public = {
        name for name, value in vars(module).items() if not name.startswith("_") and not isinstance(value, ModuleType)
    }
    assert public - set(exported) <= {"annotations"}

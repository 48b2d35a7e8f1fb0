"""What the room's kit for tests exports is sorted, complete and there, and what importing the room costs."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType

import assay.client.testing


def test_exports() -> None:
    module = assay.client.testing
    exported = list(module.__all__)
    # Constants, then classes, then functions, as the linter sorts them.
    assert exported == sorted(exported, key=lambda name: (not name.isupper(), not name[0].isupper(), name))
    assert all(hasattr(module, name) for name in exported)
    public = {
        name for name, value in vars(module).items() if not name.startswith("_") and not isinstance(value, ModuleType)
    }
    assert public - set(exported) == set()


def test_an_agent_loads_nothing_of_grading() -> None:
    code = "import sys, assay.client; print(*sorted({'assay.grading', 'assay.tasks', 'pydantic'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "\n"

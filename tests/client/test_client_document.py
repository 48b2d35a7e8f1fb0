"""What `docs/http-client.md` shows and promises."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

from assay.client.testing import faults

DOCUMENT = (Path(__file__).parents[2] / "docs" / "http-client.md").read_text(encoding="utf-8")


def test_the_example_prints_what_the_document_says() -> None:
    (example,) = re.findall(r"```python\n(.*?)```", DOCUMENT, re.DOTALL)
    (printed,) = re.findall(r"It prints `([^`]+)`", DOCUMENT)
    done = subprocess.run([sys.executable, "-c", example], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == (f"{printed}\n", "")


def test_every_fault_is_named() -> None:
    ways = [
        name
        for name, value in vars(faults).items()
        if inspect.isfunction(value) and value.__annotations__.get("return") == "Fault"
    ]
    assert len(ways) > 15
    assert [name for name in ways if f"`{name}`" not in DOCUMENT] == []

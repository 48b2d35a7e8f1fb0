"""The same attacks where Assay was started by an ordinary user: no uid of a sandbox's own, perhaps no limits."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from attacks.harness import MODES, SOAK
from ordinary_user import REPOSITORY, run_as_ordinary_user

FAMILIES = ["channel", "secrets", "host", "inputs", "submissions"]
CHOSEN = [
    "22-",
    "23-",
    "26-",
    "27-",
    "SIGKILL",
    "29-",
    "33-",
    "35-",
    "38-setsid",
    "39-special",
    "network",
    "41-",
    "42-",
]
"""What an ordinary user's sandbox does otherwise; all of the families with ASSAY_SOAK=1."""

LINE = re.compile(r"^ *(\d+)  (.{52})  (\w+, \w+) *  (.*)$", re.MULTILINE)
"""Of the table of outcomes."""


@pytest.fixture(scope="module")
def fought(base_with_pytest: Path) -> tuple[int, str]:
    """The exit code of a session of an ordinary user's, and what it said; one for all modes, since each begins with much."""
    files = [f"tests/attacks/test_attacks_{family}.py" for family in FAMILIES]
    chosen = [] if SOAK else ["-k", " or ".join(CHOSEN)]
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        command = [sys.executable, "-m", "pytest", *files, "-q", "-p", "no:cacheprovider", *chosen]
        done = run_as_ordinary_user(
            [*command, "--basetemp", f"{folder}/base"],
            cwd=REPOSITORY,
            env={
                "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
                "PYTHONDONTWRITEBYTECODE": "1",
                "ASSAY_SOAK": "1" if SOAK else "",
            },
            timeout_s=3600 if SOAK else 300,
        )
    said = done.stdout.decode(errors="replace")
    return done.returncode, said + done.stderr.decode(errors="replace")[-2_000:]


@pytest.mark.skipif(os.geteuid() != 0, reason="every other test is run by an ordinary user already")
@pytest.mark.parametrize("mode", MODES)
def test_an_ordinary_user_is_as_safe(
    fought: tuple[int, str], outcomes: Callable[[int, str, str, str], None], mode: str
) -> None:
    code, said = fought
    for number, name, where, outcome in map(re.Match.groups, LINE.finditer(said)):
        if where.endswith(mode):
            outcomes(int(number), name.strip(), f"{where.strip()}, ordinary user", outcome)
    assert code == 0, said[-22_000:]
    assert said.count(f", {mode} ") >= len(CHOSEN), said

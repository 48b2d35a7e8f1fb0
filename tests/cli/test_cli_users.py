"""The same command as root and as an ordinary user; what the latter lacks is said, and refused where it is demanded."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from commands import ASSAY, make_task
from matrix import CASES, Case
from ordinary_user import run_as_ordinary_user

NAMES = ["number", "dict", "async", "sys.exit(0)", "os._exit(0)", "infinite loop", "200 MB of output", "fork bomb"]


def assay_as_user(*arguments: str | Path) -> tuple[int, dict[str, Any], str]:
    done = run_as_ordinary_user([*ASSAY, *map(str, arguments)])
    stderr = done.stderr.decode()
    assert "Traceback" not in stderr, stderr
    return done.returncode, json.loads(done.stdout), stderr


@pytest.fixture
def open_path() -> Iterator[Path]:
    """A folder that an ordinary user can reach: pytest's own are closed to others, and closed again by every session."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "w").mkdir()
        (folder / "w" / "answer.txt").write_text("42\n")
        yield folder


@pytest.mark.parametrize("case", [case for case in CASES if case.name in NAMES], ids=lambda case: case.name)
def test_verdicts_are_the_same_for_an_ordinary_user(open_path: Path, case: Case) -> None:
    task = make_task(open_path / "task", case.verifier, case.toml)
    code, verdict, _ = assay_as_user("verify", task, "--workspace", open_path / "w", "--json")
    assert (code, verdict["reward"]) == (case.code, case.reward), verdict
    if case.kind is not None:
        # Without a control group to count refused forks, a fork bomb is seen by what it raised.
        alike = {case.kind, "verifier_error"} if case.kind == "assay:process_limit" else {case.kind}
        assert verdict["failure"]["kind"] in alike


def test_doctor_says_what_an_ordinary_user_lacks_and_a_task_that_demands_it_is_refused(open_path: Path) -> None:
    code, found, _ = assay_as_user("doctor", "--json")
    held = {guarantee["name"]: guarantee["held"] for guarantee in found["guarantees"]}
    assert code == 0, found
    assert found["policy_met"] is True
    assert "uid_separation" not in found["policy"]
    lacking = [name for name in ("memory_limit", "uid_separation", "cpu_limit") if not held[name]]
    assert "uid_separation" in lacking
    for name in lacking:
        assert next(g for g in found["guarantees"] if g["name"] == name)["detail"]
        task = make_task(open_path / name, "def verify(workspace):\n    return 1\n", f"[assay]\nrequire = ['{name}']\n")
        code, verdict, _ = assay_as_user("verify", task, "--workspace", open_path / "w", "--json")
        assert (code, verdict["failure"]["kind"]) == (3, "assay:guarantee_unmet"), verdict
        assert name in verdict["failure"]["reason"]
        assert "assay doctor" in verdict["failure"]["reason"]


def test_a_workspace_that_may_not_be_read(open_path: Path) -> None:
    secret = open_path / "w" / "secret"
    secret.write_text("x")
    secret.chmod(0o600)
    task = make_task(open_path / "task", "def verify(workspace):\n    return 1\n")
    code, verdict, _ = assay_as_user("verify", task, "--workspace", open_path / "w", "--json")
    assert (code, verdict["failure"]["kind"]) == (2, "assay:workspace_invalid")
    assert "secret" in verdict["failure"]["reason"]


def test_the_helper_is_an_ordinary_user() -> None:
    done = run_as_ordinary_user([sys.executable, "-c", "import os; print(os.geteuid(), os.getgroups())"])
    assert done.stdout.split()[0] != b"0"

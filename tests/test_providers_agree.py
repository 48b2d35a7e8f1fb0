"""Two independent sandboxes, one verdict: every example, and every case of the matrix, graded on each and laid side by side."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from assay import Verdict, grade
from assay.grading import Observation, check_task
from assay.sandbox import Capability, get_provider, provider_names
from assay.tasks import load_task
from commands import make_task
from matrix import CASES, Case

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
EXPECTED = tomllib.loads((EXAMPLES / "expected.toml").read_text(encoding="utf-8"))
ANSWERS = [(name, what) for name, wanted in EXPECTED.items() for what in wanted if what not in ("shows", "solution")]
SOLUTIONS = [name for name, wanted in EXPECTED.items() if "solution" in wanted]
BOUNDED = {"memory bomb": Capability.MEMORY_LIMIT, "fork bomb": Capability.PROCESS_LIMIT}

Said = dict[str, Any]


@pytest.fixture(scope="module")
def providers() -> tuple[str, ...]:
    """Those that isolate and can make sandboxes here."""
    found = [name for name in provider_names() if name != "auto" and get_provider(name).isolated]
    able = tuple(name for name in found if get_provider(name).capabilities())
    if len(able) < 2:
        pytest.skip(f"this machine can make sandboxes with {able or 'nothing'} alone: there is nothing to compare")
    return able


@pytest.fixture
def state(tmp_path: Path, base_with_pytest: Path) -> Path:
    """A state folder with the root folder that one example needs. Each provider gets a copy: evidence is never shared."""
    for provider in provider_names():
        (tmp_path / provider / "rootfs").mkdir(parents=True)
        (tmp_path / provider / "rootfs" / "pytest").symlink_to(base_with_pytest)
    return tmp_path


def said(verdict: Verdict) -> Said:
    """What two providers must agree on."""
    return {
        "status": verdict.status,
        "reward": verdict.reward,
        "metrics": dict(verdict.metrics),
        "checks": list(verdict.checks),
        "kind": verdict.failure["kind"] if verdict.failure is not None else None,
        "caused_by": verdict.caused_by,
        "proven": verdict.proven,
        "provisional": verdict.provisional,
        "flaky": verdict.flaky,
        "discarded_reward": verdict.discarded_reward,
        "truncated": verdict.logs["truncated"],
    }


def seen(look: Observation) -> Said:
    """The same of one run of the solution."""
    kind = look.failure.kind if look.failure is not None else None
    reward = (look.reward.value, dict(look.reward.metrics)) if look.reward is not None else None
    return {"standing": look.standing, "reward": reward, "kind": kind}


def agree(found: dict[str, Said]) -> Said:
    """What they all said."""
    (first, one), *others = found.items()
    for name, other in others:
        assert other == one, f"{first} and {name} disagree"
    return one


@pytest.mark.parametrize(("name", "what"), ANSWERS, ids=map("-".join, ANSWERS))
async def test_an_example_is_worth_the_same(providers: tuple[str, ...], state: Path, name: str, what: str) -> None:
    workspace = None if what == "untouched" else EXAMPLES / "workspaces" / name / what
    response = EXAMPLES / "workspaces" / name / f"{what}.response.txt"
    text = response.read_text(encoding="utf-8") if response.exists() else None
    found = {
        provider: said(await grade(EXAMPLES / name, workspace, text, sandbox=provider, state=state / provider))
        for provider in providers
    }
    one, wanted = agree(found), EXPECTED[name][what]
    if isinstance(wanted, dict):
        assert (one["kind"], one["caused_by"]) == (wanted["failure"], wanted["caused_by"])
    else:
        assert one["reward"] == pytest.approx(wanted, abs=1e-6)


@pytest.mark.parametrize("name", SOLUTIONS)
async def test_a_solution_is_worth_the_same(providers: tuple[str, ...], state: Path, name: str) -> None:
    task = load_task(EXAMPLES / name)
    found = {}
    for provider in providers:
        check = await check_task(task, repeats=1, sandbox=provider, state=state / provider)
        found[provider] = {"solution": [seen(look) for look in check.solution], "ok": check.ok, "full": check.full}
    assert len(agree(found)["solution"]) == 1


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_every_kind_of_verifier_ends_the_same(providers: tuple[str, ...], tmp_path: Path, case: Case) -> None:
    needed = BOUNDED.get(case.name)
    if needed is not None and not all(needed in get_provider(name).capabilities() for name in providers):
        pytest.skip(f"without {needed} nothing bounds this one here")
    task = make_task(tmp_path / "task", case.verifier, case.toml)
    (tmp_path / "workspace").mkdir()
    (tmp_path / "workspace" / "answer.txt").write_text("42\n")
    found = {}
    for provider in providers:
        verdict = await grade(task, tmp_path / "workspace", sandbox=provider, state=tmp_path / provider, control=False)
        if verdict.failure is not None and "for a processor" in verdict.failure["reason"]:
            pytest.skip("this machine is too busy to tell a slow verifier from a machine that is")
        found[provider] = said(verdict)
    one = agree(found)
    assert (one["reward"], one["kind"], one["metrics"]) == (case.reward, case.kind, dict(case.metrics))

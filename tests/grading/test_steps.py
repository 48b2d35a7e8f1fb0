"""Multi-step tasks: how the rewards come together, and each step in a real sandbox."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from assay.grading import Reward, Verdict, check_task, grade
from assay.grading.steps import combine, shortfall
from assay.tasks import load_task, stage_tests, step_tasks
from filesystem import make_bash_task, make_filesystem

REWARD = "/logs/verifier/reward.txt"
SCORE = f'r=$(cat $STEP 2>/dev/null) || r=0; echo "$r" > {REWARD}'


def make_steps(folder: Path, names: list[str], head: str = "", tables: dict[str, str] | None = None) -> Path:
    """A task whose steps are each graded by what a file of the step's name holds, and solved by writing 1 into it."""
    toml = head + "".join(f'[[steps]]\nname = "{name}"\n{(tables or {}).get(name, "")}\n' for name in names)
    make_bash_task(folder, SCORE, toml)
    for name in names:
        step = folder / "steps" / name
        for part in ("tests", "solution"):
            (step / part).mkdir(parents=True)
        (step / "instruction.md").write_text("Do it.\n")
        (step / "tests" / "test.sh").write_text(f"STEP={name}\n{SCORE}\n")
        (step / "solution" / "solve.sh").write_text(f"echo 1 > {name}\n")
    return folder


def make_workspaces(folder: Path, rewards: dict[str, str]) -> Path:
    for name, reward in rewards.items():
        (folder / name).mkdir(parents=True)
        (folder / name / name).write_text(reward)
    folder.mkdir(exist_ok=True)
    return folder


async def judge(tmp_path: Path, task: Path, workspace: Any, **options: Any) -> Verdict:
    options.setdefault("control", False)
    return await grade(task, workspace, state=tmp_path / "state", **options)


COMBINED = [
    ("mean", None, [0.5, 1.0, 0.0], 0.5),
    ("mean", None, [0.6], 0.2),
    ("mean", [-1.0, 1.0], [0.5], -0.5),
    ("mean", [0.25, 1.0], [1.0, 0.25], 0.5),
    ("final", None, [0.0, 0.0, 1.0], 1.0),
    ("final", None, [1.0, 1.0], 0.0),
    ("final", [-1.0, 1.0], [1.0, 1.0], -1.0),
]


@pytest.mark.parametrize(("strategy", "bounds", "rewards", "expected"), COMBINED)
def test_how_rewards_come_together(
    tmp_path: Path, strategy: str, bounds: list[float] | None, rewards: list[float], expected: float
) -> None:
    """Steps that were not reached count as the floor: nothing makes the denominator smaller."""
    head = f'multi_step_reward_strategy = "{strategy}"\n'
    head += f"[assay]\nreward_range = {bounds}\n" if bounds else ""
    task = load_task(make_steps(tmp_path / "task", ["a", "b", "c"], head))
    combined = combine(task, [Reward(value, {"m": value}) for value in rewards])
    assert math.isclose(combined.value, expected)
    assert combined.metrics["a/reward"] == combined.metrics["a/m"] == rewards[0]
    floor = bounds[0] if bounds else 0.0
    assert combined.metrics["c/reward"] == (rewards[2] if len(rewards) == 3 else floor)


LIMITS = [
    ("min_reward = 0.5", Reward(0.5), None),
    ("min_reward = 0.5", Reward(0.49), "below min_reward 0.5"),
    ("min_reward = {speed = 2}", Reward(0.0, {"speed": 2.0}), None),
    ("min_reward = {speed = 2}", Reward(1.0, {"speed": 1.0}), "speed is 1"),
    ("min_reward = {speed = 2}", Reward(1.0), "speed is not there"),
    ("min_reward = {reward = 0.5, speed = 1}", Reward(0.25, {"speed": 1.0}), "reward is 0.25"),
    ("min_reward = {score = 0.5}", Reward(0.25), "score is 0.25"),
    ("", Reward(-1.0), None),
]


@pytest.mark.parametrize(("table", "reward", "said"), LIMITS)
def test_when_a_reward_ends_the_sequence(tmp_path: Path, table: str, reward: Reward, said: str | None) -> None:
    task = make_steps(tmp_path / "task", ["a"], '[assay]\nreward_key = "score"\n', {"a": table})
    found = shortfall(step_tasks(load_task(task))[0], reward)
    assert (found is None) if said is None else (found is not None and said in found)


RUNS = [
    ({"a": "1", "b": "0.5"}, "", 0.75, ["graded", "graded"]),
    ({"a": "0.4", "b": "1"}, "min_reward = 0.5", 0.2, ["graded", "not_reached"]),
    ({"a": "0.4"}, "min_reward = 0.5", 0.2, ["graded", "not_reached"]),
    ({"a": "1", "b": "broken"}, "", None, ["graded", "failed"]),
    ({"a": "broken", "b": "1"}, "", None, ["failed", "not_reached"]),
    ({"a": "1"}, "", None, ["graded", "failed"]),
]


@pytest.mark.parametrize(("rewards", "table", "reward", "statuses"), RUNS)
@pytest.mark.parametrize("given", ["folder", "mapping"])
async def test_step_by_step(
    tmp_path: Path, given: str, rewards: dict[str, str], table: str, reward: float | None, statuses: list[str]
) -> None:
    task = make_steps(tmp_path / "task", ["a", "b"], tables={"a": table})
    workspaces: Any = make_workspaces(tmp_path / "w", rewards)
    if given == "mapping":
        workspaces = {name: workspaces / name for name in rewards}
    verdict = await judge(tmp_path, task, workspaces)
    assert (verdict.reward, verdict.status) == (reward, "graded" if reward is not None else "failed"), verdict
    record = json.loads(json.dumps(verdict.to_dict()))
    assert [step["status"] for step in record["steps"]] == statuses
    assert [step["step"] for step in record["steps"]] == ["a", "b"]
    assert (verdict.task_id, record["steps"][0]["task_id"]) == ("task", "task/a")
    if reward is None:
        assert verdict.metrics == {}
        kind = "assay:invalid_reward" if "broken" in rewards.values() else "assay:workspace_invalid"
        assert (verdict.failure or {})["kind"] == kind
    else:
        assert set(verdict.metrics) == {"a/reward", "b/reward"}


async def test_the_controls_solve_step_by_step_on_one_workdir(tmp_path: Path) -> None:
    """A zero of the second step is proven by the first and second step's solutions together."""
    task = make_steps(tmp_path / "task", ["a", "b"])
    (task / "steps" / "b" / "tests" / "test.sh").write_text(
        f"[ -e a ] && [ -e b ] && echo 1 > {REWARD} || echo 0 > {REWARD}"
    )
    verdict = await judge(tmp_path, task, make_workspaces(tmp_path / "w", {"a": "1", "b": "0"}), control=True)
    assert (verdict.reward, verdict.proven) == (0.5, True), verdict
    assert [step["proven"] for step in verdict.steps] == [True, True]


async def test_a_step_that_breaks_its_verifier_is_worth_the_floor_when_that_is_proven(tmp_path: Path) -> None:
    task = make_steps(tmp_path / "task", ["a", "b"])
    verdict = await judge(tmp_path, task, make_workspaces(tmp_path / "w", {"a": "1", "b": "nan"}), control=True)
    assert (verdict.reward, verdict.caused_by, (verdict.failure or {}).get("kind")) == (
        0.5,
        "submission",
        "assay:invalid_reward",
    )


async def test_check_goes_through_all_steps(tmp_path: Path) -> None:
    task = make_steps(tmp_path / "task", ["a", "b"], tables={"a": "min_reward = 1.0"})
    found = await check_task(load_task(task), repeats=1, state=tmp_path / "state")
    assert found.ok, found.problems
    assert [look.reward for look in found.solution] == [Reward(1.0, {"a/reward": 1.0, "b/reward": 1.0})]
    assert [look.reward for look in found.untouched] == [Reward(0.0, {"a/reward": 0.0, "b/reward": 0.0})]
    (task / "steps" / "b" / "solution" / "solve.sh").write_text("true\n")
    assert "less than full" in (await check_task(load_task(task), repeats=1, state=tmp_path / "state")).problems[0]


async def test_what_a_step_adds_is_there_before_its_solution(tmp_path: Path) -> None:
    tables = {"b": '[steps.healthcheck]\ncommand = "[ -e a ] && [ -x made/by-setup ]"\n'}
    task = make_steps(tmp_path / "task", ["a", "b"], tables=tables)
    workdir = task / "steps" / "b" / "workdir"
    (workdir / "made").mkdir(parents=True)
    (workdir / "made" / "config").write_text("7")
    (workdir / "setup.sh").write_text("set -e\ncp made/config made/by-setup\nchmod +x made/by-setup\nrm -- $0\n")
    (task / "steps" / "a" / "solution" / "solve.sh").write_text("echo 1 > a; mkdir made; echo old > made/kept\n")
    (task / "steps" / "b" / "tests" / "test.sh").write_text(
        f"cd made && [ -e kept ] && [ -e by-setup ] && [ ! -e ../setup.sh ] && grep -q 1 ../b && echo 1 > {REWARD}"
        f" || echo 0 > {REWARD}\n"
    )
    found = await check_task(load_task(task), repeats=1, state=tmp_path / "state")
    assert found.ok, found.problems
    (task / "steps" / "b" / "workdir" / "setup.sh").write_text("true\n")
    (problem, *_) = (await check_task(load_task(task), repeats=1, state=tmp_path / "state")).problems
    assert "assay:healthcheck_failed" in problem


async def test_tables_of_a_step_lie_over_the_tasks(tmp_path: Path) -> None:
    head = (
        'artifacts = ["/app/x"]\n[verifier]\ntimeout_sec = 5\nuser = "root"\n[verifier.env]\nA = "task"\nB = "task"\n'
        '[[verifier.collect]]\ncommand = "first"\n[agent]\ntimeout_sec = 7\n'
    )
    table = (
        'artifacts = ["/app/y"]\n[steps.verifier]\nuser = 7\n[steps.verifier.env]\nB = "step"\n'
        '[[steps.verifier.collect]]\ncommand = "second"\n[steps.agent]\nuser = "agent"\n'
    )
    a, b = (view.config for view in step_tasks(load_task(make_steps(tmp_path / "t", ["a", "b"], head, {"b": table}))))
    assert (a.verifier.env, a.verifier.user, [h.command for h in a.verifier.collect]) == (
        {"A": "task", "B": "task"},
        "root",
        ["first"],
    )
    assert (b.verifier.env, b.verifier.user, b.verifier.timeout_sec) == ({"A": "task", "B": "step"}, 7, 5)
    assert [hook.command for hook in b.verifier.collect] == ["first", "second"]
    assert [part.source for part in b.artifacts] == ["/app/x", "/app/y"]
    assert (b.agent.user, b.agent.timeout_sec) == ("agent", 7)


def test_tests_of_a_step_lie_over_the_tasks(tmp_path: Path) -> None:
    task = make_steps(tmp_path / "task", ["a", "b"])
    (task / "tests" / "helpers.sh").write_text("shared")
    (task / "tests" / "data").mkdir()
    (task / "tests" / "data" / "x").write_text("task")
    (task / "steps" / "b" / "tests" / "data").mkdir()
    (task / "steps" / "b" / "tests" / "data" / "x").write_text("step")
    for view, text in zip(step_tasks(load_task(task)), ("task", "step"), strict=True):
        folder = tmp_path / view.id.replace("/", "-")
        stage_tests(view, folder, task_data={}, response=None)
        assert (folder / "data" / "x").read_text() == text
        assert (folder / "helpers.sh").read_text() == "shared"
        assert f"STEP={view.id[-1]}" in (folder / "test.sh").read_text()


async def test_a_step_with_a_python_verifier_of_its_own(tmp_path: Path) -> None:
    task = make_steps(tmp_path / "task", ["a", "b"])
    (task / "steps" / "b" / "tests" / "test.sh").unlink()
    (task / "steps" / "b" / "tests" / "verifier.py").write_text(
        "def verify(workspace, response):\n    return {'reward': 0.5, 'words': len(response['output_text'].split())}\n"
    )
    verdict = await judge(tmp_path, task, make_workspaces(tmp_path / "w", {"a": "1", "b": ""}), response="two words")
    assert (verdict.reward, verdict.metrics["b/words"]) == (0.75, 2.0), verdict


async def test_shared_mode_has_a_filesystem_for_each_step(tmp_path: Path) -> None:
    task = make_steps(tmp_path / "task", ["a", "b"])
    for name in ("a", "b"):
        root = make_filesystem(tmp_path / "roots" / name)
        (root / "app" / name).write_text("0.5")
    verdict = await judge(tmp_path, task, None, mode="shared", rootfs=str(tmp_path / "roots"))
    assert (verdict.reward, verdict.trust) == (0.5, "shared"), verdict


async def test_logs_are_kept_for_each_step(tmp_path: Path) -> None:
    task = make_steps(tmp_path / "task", ["a", "b"])
    await judge(tmp_path, task, make_workspaces(tmp_path / "w", {"a": "1", "b": "1"}), logs=tmp_path / "logs")
    for name in ("a", "b"):
        assert (tmp_path / "logs" / name / "attempt-1" / "verifier" / "reward.txt").read_text() == "1\n"


async def test_workspaces_by_step_need_steps(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no steps"):
        await judge(tmp_path, make_bash_task(tmp_path / "task", "true"), {"a": tmp_path})


async def test_a_step_that_could_not_start_hides_no_step_that_ran(tmp_path: Path) -> None:
    """Whoever may not run a verifier twice must be told that one of them ran."""
    task = make_steps(tmp_path / "task", ["one", "two"])
    verdict = await judge(tmp_path, task, {"one": make_workspaces(tmp_path / "w", {"one": "1"}) / "one"})
    assert verdict.failure is not None
    assert "two" in verdict.failure["reason"]
    assert verdict.ended == {"how": "exited", "code": 0, "signal": None}

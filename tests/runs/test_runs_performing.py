"""Agents at work in real sandboxes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from assay.answers import Answer, Identity, find_answer, find_trajectory
from assay.runs import AgentSettings, Done, GradingSettings, RunSettings, Setting, collect
from assay.workspaces import scratch_folder
from commands import make_task
from runs.worlds import opened, rows_of

ONE = Identity("task", 0)
READING = (
    "def verify(workspace, response=None):\n"
    "    said = (response or {}).get('output_text', '')\n"
    "    return {'reward': float((workspace / 'answer.txt').exists()), 'said': float('42' in said)}\n"
)


@pytest.fixture
def task(tmp_path: Path) -> Path:
    folder = make_task(tmp_path / "task", READING)
    (folder / "environment").mkdir()
    (folder / "environment" / "given.txt").write_text("given\n")
    (folder / "solution").mkdir()
    (folder / "solution" / "solve.sh").write_text("#!/bin/bash\ncp given.txt answer.txt\n")
    (folder / "solution" / "response.txt").write_text("It is 42.\n")
    return folder


async def perform(task: Path, agent: str, *, rollouts: int = 1, **given: Any) -> Done:
    folder = task.parent / "run"
    settings = RunSettings(str(task), AgentSettings(agent, **given), GradingSettings(control=False), rollouts)
    with opened(folder, settings) as run:
        done = await collect(run, Setting(state=folder.parent / "state", concurrency=1))
    assert not done.tally.bugs, done.tally.bugs
    return done


def answer_of(task: Path, one: Identity = ONE) -> tuple[Answer, bytes | None, dict[str, str]]:
    """An answer, its trajectory, the files of its workspace."""
    with opened(task.parent / "run") as run, scratch_folder("restored") as place:
        answer = find_answer(run.store.database, one)
        assert answer is not None
        assert answer.snapshot is not None
        run.snapshots.restore(answer.snapshot, place / "workspace")
        files = {
            str(path.relative_to(place / "workspace")): path.read_text()
            for path in sorted((place / "workspace").rglob("*"))
            if path.is_file()
        }
        return answer, find_trajectory(run.store.database, answer.id), files


async def test_the_oracle_runs_the_solution_and_says_what_it_ships(task: Path) -> None:
    await perform(task, "oracle")
    answer, _, files = answer_of(task)
    assert files == {"answer.txt": "given\n", "given.txt": "given\n"}
    assert answer.response == {"output_text": "It is 42.\n"}
    assert rows_of(task.parent / "run")[ONE].reward == 1.0


async def test_nobody_leaves_the_untouched_environment(task: Path) -> None:
    await perform(task, "nop")
    answer, _, files = answer_of(task)
    assert (files, answer.response) == ({"given.txt": "given\n"}, None)
    assert rows_of(task.parent / "run")[ONE].reward == 0.0


async def test_a_command_is_given_the_instruction_and_what_it_leaves_is_kept(
    task: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_KEY", "of this machine")
    monkeypatch.setenv("ANOTHER", "kept from it")
    script = (
        'cat > answer.txt; cmp answer.txt "$ASSAY_INSTRUCTION"; echo "[1]" > /logs/agent/trajectory.json; '
        'echo "$ASSAY_TASK $ASSAY_ROLLOUT $A_KEY $ANOTHER" >> answer.txt; echo 42; echo noise >&2'
    )
    await perform(task, "command", command=script, env=("A_KEY",))
    answer, trajectory, files = answer_of(task)
    assert files["answer.txt"] == "Do it.\ntask 0 of this machine \n"
    assert answer.response == {"output_text": "42\n"}
    assert trajectory == b"[1]\n"
    assert answer.extra["_assay_agent"] | {"seconds": 0} == {
        "ended": "exited", "code": 0, "log_tail": "noise", "seconds": 0
    }  # fmt: skip
    assert answer.agent_settings == {"command": script, "env": ["A_KEY"]}
    assert "of this machine" not in json.dumps(answer.agent_settings)
    assert rows_of(task.parent / "run")[ONE].reward == 1.0


@pytest.mark.parametrize(
    ("script", "response"),
    [
        ("echo aloud; echo 'It is 42' > /logs/agent/response.txt", {"output_text": "It is 42\n"}),
        ("""echo '{"output_text": "42", "id": "r"}' > /logs/agent/response.json""", {"output_text": "42", "id": "r"}),
        ("true", None),
    ],
)
async def test_what_a_command_says(task: Path, script: str, response: object) -> None:
    await perform(task, "command", command=script)
    assert answer_of(task)[0].response == response


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo no; exit 3", "the agent's command exited with code 3"),
        ("kill -9 $$", ("exited with code 137", "ended: signaled")),
        ("no-such-program", "exited with code 127"),
        ("echo '{' > /logs/agent/response.json", "the agent's response.json: "),
        ("ln -s /etc/passwd /logs/agent/response.txt", "/logs/agent/response.txt"),
        ("mkfifo /logs/agent/trajectory.json", "/logs/agent/trajectory.json"),
    ],
)
async def test_an_end_that_is_no_answer(task: Path, script: str, reason: str | tuple[str, ...]) -> None:
    """A signal is told as a shell tells it, where the provider cannot tell the two apart."""
    told: list[str] = []
    folder = task.parent / "run"
    settings = RunSettings(str(task), AgentSettings("command", command=script), GradingSettings(control=False))
    with opened(folder, settings) as run:
        setting = Setting(
            state=folder.parent / "state", watch=lambda _, happened: told.append(happened.about["reason"])
        )
        done = await collect(run, setting)
    assert (done.tally.agent_failed, done.tally.bugs) == ({"agent_run_error": 1}, [])
    assert any(one in told[0] for one in ([reason] if isinstance(reason, str) else reason)), told


async def test_time_that_is_over_ends_it_and_leaves_what_there_is(task: Path) -> None:
    await perform(task, "command", command="echo x > answer.txt; sleep 60", timeout_s=0.5)
    answer, _, files = answer_of(task)
    assert answer.extra["_assay_agent"]["ended"] == "wall_limit"
    assert files["answer.txt"] == "x\n"


async def test_steps_are_worked_on_in_turn_on_one_workspace(tmp_path: Path) -> None:
    """Each has its own instruction; each step's workspace is kept as it was when the step ended."""
    task = tmp_path / "task"
    task.mkdir()
    (task / "task.toml").write_text('schema_version = "1.4"\n[[steps]]\nname = "first"\n[[steps]]\nname = "second"\n')
    (task / "instruction.md").write_text("All.\n")
    for number, name in enumerate(("first", "second"), 1):
        step = task / "steps" / name
        (step / "tests").mkdir(parents=True)
        (step / "instruction.md").write_text(f"{name}\n")
        (step / "tests" / "verifier.py").write_text(
            f"def verify(workspace):\n    return float(len((workspace / 'log').read_text().split()) == {number})\n"
        )
    await perform(task, "command", command="cat >> log")
    _, _, files = answer_of(task)
    assert files == {"first/log": "first\n", "second/log": "first\nsecond\n"}
    assert rows_of(tmp_path / "run")[ONE].reward == 1.0


async def test_a_task_without_a_solution_has_no_oracle(tmp_path: Path) -> None:
    task = make_task(tmp_path / "task", READING)
    done = await perform(task, "oracle")
    assert done.tally.agent_failed == {"assay:task_invalid": 1}


async def test_a_variable_that_is_not_set_is_said(task: Path) -> None:
    done = await perform(task, "command", command="true", env=("NO_SUCH_VARIABLE",))
    assert done.tally.agent_failed == {"agent_run_error": 1}

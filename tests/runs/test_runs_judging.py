"""Verifiers that ask a model, and the agent that is one: what a model that is down does to a run, and what comes after."""

from __future__ import annotations

from pathlib import Path

import pytest

from assay.answers import Identity, find_answer
from assay.runs import AgentSettings, GradingSettings, RunSettings, Setting, collect, recover
from commands import make_task
from runs.endpoints import endpoint
from runs.worlds import opened, rows_of

ASKING = (
    "from assay.verifiers import ask_judge\n\n\n"
    "def verify(workspace, task_data):\n"
    "    if task_data['asks']:\n"
    "        return float(ask_judge('Is it right? ' + (workspace / 'answer.txt').read_text()) == 'yes')\n"
    "    return 0.5\n"
)
ASKS, SILENT = Identity("asks", 0), Identity("silent", 0)


def make(folder: Path) -> Path:
    for name in ("asks", "silent"):
        task = make_task(folder / name, ASKING)
        (task / "task_data.json").write_text(f'{{"asks": {str(name == "asks").lower()}}}')
        (task / "environment").mkdir()
        (task / "environment" / "answer.txt").write_text("given")
    return folder


async def test_a_judge_that_is_down_masks_and_recover_grades_just_those(tmp_path: Path) -> None:
    """A refusal that no second attempt changes, so that nothing waits."""
    dataset, folder = make(tmp_path / "data"), tmp_path / "run"
    async with endpoint(status=403) as judge:
        grading = GradingSettings(control=False, judges={"default": judge.url})
        settings = RunSettings(str(dataset), AgentSettings("command", command="echo mine > answer.txt"), grading)
        setting = Setting(state=tmp_path / "state", concurrency=1)
        with opened(folder, settings) as run:
            done = await collect(run, setting)
        assert dict(done.tally.masked) == {"judge_failed": 1}
        rows = rows_of(folder)
        assert (rows[ASKS].kind, rows[ASKS].state, rows[ASKS].reward) == ("judge_failed", "recoverable", None)
        assert rows[SILENT].reward == 0.5
        judge.status = 200
        with opened(folder) as run:
            before = find_answer(run.store.database, ASKS)
            done = await recover(run, setting)
            after = find_answer(run.store.database, ASKS)
        assert (done.tally.todo, done.tally.graded) == (1, 1)
        assert rows_of(folder)[ASKS].reward == 1.0
        assert before == after
        assert judge.asked[-1]["messages"][0]["content"] == "Is it right? mine\n"


async def test_a_models_text_is_the_response(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = make_task(tmp_path / "task", "def verify(response):\n    return float(response['output_text'] == 'yes')\n")
    monkeypatch.setenv("A_KEY", "secret")
    async with endpoint() as model:
        agent = AgentSettings("model", model="m", base_url=model.url, api_key_env="A_KEY")
        with opened(tmp_path / "run", RunSettings(str(task), agent, GradingSettings(control=False))) as run:
            done = await collect(run, Setting(state=tmp_path / "state"))
            answer = find_answer(run.store.database, Identity("task", 0))
        assert answer is not None
        assert (done.tally.graded, done.tally.mean) == (1, 1.0)
        assert model.asked == [{"model": "m", "messages": [{"role": "user", "content": "Do it.\n"}]}]
        assert model.keys == ["Bearer secret"]
        assert answer.response["output"][0]["content"][0]["text"] == "yes"
        assert (answer.snapshot, answer.extra["_assay_agent"]["output_tokens"]) == (None, 1)


@pytest.mark.parametrize(("status", "key"), [(401, "A_KEY"), (200, "NOT_SET")])
async def test_a_model_that_is_not_to_be_had_leaves_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int, key: str
) -> None:
    task = make_task(tmp_path / "task", "def verify(response):\n    return 1\n")
    monkeypatch.setenv("A_KEY", "secret")
    async with endpoint(status=status) as model:
        agent = AgentSettings("model", model="m", base_url=model.url, api_key_env=key)
        with opened(tmp_path / "run", RunSettings(str(task), agent, GradingSettings(control=False))) as run:
            done = await collect(run, Setting(state=tmp_path / "state"))
    assert done.tally.agent_failed == {"agent_request_failed": 1}
    assert rows_of(tmp_path / "run")[Identity("task", 0)].state == "missing"

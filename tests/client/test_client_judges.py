"""From `ask_judge` in a sandbox to an endpoint and back: the dataset's judges, and those of the command line."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from assay.client import JudgeError, judges_of
from assay.client.testing import Answer, Exchange, ScriptedVerifier, faults
from assay.grading import NoSuchJudge
from assay.tasks import Judge, load_task
from commands import apart, assay, make_task

VERIFIER = """
import json
from assay.verifiers import ask_judge

def verify(workspace):
    said = ask_judge("Is 4 right?", schema={"type": "object"})
    return json.loads(said)["score"]
"""


class Endpoint:
    """What it was asked, and what it says."""

    def __init__(self, text: str) -> None:
        self.bodies: list[Any] = []
        self.text = text

    def says(self) -> faults.Fault:
        async def strike(exchange: Exchange) -> None:
            self.bodies.append(exchange.request.json())
            usage = {"prompt_tokens": 12, "completion_tokens": 5}
            body = json.dumps({"choices": [{"message": {"content": self.text}}], "usage": usage}).encode()
            await exchange.write(Answer(200, body).head() + body)

        return faults.Fault("says", strike, executes=False)


@pytest.mark.parametrize("command", ["verify", "check"])
async def test_the_command_line(tmp_path: Path, command: str) -> None:
    endpoint = Endpoint('{"score": 0.5}')
    task = make_task(tmp_path / "task", VERIFIER, '[assay.judges.default]\nmodel = "m"\nmax_tokens = 50\n')
    (tmp_path / "workspace").mkdir()
    async with ScriptedVerifier([faults.cut_head(), *[endpoint.says()] * 9]) as server:
        more = ["--workspace", tmp_path / "workspace", "--no-control"] if command == "verify" else ["--repeats", "1"]
        done = await asyncio.to_thread(
            apart, command, task, *more, "--json", "--judge", f"default={server.url}/v1", state=tmp_path / "state"
        )
    code, printed = done.code, done.record
    assert {post.path for post in server.posts} == {"/v1/chat/completions"}
    assert endpoint.bodies[0] == {
        "messages": [{"role": "user", "content": "Is 4 right?"}],
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "judgement", "schema": {"type": "object"}, "strict": True},
        },
        "model": "m",
        "max_tokens": 50,
    }
    if command == "verify":
        assert (code, printed["reward"]) == (0, 0.5)
        usage = printed["usage"]
        assert (usage["judge_calls"], usage["judge_input_tokens"], usage["judge_output_tokens"]) == (1, 12, 5)
    else:
        assert [look["reward"] for look in printed["untouched"]] == [0.5]


async def test_a_dataset_names_its_judges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    endpoint = Endpoint("fine")
    monkeypatch.setenv("JUDGE_KEY", "sk-secret")
    async with ScriptedVerifier([endpoint.says()]) as server:
        (tmp_path / "dataset.toml").write_text(
            f'[assay.judges.default]\nbase_url = "{server.url}/v1"\nmodel = "m"\napi_key_env = "JUDGE_KEY"\ntimeout_sec = 9\n'
        )
        task = load_task(make_task(tmp_path / "task", VERIFIER))
        ask = judges_of(task.settings.judges)
        assert ask is not None
        judged = await ask("default", "?", None)
    assert (judged.text, judged.input_tokens, judged.output_tokens) == ("fine", 12, 5)
    assert server.posts[0].headers["authorization"] == "Bearer sk-secret"
    assert "response_format" not in endpoint.bodies[0]


async def test_a_reply_that_is_not_in_the_form_asked_for() -> None:
    async with ScriptedVerifier([Endpoint("{").says()]) as server:
        ask = judges_of({}, {"default": server.url})
        assert ask is not None
        with pytest.raises(JudgeError) as caught:
            await ask("default", "?", {"type": "object"})
    assert caught.value.kind == "judge_unparseable"


@pytest.mark.parametrize(
    ("settings", "urls", "name", "error", "said"),
    [
        (
            {"strict": Judge()},
            {"mild": "http://v"},
            "default",
            NoSuchJudge,
            "there are mild, strict, and --judge default=URL",
        ),
        ({"default": Judge()}, {}, "default", JudgeError, r"\[assay.judges.default\] has no base_url"),
        (
            {"default": Judge(base_url="http://v", api_key_env="NOT_SET_HERE")},
            {},
            "default",
            JudgeError,
            r"\$NOT_SET_HERE",
        ),
    ],
)
async def test_a_judge_that_cannot_be_asked(
    settings: Any, urls: Any, name: str, error: type[Exception], said: str
) -> None:
    ask = judges_of(settings, urls)
    assert ask is not None
    with pytest.raises(error, match=said):
        await ask(name, "?", None)


def test_no_judges_at_all() -> None:
    assert judges_of({}) is None


@pytest.mark.parametrize("given", ["default", "=http://v", "default=", "default=v:80", "default=ftp://v"])
def test_a_judge_is_a_name_and_a_url(tmp_path: Path, given: str) -> None:
    task = make_task(tmp_path / "task", VERIFIER)
    code, _, stderr = assay(
        "verify", task, "--workspace", tmp_path, "--judge", given, state=tmp_path / "state", check_json=False
    )
    assert (code, "must be NAME=URL, such as default=http" in stderr) == (2, True)

"""The way from a request into a real sandbox and back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from assay.server import SandboxGrader, Settings
from assay.server.running import started
from commands import make_task
from serving import Served, served

VERIFIER = """\
def verify(workspace, task_data, response):
    print("looking at", task_data["wanted"])
    there = (workspace / "seed.txt").exists()
    return {"reward": float(response["output_text"] == task_data["wanted"]), "there": there}
"""


@pytest.fixture
def wants(tmp_path: Path) -> Path:
    task = make_task(tmp_path / "dataset" / "wants", VERIFIER)
    (task / "environment").mkdir()
    (task / "environment" / "seed.txt").write_text("x")
    (task / "task_data.json").write_text(json.dumps({"wanted": "4"}))
    return tmp_path / "dataset"


async def test_a_response_is_graded_on_the_untouched_environment(wants: Path, tmp_path: Path) -> None:
    import aiohttp

    grader = SandboxGrader(rootfs="host", state=tmp_path / "state", control=False)
    settings = Settings(wants, port=0, grader=grader, state=tmp_path / "state")
    async with started(settings) as server, aiohttp.ClientSession() as session:
        client = Served(server, session, None)  # type: ignore[arg-type] # the real one is in its place
        right = await client.verify(response={"output_text": "4"})
        wrong = await client.verify(response="5")
        other = await client.verify(response="5", wanted="5")
        added = await client.verify(response="4", more="data")
        log = await client.ask("GET", f"/verdicts/{right.json()['verdict']['verdict_id']}/logs")
    assert [said.json()["reward"] for said in (right, wrong, added)] == [1.0, 0.0, 1.0]
    assert right.json()["verdict"]["metrics"] == {"there": 1.0}
    assert right.json()["verdict"]["logs"]["folder"] is None
    assert (other.status, other.json()["field"]) == (422, "wanted")
    assert log.body == b"looking at 4\n"


@pytest.mark.parametrize(
    ("network", "modes", "said"),
    [
        (False, ["stateless", "stateless"], "stateless"),
        (False, ["stateless", "unknown"], "unknown"),
        (False, ["unknown", "unsupported", "stateless"], "unsupported"),
        (True, ["stateless"], "unknown"),
        (True, ["unsupported"], "unsupported"),
    ],
)
async def test_the_weakest_mode(tmp_path: Path, network: bool, modes: list[str], said: str) -> None:
    for number, mode in enumerate(modes):
        make_task(tmp_path / "dataset" / f"t{number}", VERIFIER, f'[assay]\nreverify_mode = "{mode}"\n')
    async with served(tmp_path / "dataset", state=tmp_path / "state", network=network) as server:
        assert (await server.ask("GET", "/reverify_mode")).json() == said


async def test_a_task_that_cannot_be_used_hides_no_other(tmp_path: Path) -> None:
    make_task(tmp_path / "dataset" / "good", VERIFIER)
    make_task(tmp_path / "dataset" / "bad", VERIFIER, "[[")
    async with served(tmp_path / "dataset", state=tmp_path / "state") as server:
        said = (await server.ask("GET", "/tasks")).json()
        one = await server.ask("GET", "/tasks/good")
    assert [task["task_id"] for task in said["tasks"]] == ["good"]
    assert [task["task_id"] for task in said["invalid"]] == ["bad"]
    assert one.json() == said["tasks"][0]


@pytest.mark.parametrize("warm", [True, False])
async def test_warm_reaches_the_grading(
    wants: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warm: bool
) -> None:
    import aiohttp

    from assay.server import grader as module

    seen: list[object] = []
    grade = module.grade

    async def noted(*given: Any, **options: Any) -> Any:
        seen.append(options["warm"])
        return await grade(*given, **options)

    monkeypatch.setattr(module, "grade", noted)
    graded = SandboxGrader(rootfs="host", state=tmp_path / "state", control=False, warm=warm)
    settings = Settings(wants, port=0, grader=graded, state=tmp_path / "state")
    async with started(settings) as server, aiohttp.ClientSession() as session:
        client = Served(server, session, None)  # type: ignore[arg-type] # the real one is in its place
        await client.verify(response={"output_text": "4"})
    assert seen == [warm]

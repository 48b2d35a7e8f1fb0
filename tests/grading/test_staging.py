"""Tests folders that many verifications share: laid once for what they hold, never written, never mixed up."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from assay.grading import WrongArgument, grade, staging
from assay.grading.arguments import is_large
from assay.sandbox import ReadOnly, get_provider
from assay.sandbox.testing import Call, FakeProvider
from assay.tasks import load_task
from commands import make_task

# The inode of what is mounted at /tests, and what the verifier was given.
SEES = """
import os
import threading

def verify(workspace, task_data, response=None):
    shared = os.stat(os.path.dirname(__file__)).st_ino
    return {"reward": 1.0, "place": shared, "n": task_data.get("n", -1), "said": int((response or {}).get("output_text", -1))}
"""


@pytest.fixture(autouse=True)
def shelf(monkeypatch: pytest.MonkeyPatch) -> staging._Shelf:
    own = staging._Shelf()
    monkeypatch.setattr(staging, "_shelf", own)
    return own


def folders(shelf: staging._Shelf) -> list[Path]:
    return [] if shelf._place is None else sorted(shelf._place.iterdir())


async def metrics(tmp_path: Path, task: Any, response: str | None = None, **options: Any) -> dict[str, float]:
    workspace = tmp_path / "workspace"
    workspace.mkdir(exist_ok=True)
    verdict = await grade(task, workspace, response, state=tmp_path / "state", control=False, **options)
    assert verdict.reward == 1.0, verdict.failure
    return dict(verdict.metrics)


async def test_one_folder_serves_all_that_it_fits(tmp_path: Path, shelf: staging._Shelf) -> None:
    task = make_task(tmp_path / "task", SEES)
    first = await metrics(tmp_path, task)
    assert await metrics(tmp_path, task) == first
    assert len(folders(shelf)) == 1
    other = await metrics(tmp_path, task, task_data={"n": 3})
    assert (other["n"], other["place"] != first["place"]) == (3, True)
    assert len(folders(shelf)) == 2


async def test_each_answer_sees_its_own_response(tmp_path: Path, shelf: staging._Shelf) -> None:
    task = load_task(make_task(tmp_path / "task", SEES))
    seen = await asyncio.gather(*(metrics(tmp_path, task, str(number)) for number in range(4)))
    assert [one["said"] for one in seen] == [0, 1, 2, 3]
    assert (await metrics(tmp_path, task))["said"] == -1, "no response is not somebody's before"
    await metrics(tmp_path, task, "7")
    assert len({*folders(shelf)}) == 2


async def test_a_bash_verifier_sees_its_own_response_too(tmp_path: Path) -> None:
    task = make_task(tmp_path / "task", "")
    (task / "tests/verifier.py").unlink()
    (task / "tests/test.sh").write_text(
        'grep -o "[0-9]" "${ASSAY_RESPONSE:-/dev/null}" > /logs/verifier/reward.txt || echo 9 > /logs/verifier/reward.txt\n'
    )
    rewards = []
    for response in ("3", None, "4"):
        verdict = await grade(task, tmp_path, response, state=tmp_path / "state", control=False)
        rewards.append(verdict.reward)
    assert rewards == [3.0, 9.0, 4.0]


@pytest.mark.parametrize("provider", ["bubblewrap", "namespaces"])
async def test_a_verifier_cannot_write_there(tmp_path: Path, provider: str, shelf: staging._Shelf) -> None:
    spoil = """
import os, pathlib

def verify(workspace):
    done = 0
    for place in ("/tests/new", "/tests/verifier.py", "/tests/.ng/run_verifier.py", "/tests/.ng/new"):
        try:
            pathlib.Path(place).write_text("spoiled")
            done += 1
        except OSError:
            pass
    try:
        os.chmod("/tests", 0o777)
        done += 1
    except OSError:
        pass
    return {"reward": 1.0, "done": done}
"""
    task = make_task(tmp_path / "task", spoil)
    before = await metrics(tmp_path, task, sandbox=provider)
    (folder,) = folders(shelf)
    held = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert before["done"] == 0
    assert await metrics(tmp_path, task, sandbox=provider) == before
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == held


async def test_without_isolation_each_has_a_folder_of_its_own(tmp_path: Path, shelf: staging._Shelf) -> None:
    task = make_task(tmp_path / "task", SEES)
    await metrics(tmp_path, task, sandbox=get_provider("process"))
    assert shelf._folders == {}


async def test_a_changed_file_is_never_served_as_what_it_was(tmp_path: Path, shelf: staging._Shelf) -> None:
    folder = make_task(tmp_path / "task", SEES)
    read_before = load_task(folder)
    _ = read_before.verifier_digest
    (folder / "tests/verifier.py").write_text(SEES.replace('"n": task_data.get("n", -1)', '"n": 99'))
    assert (await metrics(tmp_path, read_before))["n"] == 99
    assert folders(shelf) == [], "under the old digest it would be taken for the old file"
    assert (await metrics(tmp_path, folder))["n"] == 99
    (folder / "tests/verifier.py").write_text(SEES)
    assert (await metrics(tmp_path, folder))["n"] == -1


async def test_few_idle_folders_are_kept_and_used_ones_stay(
    tmp_path: Path, shelf: staging._Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "_IDLE_MOST", 2)
    task = load_task(make_task(tmp_path / "task", SEES))
    alive: list[bool] = []

    async def through(number: int) -> None:
        def look(call: Call) -> Any:
            alive.append(all(mount.source.exists() for mount in call.spec.mounts if isinstance(mount, ReadOnly)))
            raise OSError("seen enough")

        await grade(task, None, task_data={"n": number}, sandbox=FakeProvider(look), control=False, state=tmp_path)

    await asyncio.gather(*(through(number) for number in range(6)))
    await through(6)
    assert alive == [True] * len(alive)
    assert len(alive) >= 7
    assert len(folders(shelf)) <= 3


def test_a_forked_child_has_no_claim_on_its_parents_folders(shelf: staging._Shelf) -> None:
    child = os.fork()
    if child == 0:
        os._exit(0 if staging._shelf is not shelf else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize(("zeros", "beside"), [(0, False), (300_000, True)])
async def test_a_large_response_is_written_beside_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, zeros: int, beside: bool
) -> None:
    threads = []
    written = staging.json_file

    def write(value: Any, what: str) -> bytes:
        threads.append(threading.current_thread())
        return written(value, what)

    monkeypatch.setattr(staging, "json_file", write)
    seen = await metrics(tmp_path, make_task(tmp_path / "task", SEES), " " * zeros + "7")
    assert seen["said"] == 7
    assert [thread is not threading.current_thread() for thread in threads] == [beside]


ITSELF: list[object] = []
ITSELF.append(ITSELF)


@pytest.mark.parametrize(
    ("value", "large"),
    [
        (None, False),
        ({"a": [1, 2.5, "x" * 1000, None]}, False),
        (["x"] * 1000, False),
        ("x" * 300_000, True),
        ({"a": [{"b": "x" * 300_000}]}, True),
        ({"x" * 300_000: 1}, True),
        ([[]] * 20_000, True),
        ({str(number): {} for number in range(20_000)}, True),
        (ITSELF, True),
    ],
)
def test_what_takes_long_to_write_as_json(value: object, large: bool) -> None:
    assert is_large(value) is large


@pytest.mark.parametrize("padding", ["", "x" * 300_000])
@pytest.mark.parametrize("value", [float("nan"), {1, 2}, ITSELF, 1 + 2j])
async def test_what_is_no_json_is_refused_however_large(tmp_path: Path, padding: str, value: object) -> None:
    task = make_task(tmp_path / "task", SEES)
    with pytest.raises(WrongArgument, match="task_data must be JSON: "):
        await grade(task, None, task_data={"padding": padding, "value": value}, state=tmp_path / "state")

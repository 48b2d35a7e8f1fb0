"""Answers of other programs become a run; what cannot be taken is said, and the rest goes on."""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from assay.answers import Identity, find_answer, find_trajectory
from assay.failures import FailureEvent
from assay.grading import WrongArgument
from assay.runs import Done, collect, export, find_place, otherruns, read_run, regrade
from commands import make_task
from runs.worlds import World, make_dataset, opened, rows_of, run_settings, working

ADDING = "def verify(response, task_data):\n    return float(response['output_text'] == task_data['expected'])\n"


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """Two tasks that grade a response against a field of theirs."""
    for name, expected in (("one", "4"), ("two", "6")):
        task = make_task(tmp_path / "data" / name, ADDING)
        (task / "task_data.json").write_text(json.dumps({"expected": expected}))
    return tmp_path / "data"


def row(task: str | None = "one", text: str = "4", **fields: Any) -> dict[str, Any]:
    named = {"_ng_task_id": task} if task is not None else {}
    return {"responses_create_params": {"input": "?"}, "response": {"output_text": text}, **named, **fields}


def write(path: Path, *rows: Any, tail: str = "") -> Path:
    path.write_text("".join(json.dumps(one) + "\n" for one in rows) + tail)
    return path


async def replayed(tmp_path: Path, dataset: Path, source: Path, *, name: str = "run") -> tuple[Done, list[str]]:
    told: list[str] = []
    folder = tmp_path / name
    settings = run_settings(dataset, agent="replay", source=str(source))
    with opened(folder, settings) as run:
        done = await collect(run, working(folder, World(), provider=None, tell=told.append))
    assert not done.tally.bugs, done.tally.bugs
    return done, told


async def test_rows_of_nemo_gym_become_a_run_that_is_graded_and_exported_again(tmp_path: Path, dataset: Path) -> None:
    source = write(
        tmp_path / "rollouts.jsonl",
        row(text="4", reward=0.0, mask_sample=True, failure_kind="judge_failed", _ng_rollout_index=0, expected="4"),
        row(text="5", _ng_rollout_index=1, own="field"),
        row("two", "6"),
    )
    done, told = await replayed(tmp_path, dataset, source)
    assert (done.replayed and done.replayed.to_dict()) == {"kept": 3, "there": 0, "refused": 0, "problems": []}
    assert told == []
    rewards = {one: outcome.reward for one, outcome in rows_of(tmp_path / "run").items()}
    assert rewards == {Identity("one", 0): 1.0, Identity("one", 1): 0.0, Identity("two", 0): 1.0}
    with read_run(find_place(tmp_path / "run")) as store:
        answer = find_answer(store.database, Identity("one", 0))
        assert answer is not None
        assert answer.extra["_assay_recorded"] == {"reward": 0.0, "mask_sample": True, "failure_kind": "judge_failed"}
        export(store.database, tmp_path / "out")
    lines = [json.loads(line) for line in (tmp_path / "out" / "rollouts.jsonl").read_text().splitlines()]
    assert [(line["_ng_task_id"], line["reward"], line.get("own")) for line in lines] == [
        ("one", 1.0, None), ("two", 1.0, None), ("one", 0.0, "field")
    ]  # fmt: skip


async def test_what_cannot_be_taken_is_said_and_the_rest_goes_on(tmp_path: Path, dataset: Path) -> None:
    source = write(
        tmp_path / "rollouts.jsonl",
        row(),
        row("three"),
        row(None),
        row(expected="5"),
        row("two", _ng_rollout_index="first"),
        {**row("two"), "response": None, "_ng_failure_class": "agent_run_error", "_ng_rollout_index": 3},
        {**row("two"), "response": 5},
        row("one", _ng_rollout_index=0),
        ["no", "row"],
        tail='{"response": NaN}\nnot json\n{"_ng_task_id": "two", "respon',
    )
    done, told = await replayed(tmp_path, dataset, source)
    assert told == [
        "rollouts.jsonl, line 2: is of the task 'three', which the dataset does not have",
        "rollouts.jsonl, line 3: does not say which task it is of: no _ng_task_id or task_id, and its fields are those of no "
        "single task",
        "rollouts.jsonl, line 4: contradicts the task one: expected is something else there",
        "rollouts.jsonl, line 5: _ng_rollout_index must be a number from 0, got 'first'",
        "rollouts.jsonl, line 6: holds no answer: no response (its program says agent_run_error)",
        "rollouts.jsonl, line 7: response must be an object or a text, got int",
        "rollouts.jsonl, line 8: one, rollout 0, is answered in rollouts.jsonl, line 1 already; that one is kept",
        "rollouts.jsonl, line 9: is no row: a JSON object was expected, got list",
        "rollouts.jsonl, line 10: is no JSON: NaN is no JSON number",
        "rollouts.jsonl, line 11: is no JSON: Expecting value: line 1 column 1 (char 0)",
        "rollouts.jsonl, line 12: is torn: the file ends in the middle of it, as when its writer was killed",
    ]
    assert done.replayed is not None
    assert (done.replayed.kept, done.replayed.refused) == (1, 11)
    # The rollout that its own program failed is a row without an answer: no mean loses it in silence.
    states = {one: outcome.state for one, outcome in rows_of(tmp_path / "run").items()}
    assert states == {Identity("one", 0): "scored", Identity("two", 0): "missing", Identity("two", 3): "missing"}


LIMIT = FailureEvent("assay:workspace_limit", "the workspace is too large").to_record()
NO_RECORD = "_assay_uncaptured is no record of a failure: "
NO_SNAPSHOT = 'workspace must be {"snapshot": "sha256:…"}, of a run\'s --snapshots, got '


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"workspace": {"archive_b64": "AAAA"}}, NO_SNAPSHOT + "{'archive_b64'}"),
        ({"workspace": {"snapshot": "sha256:0", "archive_b64": "AAAA"}}, NO_SNAPSHOT + "{'snapshot', 'archive_b64'}"),
        ({"workspace": {"snapshot": 5}}, NO_SNAPSHOT + "{'snapshot'}"),
        ({"workspace": {}}, NO_SNAPSHOT + "{}"),
        ({"workspace": "sha256:0"}, NO_SNAPSHOT + "str"),
        ({"workspace": False}, NO_SNAPSHOT + "bool"),
        ({"_assay_uncaptured": {}}, NO_RECORD),
        ({"_assay_uncaptured": "too large"}, NO_RECORD),
        (
            {"_assay_uncaptured": {**LIMIT, "kind": "judge_failed"}},
            "_assay_uncaptured must be of assay:workspace_limit or assay:workspace_invalid, got judge_failed",
        ),
        (
            {"_assay_uncaptured": LIMIT, "workspace": {"snapshot": "sha256:0"}},
            "has both a workspace and _assay_uncaptured; there is one or the other",
        ),
    ],
)
async def test_a_row_whose_workspace_cannot_be_had_is_left_out(
    tmp_path: Path, dataset: Path, fields: dict[str, Any], said: str
) -> None:
    """Its response alone, on the untouched environment, would be another answer."""
    done, told = await replayed(tmp_path, dataset, write(tmp_path / "rollouts.jsonl", row(**fields), row("two", "6")))
    assert [line.startswith(f"rollouts.jsonl, line 1: {said}") for line in told] == [True]
    assert done.tally.graded == 1
    assert rows_of(tmp_path / "run")[Identity("one", 0)].state == "missing"


@pytest.mark.parametrize("response", [None, {"output_text": "4"}])
async def test_a_workspace_that_could_not_be_captured_stays_one_when_it_is_exported_and_replayed(
    tmp_path: Path, dataset: Path, response: Any
) -> None:
    source = write(tmp_path / "rollouts.jsonl", row(response=response, _assay_uncaptured=LIMIT))
    for name in ("first", "second"):
        done, told = await replayed(tmp_path, dataset, source, name=name)
        assert (told, dict(done.tally.masked)) == ([], {"assay:workspace_limit": 1})
        with read_run(find_place(tmp_path / name)) as store:
            source = export(store.database, tmp_path / f"{name}-out").failures
        assert json.loads(source.read_text())["_assay_uncaptured"]["event_id"] == LIMIT["event_id"]


async def test_a_last_line_without_its_end_is_taken_when_it_is_whole(tmp_path: Path, dataset: Path) -> None:
    source = write(tmp_path / "rollouts.jsonl", row(), tail=json.dumps(row("two", "6")))
    done, told = await replayed(tmp_path, dataset, source)
    assert (told, done.tally.graded) == ([], 2)


async def test_a_row_without_a_name_is_known_by_its_fields(tmp_path: Path, dataset: Path) -> None:
    source = write(tmp_path / "r.jsonl", row(None, "6", expected="6"), row(None, "4", expected="4", _ng_task_index=0))
    await replayed(tmp_path, dataset, source)
    rows = rows_of(tmp_path / "run")
    assert {one.task_id: outcome.reward for one, outcome in rows.items()} == {"one": 1.0, "two": 1.0}


async def test_replaying_goes_on_where_it_was_stopped_and_takes_nothing_twice(tmp_path: Path, dataset: Path) -> None:
    source = write(tmp_path / "rollouts.jsonl", row(), row("two", "6"))
    await replayed(tmp_path, dataset, source)
    write(source, row(), row("two", "6"), row("two", "7"))
    done, _ = await replayed(tmp_path, dataset, source)
    assert done.replayed is not None
    assert (done.replayed.kept, done.replayed.there, done.tally.graded) == (1, 2, 1)
    assert len(rows_of(tmp_path / "run")) == 3


async def test_another_runs_answers_with_their_workspaces(tmp_path: Path) -> None:
    dataset, folder = make_dataset(tmp_path / "data"), tmp_path / "first"
    world = World(value=lambda one: one.rollout + 1.0)
    with opened(folder, run_settings(dataset, rollouts=2)) as run:
        await collect(run, working(folder, world))
    other = tmp_path / "second"
    with opened(other, run_settings(dataset, agent="replay", source=str(folder))) as run:
        done = await collect(run, working(other, world))
        again = await regrade(run, working(other, world))
    assert (done.tally.graded, again.tally.graded) == (6, 6)
    assert set(world.calls.values()) == {1}
    assert {one: row.reward for one, row in rows_of(other).items()} == {
        one: row.reward for one, row in rows_of(folder).items()
    }
    with read_run(find_place(other)) as second, read_run(find_place(folder)) as first:
        one = Identity("t001", 1)
        ours, theirs = find_answer(second.database, one), find_answer(first.database, one)
    assert ours is not None and theirs is not None  # noqa: PT018 - one statement for the types of both
    assert (ours.snapshot, ours.agent, ours.task_digest) == (theirs.snapshot, "command", theirs.task_digest)


@pytest.mark.parametrize("concurrency", [1, 3])
async def test_no_more_answers_are_made_ready_at_once_than_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, concurrency: int
) -> None:
    """Each lies unpacked on this machine's disk meanwhile."""
    dataset, folder, other = make_dataset(tmp_path / "data"), tmp_path / "first", tmp_path / "second"
    with opened(folder, run_settings(dataset, rollouts=3)) as run:
        await collect(run, working(folder, World()))
    ready, most = 0, 0
    scratch = otherruns.scratch_folder

    @contextmanager
    def counted(name: str) -> Iterator[Path]:
        nonlocal ready, most
        with scratch(name) as place:
            ready += 1
            most = max(most, ready)
            yield place
            ready -= 1

    monkeypatch.setattr(otherruns, "scratch_folder", counted)
    with opened(other, run_settings(dataset, agent="replay", source=str(folder))) as run:
        done = await collect(run, working(other, World(), concurrency=concurrency))
    assert (done.tally.graded, most) == (9, concurrency)


async def test_a_disk_that_is_full_for_one_answer_is_said_and_the_rest_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset, folder, other = make_dataset(tmp_path / "data"), tmp_path / "first", tmp_path / "second"
    with opened(folder, run_settings(dataset)) as run:
        await collect(run, working(folder, World()))
    scratch, made = otherruns.scratch_folder, 0

    def full_once(name: str) -> AbstractContextManager[Path]:
        nonlocal made
        made += 1
        if made == 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        return scratch(name)

    monkeypatch.setattr(otherruns, "scratch_folder", full_once)
    settings, told = run_settings(dataset, agent="replay", source=str(folder)), list[str]()
    for expected in (2, 1):
        with opened(other, settings) as run:
            done = await collect(run, working(other, World(), concurrency=1, tell=told.append))
        assert done.tally.graded == expected
    assert told == ["first: t000, rollout 0: cannot be made ready: [Errno 28] No space left on device"]


def make_trial(job: Path, name: str, task: str, recorded: dict[str, str] | None, **result: Any) -> Path:
    """A trial as Harbor 0.26 leaves it; `recorded` maps sources to contents of a file `answer.txt` (a folder) or of itself."""
    trial = job / name
    (trial / "agent").mkdir(parents=True)
    (trial / "verifier").mkdir()
    record = {
        "task_name": f"org/{task}",
        "task_id": {"path": f"data/{task}"},
        "agent_info": {"name": "an-agent", "version": "1"},
        "verifier_result": {"rewards": {"reward": 0.0}},
        "exception_info": None,
        **result,
    }
    (trial / "result.json").write_text(json.dumps(record))
    if recorded is None:
        return trial
    manifest = [
        {"source": "/logs/artifacts", "destination": "artifacts/logs/artifacts", "type": "directory", "status": "empty"}
    ]
    for source, content in recorded.items():
        destination = trial / f"artifacts{source}"
        folder = not source.endswith(".txt")
        place = destination / "answer.txt" if folder else destination
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(content)
        kind = "directory" if folder else "file"
        manifest.append(
            {"source": source, "destination": f"artifacts{source}", "type": kind, "status": "ok", "service": None}
        )  # type: ignore[dict-item]
    (trial / "artifacts").mkdir(exist_ok=True)
    (trial / "artifacts" / "manifest.json").write_text(json.dumps(manifest))
    return trial


async def test_a_harbor_job_becomes_a_run_that_can_be_regraded(tmp_path: Path) -> None:
    """A whole workdir, and a part of one over what the task's environment has."""
    dataset = make_dataset(tmp_path / "data")
    (dataset / "t001" / "environment").mkdir()
    (dataset / "t001" / "environment" / "given.txt").write_text("given")
    job = tmp_path / "jobs" / "2026-01-01__00-00-00"
    first = make_trial(job, "t000__Abc", "t000", {"/app": "t000 0 0.5"})
    (first / "agent" / "trajectory.json").write_text("[]")
    make_trial(job, "t001__Abc", "t001", {"/app/answer.txt": "t001 0 0.25"})
    make_trial(job, "t001__Bcd", "t001", {"/app/answer.txt": "t001 1 0.75"})
    (job / "result.json").write_text("{}")
    folder, world = tmp_path / "run", World()
    with opened(folder, run_settings(dataset, agent="replay", source=str(job))) as run:
        done = await collect(run, working(folder, world))
        assert done.replayed is not None
        assert done.replayed.problems == []
        again = await regrade(run, working(folder, world))
        answers = {one: find_answer(run.store.database, one) for one in rows_of(folder)}
        answer = answers[Identity("t001", 1)]
        assert answer is not None
        assert answer.snapshot is not None
        assert answer.agent_settings == {"name": "an-agent"}
        assert answer.extra["_assay_recorded"] == {
            "trial": "t001__Bcd",
            "artifacts": ["answer.txt"],
            "rewards": {"reward": 0.0},
        }
        run.snapshots.restore(answer.snapshot, tmp_path / "restored")
        first_answer = answers[Identity("t000", 0)]
        assert first_answer is not None
        assert find_trajectory(run.store.database, first_answer.id) == b"[]"
    assert sorted(path.name for path in (tmp_path / "restored").iterdir()) == ["answer.txt", "given.txt"]
    assert again.tally.graded == 3
    assert {one: row.reward for one, row in rows_of(folder).items()} == {
        Identity("t000", 0): 0.5, Identity("t001", 0): 0.25, Identity("t001", 1): 0.75, Identity("t002", 0): None
    }  # fmt: skip


async def test_trials_that_cannot_be_taken(tmp_path: Path) -> None:
    dataset = make_dataset(tmp_path / "data")
    job = tmp_path / "job"
    make_trial(job, "a__1", "t000", {"/app": "t000 0 0.5"})
    make_trial(job, "b__1", "other", {"/app": "t000 0 0.5"})
    (make_trial(job, "c__1", "t000", {"/app": "x"}) / "result.json").write_text('{"task_na')
    make_trial(job, "d__1", "t001", {"/data": "x"})
    make_trial(job, "e__1", "t001", None)
    gone = make_trial(job, "f__1", "t001", {"/app/answer.txt": "x"})
    (gone / "artifacts" / "app" / "answer.txt").unlink()
    linked = make_trial(job, "g__1", "t001", {"/app/answer.txt": "x"})
    (linked / "artifacts" / "app" / "answer.txt").unlink()
    (linked / "artifacts" / "app").rmdir()
    (linked / "artifacts" / "app").symlink_to("/etc")
    folder, told = tmp_path / "run", list[str]()
    with opened(folder, run_settings(dataset, agent="replay", source=str(job))) as run:
        done = await collect(run, working(folder, World(), tell=told.append))
    assert done.tally.graded == 1
    reasons = dict(line.split(": ", 1) for line in told)
    assert sorted(reasons) == ["b__1", "c__1", "d__1", "e__1", "f__1", "g__1"]
    assert "which the dataset does not have" in reasons["b__1"]
    assert "result.json is torn or no JSON" in reasons["c__1"]
    assert "nothing of /app was recorded" in reasons["d__1"]
    assert "recorded nothing" in reasons["e__1"]
    assert "was recorded and is not there" in reasons["f__1"]
    assert "g__1" in reasons


@pytest.mark.parametrize("kind", ["absent", "empty folder"])
async def test_a_source_that_is_none(tmp_path: Path, dataset: Path, kind: str) -> None:
    source = tmp_path / "source"
    if kind == "empty folder":
        source.mkdir()
    with pytest.raises(WrongArgument, match=r"from: "):
        await replayed(tmp_path, dataset, source)

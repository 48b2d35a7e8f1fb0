"""Orchestration: what is kept when, what each command takes up, what one failure does to the others."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import select

from assay.answers import (
    Attempt,
    Identity,
    Store,
    StoreHeld,
    StoreUnusable,
    attempts_at,
    find_answer,
    schema,
    verdicts_of,
)
from assay.failures import FailureEvent
from assay.grading.evidence import EvidenceStore, Known
from assay.runs import Done, Happened, OpenRun, Tally, collect, recover, regrade
from assay.sandbox import Ended, ExecResult
from assay.workspaces import Caps
from runs.worlds import LOST, World, make_dataset, opened, rows_of, run_settings, set_factor, working

T0, T1, T2 = Identity("t000", 0), Identity("t001", 0), Identity("t002", 0)
FAILED = ExecResult(Ended.EXITED, 7, stderr=b"no key\n")


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    return make_dataset(tmp_path / "data")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "run"


async def go(
    folder: Path, world: World, command: Callable[..., object], settings: object = None, **given: object
) -> Done:
    with opened(folder, settings) as run:  # type: ignore[arg-type]
        done = await command(run, working(folder, world), **given)  # type: ignore[misc]
    assert not done.tally.bugs, done.tally.bugs
    return done


async def test_a_run_answers_and_grades_every_identity(dataset: Path, folder: Path) -> None:
    world = World(value=lambda one: one.rollout / 2)
    done = await go(folder, world, collect, run_settings(dataset, rollouts=3))
    rows = rows_of(folder)
    assert {one: row.reward for one, row in rows.items()} == {
        Identity(f"t{task:03}", rollout): rollout / 2 for task in range(3) for rollout in range(3)
    }
    assert set(world.calls.values()) == {1}
    assert (done.tally.done, done.tally.graded, done.tally.mean, done.tally.open) == (9, 9, 0.5, set())


async def test_an_answer_is_on_disk_before_its_verification_starts_and_a_verdict_before_it_is_told(
    dataset: Path, folder: Path
) -> None:
    """Looked at from outside, by another connection, at the moment itself."""
    seen: list[tuple[bool, bool]] = []

    class Looking(World):
        async def _verifier(self, call):
            answers = {row[0] for row in on_disk(folder, "SELECT id FROM answer")}
            open_attempts = on_disk(
                folder, "SELECT answer_id FROM attempt WHERE stage = 'verification' AND ended_at IS NULL"
            )
            seen.append((bool(open_attempts), {row[0] for row in open_attempts} <= answers))
            return await super()._verifier(call)

    def told(tally: Tally, happened: Happened) -> None:
        if happened.what == "graded":
            assert (happened.about["verdict_id"],) in on_disk(folder, "SELECT id FROM verdict")
        else:
            assert (happened.about["answer_id"],) in on_disk(folder, "SELECT id FROM answer")

    with opened(folder, run_settings(dataset)) as run:
        done = await collect(run, working(folder, Looking(), watch=told))
    assert done.tally.graded == 3
    assert seen == [(True, True)] * 3


def on_disk(folder: Path, query: str) -> list[tuple[object, ...]]:
    with sqlite3.connect(f"file:{folder}/run.sqlite?mode=ro", uri=True) as connection:
        rows = connection.execute(query).fetchall()
    connection.close()
    return rows


async def test_one_agents_failure_stops_no_other_and_is_tried_again_as_often_as_it_may_be(
    dataset: Path, folder: Path
) -> None:
    world = World(agent_fails=lambda one, call: FAILED if one == T1 else None)
    done = await go(folder, world, collect, run_settings(dataset))
    assert (done.tally.graded, done.tally.agent_failed, done.tally.open) == (2, {"agent_run_error": 1}, {T1})
    assert rows_of(folder)[T1].state == "missing"
    for expected in ("missing", "exhausted", "exhausted"):
        await go(folder, world, collect, name="resume")
        assert rows_of(folder)[T1].state == expected
    assert (world.calls[T0], world.calls[T1]) == (1, 3)
    world.agent_fails = lambda one, call: None
    await go(folder, world, collect, name="resume", budget=4)
    assert rows_of(folder)[T1].state == "scored"
    with opened(folder) as run:
        reasons = [event["reason"] for attempt in attempts_at(run.store.database, T1) for event in attempt.events]
    assert len(reasons) == 3
    assert (
        reasons[0] == "the agent's command exited with code 7; only with 0 does it say that it left an answer: no key"
    )


async def test_time_that_ran_out_leaves_an_answer(dataset: Path, folder: Path) -> None:
    world = World(agent_fails=lambda one, call: ExecResult(Ended.WALL_LIMIT) if one == T1 else None)
    await go(folder, world, collect, run_settings(dataset))
    assert rows_of(folder)[T1].reward == 1.0
    with opened(folder) as run:
        answer = find_answer(run.store.database, T1)
    assert answer is not None
    assert answer.extra["_assay_agent"]["ended"] == "wall_limit"


async def test_recover_takes_up_what_may_have_passed_and_resume_does_not(dataset: Path, folder: Path) -> None:
    world = World(verifier_fails=lambda one, call: LOST if one == T1 else None)
    done = await go(folder, world, collect, run_settings(dataset))
    assert (done.tally.graded, dict(done.tally.masked)) == (2, {"provider_unavailable": 1})
    world.verifier_fails = lambda one, call: None
    await go(folder, world, collect, name="resume")
    assert rows_of(folder)[T1].state == "recoverable"
    verified = world.verified[T0]
    done = await go(folder, world, recover)
    assert (done.tally.todo, done.tally.graded) == (1, 1)
    assert rows_of(folder)[T1].reward == 1.0
    assert (world.calls[T1], world.verified[T0]) == (1, verified)


async def test_recover_never_runs_an_agent(dataset: Path, folder: Path) -> None:
    world = World(agent_fails=lambda one, call: FAILED if one == T1 else None)
    await go(folder, world, collect, run_settings(dataset))
    world.agent_fails = lambda one, call: None
    done = await go(folder, world, recover)
    assert (done.tally.todo, world.calls[T1]) == (0, 1)


async def test_attempts_are_bounded_over_restarts(dataset: Path, folder: Path) -> None:
    world = World(verifier_fails=lambda one, call: LOST if one == T1 else None)
    await go(folder, world, collect, run_settings(dataset))
    for expected in ("recoverable", "exhausted", "exhausted"):
        await go(folder, world, recover)
        assert rows_of(folder)[T1].state == expected
    # Three attempts of three tries each.
    assert world.verified[T1] == 9
    await go(folder, world, recover, budget=4)
    assert world.verified[T1] == 12


async def test_a_run_stopped_while_it_verifies_goes_on_without_the_agent(dataset: Path, folder: Path) -> None:
    world = World()
    world.hold = asyncio.Event()
    with opened(folder, run_settings(dataset)) as run:
        work = asyncio.ensure_future(collect(run, working(folder, world)))
        await world.verifying.wait()
        while sum(world.calls.values()) < 3 or len(on_disk(folder, "SELECT id FROM answer")) < 3:
            await asyncio.sleep(0.01)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
    assert {row.state for row in rows_of(folder).values()} == {"recoverable"}
    world.hold = None
    await go(folder, world, collect, name="resume")
    assert {row.state for row in rows_of(folder).values()} == {"scored"}
    assert world.calls == {T0: 1, T1: 1, T2: 1}


async def test_an_answer_that_is_being_kept_is_kept_when_the_command_is_stopped(
    dataset: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped as each workspace is on its way to the disk: hours of an agent must not be lost to the last second."""
    world = World()
    with opened(folder, run_settings(dataset)) as run:
        loop, writing = asyncio.get_running_loop(), asyncio.Event()
        put = run.snapshots.put_folder

        def slowly(*arguments: object, **options: object) -> object:
            loop.call_soon_threadsafe(writing.set)
            return put(*arguments, **options)  # type: ignore[arg-type]

        monkeypatch.setattr(run.snapshots, "put_folder", slowly)
        work = asyncio.ensure_future(collect(run, working(folder, world, concurrency=1)))
        await writing.wait()
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
    assert rows_of(folder)[T0].state == "recoverable"
    assert world.calls == {T0: 1}


async def test_a_verifier_that_is_not_stateless_is_never_run_twice(tmp_path: Path, folder: Path) -> None:
    """Stopped in its middle: nobody knows what it did, until somebody asks for another try in so many words."""
    dataset = make_dataset(tmp_path / "data", 2, toml='[assay]\nreverify_mode = "unknown"\n')
    world = World()
    world.hold = asyncio.Event()
    with opened(folder, run_settings(dataset)) as run:
        work = asyncio.ensure_future(collect(run, working(folder, world, concurrency=1)))
        await world.verifying.wait()
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
    world.hold = None
    done = await go(folder, world, collect, name="resume")
    assert {one: row.kind for one, row in rows_of(folder).items()} == {T0: "session_lost", T1: None}
    assert (rows_of(folder)[T0].caused_by, rows_of(folder)[T0].state) == ("infrastructure", "terminal")
    # Told as any row that ended without a reward, so that the command does not end as if all were well.
    assert (dict(done.tally.masked), done.tally.open, done.tally.todo) == ({"session_lost": 1}, {T0}, 2)
    assert world.verified == {T1: 1}
    done = await go(folder, world, recover)
    assert done.tally.todo == 0
    assert world.verified == {T1: 1}
    done = await go(folder, world, regrade)
    assert done.tally.skipped == {"its verifier is not stateless": 2}
    assert world.verified == {T1: 1}
    assert rows_of(folder)[T0].kind == "session_lost"


async def test_what_was_begun_for_good_is_not_run_again_though_nothing_was_kept_of_it(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attempt alone says so: whoever ended it died before it could say that the session is lost."""
    dataset = make_dataset(tmp_path / "data", 1, toml='[assay]\nreverify_mode = "unknown"\n')
    world = World()
    world.hold = asyncio.Event()
    with opened(folder, run_settings(dataset)) as run:
        work = asyncio.ensure_future(collect(run, working(folder, world)))
        await world.verifying.wait()
        work.cancel()
        await asyncio.wait([work])
    world.hold = None

    async def nobody(self: Store) -> list[Attempt]:
        return []

    monkeypatch.setattr(Store, "take_over_interrupted", nobody)
    done = await go(folder, world, regrade)
    assert (done.tally.skipped, world.verified) == ({"its verifier is not stateless": 1}, {})


@pytest.mark.parametrize("before", [True, False], ids=["said before", "found by the same command"])
async def test_a_session_that_was_lost_is_recovered_when_it_is_asked_for(
    tmp_path: Path, folder: Path, before: bool
) -> None:
    dataset = make_dataset(tmp_path / "data", 1, toml='[assay]\nreverify_mode = "unknown"\n')
    world = World()
    world.hold = asyncio.Event()
    with opened(folder, run_settings(dataset)) as run:
        work = asyncio.ensure_future(collect(run, working(folder, world)))
        await world.verifying.wait()
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
    world.hold = None
    if before:
        await go(folder, world, recover)
        assert rows_of(folder)[T0].kind == "session_lost"
    done = await go(folder, world, recover, session_lost=True)
    assert rows_of(folder)[T0].reward == 1.0
    assert (done.tally.todo, done.tally.done, done.tally.open) == (1, 1, set())


@pytest.mark.parametrize("command", ["resume", "recover"])
@pytest.mark.parametrize(
    ("toml", "known", "expected"),
    [
        ("", Known("solution", 0.25, untouched_asked=True), 0.0),
        ("", Known("solution", -1.0, untouched_asked=True), -1.0),
        ("", Known("solution", None, untouched_asked=True), 0.0),
        # The declared floor is what the verdict told.
        ("[assay]\nreward_range = [-2, 1]\n", Known("solution", 0.0, untouched_asked=True), -2.0),
        # Without a known floor, or without proof, nothing is settled.
        ("", Known("another answer's"), None),
        ("", Known(None, 0.0, untouched_asked=True), None),
        ("", Known(), None),
    ],
)
async def test_evidence_that_came_since_settles_what_waited_for_it(
    tmp_path: Path, folder: Path, command: str, toml: str, known: Known, expected: float | None
) -> None:
    """As `assay check` or another run finds it, on the same machine; nothing is run for it."""
    dataset, world = make_dataset(tmp_path / "data", 1, toml=toml), World()
    set_factor(dataset / "t000", "broken")
    await go(folder, world, collect, run_settings(dataset))
    assert rows_of(folder)[T0].provisional
    with opened(folder) as run:
        (waiting,) = run.store.wanted_now()
    EvidenceStore(tmp_path / "state").update(waiting.key, lambda _: known)
    verified = world.verified[T0]
    await (go(folder, world, recover) if command == "recover" else go(folder, world, collect, name="resume"))
    row = rows_of(folder)[T0]
    assert (row.reward, row.caused_by) == (expected, "unknown" if expected is None else "submission")
    assert world.verified[T0] == verified


async def test_a_task_that_cannot_be_read_is_a_row_without_an_answer(dataset: Path, folder: Path) -> None:
    """It was planned, so the mean says that it is partial; mended, it is answered."""
    toml = (dataset / "t001" / "task.toml").read_text()
    (dataset / "t001" / "task.toml").write_text("this is no TOML")
    world = World()
    done = await go(folder, world, collect, run_settings(dataset))
    assert (done.tally.graded, done.tally.agent_failed) == (2, {"assay:task_invalid": 1})
    assert "t001" in done.problems[0]
    (dataset / "t001" / "task.toml").write_text(toml)
    await go(folder, world, collect, name="resume")
    assert rows_of(folder)[T1].reward == 1.0


async def test_answers_to_another_version_of_a_task_are_left_alone(dataset: Path, folder: Path) -> None:
    world = World()
    await go(folder, world, collect, run_settings(dataset))
    (dataset / "t001" / "instruction.md").write_text("Do something else.\n")
    done = await go(folder, world, regrade)
    assert (done.tally.graded, done.tally.skipped, done.tally.open) == (2, {"the task is another one now": 1}, {T1})
    assert rows_of(folder)[T1].reward == 1.0
    done = await go(folder, world, regrade, changed_tasks=True)
    assert done.tally.graded == 3


async def test_a_workspace_beyond_what_is_captured_is_judged_not_masked_away(
    dataset: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Filling the disk must not turn a bad answer into a masked row: with evidence that the verifier works it is the floor."""
    world = World()
    with opened(folder, run_settings(dataset)) as run:
        put = run.snapshots.put_folder

        def narrow(workspace: Path, **options: object) -> object:
            wide = "t001" not in (workspace / "answer.txt").read_text()
            return put(workspace, caps=Caps() if wide else Caps(entries=0))

        monkeypatch.setattr(run.snapshots, "put_folder", narrow)
        done = await collect(run, working(folder, world))
    assert dict(done.tally.masked) == {"assay:workspace_limit": 1}
    row = rows_of(folder)[T1]
    assert (row.caused_by, row.provisional, row.answer_id is not None) == ("unknown", True, True)


async def test_a_damaged_workspace_is_said_and_the_rest_goes_on(dataset: Path, folder: Path) -> None:
    """Its old verdict stays the current one: nothing was learnt of any verifier."""
    world = World(value=lambda one: float(one.task_id[1:]))
    await go(folder, world, collect, run_settings(dataset))
    with opened(folder) as run:
        answer = find_answer(run.store.database, T1)
    assert answer is not None
    assert answer.snapshot is not None
    name = answer.snapshot.removeprefix("sha256:")
    archive = folder / "snapshots" / name[:2] / f"{name}.tar.zst"
    content = bytearray(archive.read_bytes())
    content[len(content) // 2] ^= 0xFF
    archive.write_bytes(content)
    forget_unpacked(folder)
    # By another verifier, so that a failed verdict of its own would be the current one.
    set_factor(dataset / "t001", 2.0)
    done = await go(folder, world, regrade)
    assert (done.tally.graded, dict(done.tally.masked), done.tally.open) == (2, {"assay:workspace_invalid": 1}, {T1})
    assert rows_of(folder)[T1].reward == 1.0
    with opened(folder) as run:
        assert "is damaged" in verdicts_of(run.store.database, answer.id)[-1].body["failure"]["reason"]
    archive.unlink()
    forget_unpacked(folder)
    done = await go(folder, world, regrade)
    assert dict(done.tally.masked) == {"assay:workspace_invalid": 1}


def forget_unpacked(folder: Path) -> None:
    from assay.workspaces import remove_tree

    remove_tree(folder.parent / "state" / "unpacked")


async def test_a_store_that_keeps_failing_ends_the_command_and_loses_nothing(
    dataset: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World()
    with opened(folder, run_settings(dataset)) as run:
        keep = run.store.keep_verdict

        async def full(*arguments: object, **options: object) -> object:
            raise FailureEvent("persistence_failed", "run.sqlite: the disk is full; make room")

        monkeypatch.setattr(run.store, "keep_verdict", full)
        done = await collect(run, working(folder, world, concurrency=1))
        assert done.tally.stopped is not None
        assert "the disk is full" in done.tally.stopped
        assert done.tally.graded == 0
        monkeypatch.setattr(run.store, "keep_verdict", keep)
    await go(folder, world, collect, name="resume")
    assert {row.state for row in rows_of(folder).values()} == {"scored"}
    assert set(world.calls.values()) == {1}


async def test_a_fault_of_our_own_leaves_its_row_alone_and_is_told(
    dataset: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(folder, run_settings(dataset)) as run:
        setting = working(folder, World())
        from assay.runs import verifying

        grade = verifying.grade

        async def broken(task, *arguments, **options):
            if task.id == "t001":
                raise ZeroDivisionError("ours")
            return await grade(task, *arguments, **options)

        monkeypatch.setattr(verifying, "grade", broken)
        done = await collect(run, setting)
    assert (done.tally.graded, len(done.tally.bugs), done.tally.open) == (2, 1, {T1})
    assert "ZeroDivisionError: ours" in done.tally.bugs[0]
    assert rows_of(folder)[T1].state == "recoverable"


async def test_never_more_at_once_than_asked_for(tmp_path: Path, folder: Path) -> None:
    """Agents and verifications together, counted in each sandbox while it lives."""
    dataset = make_dataset(tmp_path / "data", 12)
    living: list[int] = []

    class Counting(World):
        async def _play(self, call):
            assert setting.provider is not None
            living.append(setting.provider.living)
            return await super()._play(call)

    setting = working(folder, Counting(slow_s=0.05), concurrency=3)
    with opened(folder, run_settings(dataset)) as run:
        await collect(run, setting)
        assert 1 < max(living) <= 3
        living.clear()
        await regrade(run, setting)
    # How many meet is the machine's affair; never more than were asked for.
    assert 1 < max(living) <= 3


async def test_more_rollouts_are_added_to_a_run_and_another_agent_is_not(dataset: Path, folder: Path) -> None:
    world = World()
    await go(folder, world, collect, run_settings(dataset))
    await go(folder, world, collect, run_settings(dataset, rollouts=2))
    assert len(rows_of(folder)) == 6
    assert set(world.calls.values()) == {1}
    with (
        pytest.raises(StoreUnusable, match="is a run of something else"),
        opened(folder, run_settings(dataset, command="other")),
    ):
        pass


def test_a_second_command_is_told_who_writes(dataset: Path, folder: Path) -> None:
    with (
        opened(folder, run_settings(dataset)),
        pytest.raises(StoreHeld, match=r"`a test` .* writes to it"),
        opened(folder),
    ):
        pass


async def test_a_run_of_a_newer_version_is_refused_and_not_touched(dataset: Path, folder: Path) -> None:
    await go(folder, World(), collect, run_settings(dataset))
    with sqlite3.connect(folder / "run.sqlite") as connection:
        connection.execute("UPDATE assay_schema SET steps = 99")
    connection.close()
    with pytest.raises(StoreUnusable, match="a newer Assay wrote it"), opened(folder):
        pass


async def test_what_a_dead_process_began_is_ended_and_counts_against_nobody(dataset: Path, folder: Path) -> None:
    world = World()
    with opened(folder, run_settings(dataset)) as run:
        command = await run.store.begin_command("run", {})
        for _ in range(5):
            await run.store.begin_attempt(T0, stage="agent", command_id=command)
    await go(folder, world, collect, run_settings(dataset))
    assert rows_of(folder)[T0].state == "scored"
    with opened(folder) as run:
        outcomes = run.store.database.read_now(lambda c: c.execute(select(schema.attempt.c.outcome)).scalars().all())
    assert None not in outcomes
    assert outcomes.count("interrupted") == 5


def test_a_run_is_open_to_be_read_while_it_is_written(dataset: Path, folder: Path) -> None:
    with opened(folder, run_settings(dataset)) as run:
        assert isinstance(run, OpenRun)
        assert rows_of(folder) == {}

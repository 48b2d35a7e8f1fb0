"""Regrading: today's verifiers on restored workspaces, old verdicts still there, what changed said."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from assay.answers import Change, Choice, Identity, choice_of, find_answer, verdicts_of
from assay.grading import WrongArgument
from assay.runs import Changes, Done, changed_rows, collect, find_place, load_catalogue, read_run, regrade, summarise
from assay.runs.changing import kind_of
from runs.worlds import LOST, World, make_dataset, opened, rows_of, run_settings, set_factor, soaking, working

MANY = 1000 if soaking() else 60
T0, T1 = Identity("t000", 0), Identity("t001", 0)


async def made(tmp_path: Path, world: World, tasks: int = 3, factor: float = 1.0) -> tuple[Path, Path]:
    """A run whose dataset and folder are given back."""
    dataset, folder = make_dataset(tmp_path / "data", tasks, factor=factor), tmp_path / "run"
    with opened(folder, run_settings(dataset)) as run:
        await collect(run, working(folder, world))
    return dataset, folder


async def again(
    folder: Path, world: World, choice: Choice | None = None, verifier: Path | None = None
) -> tuple[Done, Changes]:
    with opened(folder) as run:
        done = await regrade(run, working(folder, world), choice=choice, verifier=verifier)
        found = Changes()
        rows = [(change.identity, kind) for kind, change in changed_rows(run.store.database, done.command_id, found)]
    assert len(rows) == sum(found.counts.values()) - found.counts["same"]
    return done, found


@pytest.mark.slow
async def test_many_answers_with_a_corrected_verifier(tmp_path: Path) -> None:
    """Two thirds of the tasks had a verifier that gave half; each of these doubles, the others stay, and all is on record."""
    world = World(value=lambda one: 1.0)
    dataset, folder = await made(tmp_path, world, MANY, factor=0.5)
    before = {name: task.verifier_digest for name, task in load_catalogue(str(dataset)).tasks.items()}
    wrong = sorted(before)[: MANY * 2 // 3]
    for name in wrong:
        set_factor(dataset / name, 1.0)
    done, found = await again(folder, world)
    assert found.counts == {"higher": len(wrong), "same": MANY - len(wrong)}
    assert (done.tally.graded, done.tally.open) == (MANY, set())
    now = {name: task.verifier_digest for name, task in load_catalogue(str(dataset)).tasks.items()}
    rows = rows_of(folder)
    assert {one.task_id: row.reward for one, row in rows.items()} == {
        name: 1.0 if name in wrong else 0.5 for name in before
    }
    assert {one.task_id: row.verifier_digest for one, row in rows.items()} == now
    with read_run(find_place(folder)) as store:
        for name in (wrong[0], sorted(before)[-1]):
            answer = find_answer(store.database, Identity(name, 0))
            assert answer is not None
            kept = [
                (verdict.body["reward"], verdict.body["verifier_digest"])
                for verdict in verdicts_of(store.database, answer.id)
            ]
            assert kept == [(0.5, before[name]), (1.0 if name in wrong else 0.5, now[name])]
        report = summarise(store.database)
    assert sum(report.totals.verifiers.values()) == MANY
    assert set(report.totals.verifiers) == set(now.values())
    assert not report.mixed
    assert set(world.calls.values()) == {1}


async def test_a_part_of_a_tasks_rows_regraded_is_said_to_be_mixed(tmp_path: Path) -> None:
    dataset, folder = make_dataset(tmp_path / "data", 2), tmp_path / "run"
    world = World()
    with opened(folder, run_settings(dataset, rollouts=3)) as run:
        await collect(run, working(folder, world))
    set_factor(dataset / "t000", 3.0)
    world.verifier_fails = lambda one, call: LOST if one.rollout else None
    await again(folder, world, choice_of("t000"))
    with read_run(find_place(folder)) as store:
        report = summarise(store.database)
    # The failed ones are of the new verifier, which has graded none of those answers: they are what is current.
    assert (report.totals.graded, report.mixed) == (4, False)
    world.verifier_fails = lambda one, call: None
    set_factor(dataset / "t001", 3.0)
    with opened(folder) as run:
        await regrade(run, working(folder, world), choice=choice_of(None, ["kind=provider_unavailable"]))
        await regrade(run, working(folder, world), choice=choice_of("t001", ["reward=1"]))
        report = summarise(run.store.database)
        assert (report.mixed, report.totals.mean) == (False, 3.0)
    set_factor(dataset / "t001", 5.0)

    async def one_alone() -> None:
        with opened(folder) as run:
            watched = asyncio.Event()
            setting = working(folder, world, concurrency=1, watch=lambda tally, happened: watched.set())
            work = asyncio.ensure_future(regrade(run, setting, choice=choice_of("t001")))
            await watched.wait()
            work.cancel()
            await asyncio.wait([work])

    await one_alone()
    with read_run(find_place(folder)) as store:
        report = summarise(store.database)
    assert (report.mixed, report.mixed_tasks) == (True, 1)
    assert {one.task_id for one in report.mixed_named} == {"t001"}
    assert sum(one.rows for one in report.mixed_named) == 3


async def test_an_interrupted_regrade_goes_on_and_one_with_another_verifier_begins_anew(tmp_path: Path) -> None:
    world = World()
    dataset, folder = await made(tmp_path, world, 6)
    set_factor(dataset / "t000", 2.0)
    with opened(folder) as run:
        seen = 0

        def stop_after_two(*_: object) -> None:
            nonlocal seen
            seen += 1
            if seen == 2:
                work.cancel()

        work = asyncio.ensure_future(regrade(run, working(folder, world, concurrency=1, watch=stop_after_two)))
        await asyncio.wait([work])
    before = dict(world.verified)
    done, found = await again(folder, world)
    # Two were told of, one more may have been on its way to the disk.
    assert done.tally.graded in (3, 4)
    assert sum(found.counts.values()) == 6
    assert sum(world.verified.values()) - sum(before.values()) == done.tally.graded
    set_factor(dataset / "t001", 2.0)
    done, _ = await again(folder, world)
    assert done.tally.graded == 6


@pytest.mark.parametrize(
    "other",
    [
        {"rootfs": "host"},
        {"network": True},
        {"timeout_s": 5.0},
        {"control": True},
        {"judges": {"default": "http://h/v1"}},
        {"sandbox": "auto"},
    ],
    ids=lambda other: next(iter(other)),
)
async def test_an_interrupted_regrade_is_not_joined_by_one_that_grades_otherwise(
    tmp_path: Path, other: dict[str, Any]
) -> None:
    world = World()
    _, folder = await made(tmp_path, world)
    commands, works = [], list[asyncio.Future[Done]]()
    with opened(folder) as run:
        given = run.settings.grading
        for grading in (given, replace(given, **other), replace(given)):
            setting = working(folder, world, concurrency=1, watch=lambda *_: works[-1].cancel(), grading=grading)
            works.append(asyncio.ensure_future(regrade(run, setting)))
            await asyncio.wait(works)
            commands.append([one.id for one in run.store.commands_now() if one.name == "regrade"])
    assert [len(found) for found in commands] == [1, 2, 2]


async def test_a_failed_verdict_hides_no_graded_one_of_the_same_verifier(tmp_path: Path) -> None:
    world = World()
    _, folder = await made(tmp_path, world)
    world.verifier_fails = lambda one, call: LOST if one == T1 else None
    done, found = await again(folder, world)
    assert found.kept_back == 1
    assert rows_of(folder)[T1].reward == 1.0
    assert done.tally.open == {T1}


async def test_one_verifier_for_all_in_place_of_the_tasks_own(tmp_path: Path) -> None:
    """Its digest is in the verdicts, so that a report tells them apart."""
    world = World()
    dataset, folder = await made(tmp_path, world)
    file = tmp_path / "verifier.py"
    file.write_text("def verify():\n    return 1\n")
    mended = load_catalogue(str(dataset)).with_verifier(file).tasks["t000"]
    own = load_catalogue(str(dataset)).tasks["t000"]
    assert (mended.verifier.kind, mended.verifier.origin) == ("python", "dataset")
    assert mended.verifier_digest != own.verifier_digest
    assert mended.digest == own.digest
    with pytest.raises(WrongArgument, match="must be a Python file"):
        await again(folder, world, verifier=tmp_path / "test.sh")


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (None, (1.0, None), "first"),
        ((1.0, None), (1.0, None), "same"),
        ((0.0, None), (1.0, None), "higher"),
        ((1.0, None), (0.5, None), "lower"),
        ((None, "judge_failed"), (0.0, None), "now graded"),
        ((0.0, None), (None, "judge_failed"), "now failed"),
        ((None, "judge_failed"), (None, "judge_failed"), "same"),
        ((None, "judge_failed"), (None, "verifier_error"), "failed otherwise"),
    ],
)
def test_kinds_of_change(before: tuple[object, object] | None, after: tuple[object, object], expected: str) -> None:
    sides = [dict(zip(("reward", "kind"), side, strict=True)) if side is not None else None for side in (before, after)]
    assert kind_of(Change(T0, sides[0], sides[1] or {}, True)) == expected

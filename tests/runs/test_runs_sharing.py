"""Several machines on one run in PostgreSQL: nothing is answered or graded twice."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from pathlib import Path

from assay.answers import Identity, attempts_at, outcomes, totals
from assay.runs import Place, collect, open_run, recover
from runs.worlds import LOST, World, make_dataset, run_settings, working

TASKS = 12


async def test_two_commands_share_a_run(tmp_path: Path, postgresql: str) -> None:
    dataset, worlds = make_dataset(tmp_path / "data", TASKS), [World(slow_s=0.02), World(slow_s=0.02)]
    for world in worlds:
        world.verifier_fails = lambda one, call: LOST if one.task_id == "t003" else None
    folder = tmp_path / "shared_run"
    folder.mkdir()
    place = Place(folder, postgresql, str(tmp_path / "snapshots"))
    settings = run_settings(dataset)
    with ExitStack() as stack:
        runs = [
            stack.enter_context(open_run(place, who="a test", state=tmp_path / "state", settings=settings))
            for _ in worlds
        ]
        done = await asyncio.gather(
            *(collect(run, working(folder, world, concurrency=2)) for run, world in zip(runs, worlds, strict=True))
        )
        assert [one.tally.bugs for one in done] == [[], []]
        assert sum(one.tally.answered for one in done) == TASKS
        assert all(one.tally.answered for one in done)
        for world in worlds:
            world.verifier_fails = lambda one, call: None
        await asyncio.gather(*(recover(run, working(folder, world)) for run, world in zip(runs, worlds, strict=True)))
        calls = worlds[0].calls + worlds[1].calls
        assert calls == {Identity(f"t{number:03}", 0): 1 for number in range(TASKS)}
        database = runs[0].store.database
        counted = totals(database)
        assert (counted.planned, counted.graded, counted.mean) == (TASKS, TASKS, 1.0)
        for outcome in outcomes(database):
            stages = [attempt.stage for attempt in attempts_at(database, outcome.identity)]
            again = outcome.identity.task_id == "t003"
            assert stages == ["agent", "verification", *(["verification"] if again else [])]

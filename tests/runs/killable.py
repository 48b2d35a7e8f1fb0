"""A command on a run in a process of its own, to be killed: `python killable.py COMMAND RUN DATASET SECONDS`.

Prints `open` when the run is open, then a line for everything that it is told is on disk; ends with `done`.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from assay.answers import Identity
from assay.runs import Happened, Tally, collect, recover
from runs.worlds import LOST, World, opened, run_settings, working


def main() -> None:
    command, run, dataset, slow = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), float(sys.argv[4])
    marks = run.parent / "marks"
    marks.mkdir(exist_ok=True)

    def lost_at_first(one: Identity, call: int):
        """Some verifications fail for the machine's sake, until `recover` comes."""
        return LOST if command != "recover" and int(one.task_id[1:]) % 5 == 0 else None

    def told(tally: Tally, happened: Happened) -> None:
        about = happened.about.get("verdict_id") or happened.about.get("answer_id")
        print(happened.what, *happened.identity, about, flush=True)

    world = World(verifier_fails=lost_at_first, log=run.parent / "calls", slow_s=slow)
    settings = run_settings(dataset) if command == "run" else None
    with opened(run, settings) as one:
        print("open", flush=True)
        setting = working(run, world, watch=told)
        work = recover(one, setting, budget=99) if command == "recover" else collect(one, setting, name=command)
        done = asyncio.run(work)
        assert not done.tally.bugs, done.tally.bugs
    print("done", flush=True)


main()

"""Many verifications at once: how late the slowest come, and what a second core is worth.

Each measurement is a process of its own, pinned before it starts anything, so that its slot servers and what they fork have
the same processors. What it leaves to be removed later is removed within the time that counts.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence, Set
from pathlib import Path
from typing import Any

from assay.grading import Captured
from assay.workspaces import finish_removals, scratch_folder

from . import floor, ratios, work

_BUSY = 2
_MANY = 4


def measure(wanted: Set[str], runs: int) -> tuple[dict[str, float], dict[str, list[float]], dict[str, str]]:
    """Medians by name, what they are of, and why something could not be measured."""
    cpus = sorted(os.sched_getaffinity(0))
    medians: dict[str, float] = {}
    raw: dict[str, list[float]] = {}
    if wanted & {ratios.BUSY_P99, ratios.BUSY_MEDIAN}:
        work.tell("both cores busy")
        seconds = _child(set(cpus[:2]), _BUSY, max(20, 20 * runs))["seconds"]
        raw["grade(), warm, both cores busy"] = seconds
        medians[ratios.BUSY_MEDIAN] = statistics.median(seconds)
        medians[ratios.BUSY_P99] = statistics.quantiles(seconds, n=100, method="inclusive")[98]
    if len(cpus) < 2:
        return medians, raw, dict.fromkeys(ratios.RATES, "this process may use one processor only")
    rounds, count = min(5, runs), max(20, 10 * runs)
    for turn in range(rounds):
        for names, rate in (
            ((ratios.RATE_1, ratios.RATE_2), lambda few, count=count: _child(few, _MANY, count)["rate"]),
            ((ratios.FLOOR_RATE_1, ratios.FLOOR_RATE_2), lambda few, count=count: floor.rate(few, 10 * count)),
        ):
            for name, few in zip(names, (set(cpus[:1]), set(cpus[:2])), strict=True):
                if name in wanted:
                    raw.setdefault(name, []).append(rate(few))
        if raw.keys() & ratios.RATES:
            work.tell(f"one core and two: round {turn + 1} of {rounds}")
    return medians | {name: statistics.median(raw[name]) for name in raw if name in ratios.RATES}, raw, {}


def _child(cpus: set[int], at_once: int, count: int) -> dict[str, Any]:
    argv = [sys.executable, "-m", "benchmarks.load", "--at-once", str(at_once), "--count", str(count)]
    argv += ["--cpus", *map(str, sorted(cpus))]
    done = subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=False, cwd=Path(__file__).parent.parent)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(argv[1:])} ended with {done.returncode}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


async def _verify_all(own: work.Work, answer: Captured, at_once: int, count: int) -> dict[str, Any]:
    await work.warm_up(own, answer, max(work.WARM_UP, 10 * at_once), at_once=at_once)
    work.clear()
    left = iter(range(count))
    seconds: list[float] = []

    async def worker() -> None:
        for _ in left:
            seconds.extend(await work.verified(own, answer, 1))

    began = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(at_once)))
    finish_removals()
    return {"rate": count / (time.perf_counter() - began), "seconds": seconds}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.load", description=__doc__)
    parser.add_argument("--at-once", type=work.positive, default=_MANY, metavar="N", help="how many at once")
    parser.add_argument("--count", type=work.positive, default=300, metavar="N", help="verifications")
    usable = os.sched_getaffinity(0)
    parser.add_argument("--cpus", type=int, nargs="+", default=sorted(usable), metavar="CPU", help="processors to use")
    options = parser.parse_args(arguments)
    if not set(options.cpus) <= usable:
        parser.error(f"--cpus: this process may use {', '.join(map(str, sorted(usable)))}")
    work.check_machine()
    os.sched_setaffinity(0, options.cpus)
    with scratch_folder("bench") as folder:
        own = work.make_work(folder)
        answer = work.captured(work.make_workspace(folder / "workspace"))
        print(json.dumps(asyncio.run(_verify_all(own, answer, options.at_once, options.count))))


if __name__ == "__main__":
    main()

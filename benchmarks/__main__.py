"""`make bench`: what a verification costs, beside the floor, bare bubblewrap and peers, in one run.

The machines this runs on are shared and noisy: a ratio of medians of one run counts, an absolute time does not. Prints tables
and writes `benchmarks/results.json`: raw seconds, medians, and the object `ratios`.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import platform
import statistics
from collections.abc import Collection
from pathlib import Path
from typing import Any

from . import http, load, ratios, turns, work

RESULTS = Path(__file__).parent / "results.json"
SECTIONS = ("http_layer",)
"""What else there is to measure, beside ratios and cases."""


def main() -> None:
    options = _options()
    work.check_machine()
    chosen = _chosen(options.only)
    wanted = {name for ratio in ratios.ALL if ratio.name in chosen for name in (ratio.above, ratio.below)}
    wanted |= chosen & set(turns.names())
    seconds = turns.measure(wanted, options.runs)
    medians = {name: statistics.median(taken) for name, taken in seconds.items()}
    more, raw, notes = load.measure(wanted, options.runs)
    medians |= more
    seconds |= raw
    results: dict[str, Any] = {
        "machine": _machine(),
        "runs": options.runs,
        "seconds": seconds,
        "medians": medians,
        "ratios": {ratio.name: ratio.value(medians) for ratio in ratios.ALL},
    }
    print(f"medians of {options.runs} turns\n{ratios.measured(medians)}\n\n{ratios.table(medians, notes)}")
    if "http_layer" in chosen:
        work.tell("the HTTP layer")
        results["http"] = http.measure()
        print("\nthe HTTP layer")
        for name, value in results["http"].items():
            print(f"  {name:50} {value:9.4g}")
    options.json.write_text(json.dumps(results, indent=1))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--runs", type=work.positive, default=30, metavar="N", help="turns (default: 30)")
    parser.add_argument(
        "--only",
        action="append",
        metavar="PATTERN",
        help="measure these alone: names of ratios, cases or sections, as the shell matches; may be given again",
    )
    parser.add_argument("--json", type=Path, default=RESULTS, metavar="FILE", help="where the raw figures go")
    options = parser.parse_args()
    for pattern in options.only or ():
        if not fnmatch.filter(_names(), pattern):
            parser.error(f"--only {pattern}: nothing has such a name; there is {', '.join(_names())}")
    if not options.json.absolute().parent.is_dir():
        parser.error(f"--json {options.json}: there is no folder {options.json.absolute().parent}")
    return options


def _names() -> list[str]:
    return [*(ratio.name for ratio in ratios.ALL), *SECTIONS, *turns.names()]


def _chosen(patterns: Collection[str] | None) -> set[str]:
    if not patterns:
        return set(_names())
    return {name for pattern in patterns for name in fnmatch.filter(_names(), pattern)}


def _machine() -> dict[str, Any]:
    named = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return {
        "processor": named[0].partition(":")[2].strip() if named else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": os.uname().release,
        "python": platform.python_version(),
        "root": os.geteuid() == 0,
    }


if __name__ == "__main__":
    main()

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
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from . import captures, http, load, peers, profile, ratios, turns, work

RESULTS = Path(__file__).parent / "results.json"
SECTIONS = ("profile", "captures", "serving")
"""What else there is to measure, beside ratios and cases."""


def main(arguments: Sequence[str] | None = None) -> None:
    options = _options(arguments)
    work.check_machine()
    chosen = _chosen(options.only)
    wanted = {name for ratio in ratios.ALL if ratio.name in chosen for name in (ratio.above, ratio.below)}
    wanted |= chosen & set(turns.names())
    unmet = peers.install() if options.peers else None
    if unmet is not None:
        work.tell(f"peers: {unmet}")
    seconds, notes = turns.measure(wanted, options.runs)
    if unmet is not None:
        notes |= dict.fromkeys((ratios.REWARDKIT, ratios.HARBOR), unmet)
    medians = {name: statistics.median(taken) for name, taken in seconds.items()}
    more, raw, reasons = load.measure(wanted, options.runs)
    medians |= more
    seconds |= raw
    notes |= reasons
    results: dict[str, Any] = {
        "machine": _machine(),
        "runs": options.runs,
        "seconds": seconds,
        "medians": medians,
        "not_measured": notes,
        "ratios": {ratio.name: ratio.value(medians) for ratio in ratios.ALL},
    }
    if wanted:
        print(f"medians of {options.runs} turns\n{ratios.measured(medians)}\n")
        print(ratios.table([ratio for ratio in ratios.ALL if ratio.name in chosen], medians, notes))
    if "profile" in chosen:
        work.tell("the steps of a warm verification")
        try:
            results["profile"] = profile.measure(max(20, 10 * options.runs))
        except profile.NoSuchFunction as error:
            raise SystemExit(str(error)) from None
        print(f"\nsteps of a warm verification\n{profile.table(results['profile'])}")
    if "captures" in chosen:
        results["captures"] = captures.measure(min(options.runs, 10), large=options.large)
        print(f"\ncaptures\n{captures.table(results['captures'])}")
    if "serving" in chosen:
        work.tell("the HTTP layer")
        results["http"] = http.measure()
        print("\nthe HTTP layer")
        for name, value in results["http"].items():
            print(f"  {name:50} {value:9.4g}")
    if options.json is not None:
        options.json.write_text(json.dumps(results, indent=1))


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--runs", type=work.positive, default=30, metavar="N", help="turns (default: 30)")
    parser.add_argument(
        "--only",
        action="append",
        metavar="PATTERN",
        help="measure these alone: names of ratios, cases or sections, as the shell matches; may be given again",
    )
    parser.add_argument(
        "--large", action="store_true", help="captures of 50,000 files and of 2 GB, too: minutes, and 9 GB"
    )
    parser.add_argument(
        "--peers", action="store_true", help="install the peers first, into an environment of their own"
    )
    parser.add_argument(
        "--json",
        type=Path,
        metavar="FILE",
        help=f"where the raw figures go (default: benchmarks/{RESULTS.name}; with --only nowhere)",
    )
    options = parser.parse_args(arguments)
    if options.json is None and not options.only:
        options.json = RESULTS
    for pattern in options.only or ():
        if not fnmatch.filter(_names(), pattern):
            parser.error(f"--only {pattern}: nothing has such a name; there is {', '.join(_names())}")
    if options.json is not None and not options.json.absolute().parent.is_dir():
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

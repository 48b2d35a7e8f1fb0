"""What it costs to capture a workspace, and to restore a kept one, beside `cp -a` and `tar` of the same files.

A capture reads every file, writes a copy and names it by its digest; `cp -a` names nothing, `tar` writes one file. Restoring is
what a verification over HTTP, or of a run, does once with a workspace it was sent: unpacking, checked against its name.
"""

from __future__ import annotations

import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from assay.answers import Snapshots
from assay.workspaces import capture, remove_tree, scratch_folder

from . import work


class Size(NamedTuple):
    """A workspace."""

    name: str
    files: int
    file_bytes: int
    large: bool


SIZES = (
    Size("200 files", 200, 1000, False),
    Size("50,000 files", 50_000, 1000, True),
    Size("2 GB", 20, 100_000_000, True),
)
_LARGE_RUNS = 3


def measure(runs: int, *, large: bool) -> dict[str, dict[str, float]]:
    """Median seconds of each way, by workspace. `large`: those, too, that take minutes and gigabytes of disk."""
    found = {}
    for size in SIZES:
        if size.large and not large:
            continue
        work.tell(f"captures: {size.name}")
        with scratch_folder("bench-capture") as folder:
            source = work.make_workspace(folder / "source", files=size.files, file_bytes=size.file_bytes)
            found[size.name] = _measure(source, folder, min(runs, _LARGE_RUNS) if size.large else runs)
    return found


def _measure(source: Path, folder: Path, runs: int) -> dict[str, float]:
    ways: dict[str, Callable[[Path], object]] = {
        "capture": lambda into: capture(source, into),
        "keep (capture, and pack it)": lambda into: _store(into).put_folder(source),
        "restore": lambda into: kept.restore(digest, into),
        "cp -a": lambda into: subprocess.run(["cp", "-a", source, into], check=True),
        "tar -cf": lambda into: subprocess.run(["tar", "-C", source, "-cf", into, "."], check=True),
        "tar -xf": lambda into: subprocess.run(["tar", "-C", _new(into), "-xf", archive], check=True),
    }
    kept = _store(folder / "kept")
    digest = kept.put_folder(source).digest
    archive = folder / "archive.tar"
    subprocess.run(["tar", "-C", source, "-cf", archive, "."], check=True)
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(-1, runs):
        for name, way in ways.items():
            place = folder / "into"
            began = time.perf_counter()
            way(place)
            if turn >= 0:
                seconds[name].append(time.perf_counter() - began)
            _remove(place)
    return {name: statistics.median(taken) for name, taken in seconds.items()}


def _store(place: Path) -> Snapshots:
    return Snapshots(place / "packed", unpacked=place / "unpacked")


def _new(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _remove(place: Path) -> None:
    if place.is_dir():
        remove_tree(place)
    else:
        place.unlink(missing_ok=True)


def table(found: dict[str, dict[str, float]]) -> str:
    """The medians as they are printed."""
    return "\n".join(
        f"  {name:14} {way:30} {seconds * 1e3:11.1f} ms"
        for name, ways in found.items()
        for way, seconds in ways.items()
    )

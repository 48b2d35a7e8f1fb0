"""`python -m benchmarks.profile`: where the time of one warm verification goes, step by step, in microseconds.

Nothing in Assay is changed for it: the functions of `MARKS` are wrapped while it runs, and a step is the time from the mark
before it to its own. So the steps of one verification add up to all of it, whatever is called in between.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import importlib
import inspect
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from assay.grading import Captured
from assay.workspaces import scratch_folder

from . import work


class Mark(NamedTuple):
    """A step's end: the first time in a verification that a function is entered, or left."""

    step: str
    module: str
    """Where the function is looked up by who calls it."""
    name: str
    left: bool


ENTERED, LEFT = False, True
MARKS = (
    Mark("look-ups and plan of the job", "assay.grading.grade", "plan_jobs", LEFT),
    Mark(
        "from there to the sandbox: tests laid, broker, command",
        "assay.sandbox.namespaces",
        "NamespacesProvider.create",
        ENTERED,
    ),
    Mark(
        "the sandbox on the host: folders, mounts, its plan",
        "assay.sandbox.namespaces",
        "NamespacesProvider.create",
        LEFT,
    ),
    Mark("pipes, the fork that waits, the command sent", "assay.sandbox.slotrun", "SlotRun._send", LEFT),
    Mark("from sending to `started` heard", "assay.sandbox.slotrun", "SlotRun.begin", LEFT),
    Mark("from there to the end of the process", "assay.sandbox.supervise", "Run._down", ENTERED),
    Mark("proof of death and counters", "assay.sandbox.supervise", "Run._down", LEFT),
    Mark("reading what was left", "assay.grading.verification", "read_whatever", LEFT),
    Mark("closing", "assay.grading.settling", "verify_once", LEFT),
    Mark("settling and the verdict", "assay.grading.grade", "Verification.verdict", LEFT),
)
"""In the order in which a verification comes by. Where Assay's functions change, this table does, and nothing else here."""
ALL = "all of it"


class NoSuchFunction(Exception):
    """A mark names what is not there, or is not come by."""


def measure(runs: int) -> dict[str, float]:
    """Medians in microseconds of each step of so many verifications, and of all of it, by name, in order.

    Raises `NoSuchFunction`.
    """
    with scratch_folder("bench") as folder:
        own = work.make_work(folder)
        answer = work.captured(work.make_workspace(folder / "workspace"))
        return asyncio.run(_measure(own, answer, runs))


async def _measure(own: work.Work, answer: Captured, runs: int) -> dict[str, float]:
    await work.warm_up(own, answer)
    work.clear()
    taken: dict[str, list[float]] = {step: [] for step in (*(mark.step for mark in MARKS), ALL)}
    with _marked() as seen:
        # The first ones are the wrappers' own.
        for number in range(-2, runs):
            seen.clear()
            began = time.perf_counter()
            await work.verified(own, answer, 1)
            ended = time.perf_counter()
            if number < 0:
                continue
            before = began
            for mark in MARKS:
                at = seen.get(mark)
                if at is None or at < before:
                    raise NoSuchFunction(_not_passed(mark, at is None))
                taken[mark.step].append(at - before)
                before = at
            taken[ALL].append(ended - began)
    return {step: statistics.median(seconds) * 1e6 for step, seconds in taken.items()}


def _not_passed(mark: Mark, never: bool) -> str:
    how = "not called in" if never else "called earlier than its place in the table says, in"
    return f"{mark.module}.{mark.name} is {how} a warm verification: renew MARKS in benchmarks/profile.py"


@contextlib.contextmanager
def _marked() -> Iterator[dict[Mark, float]]:
    """While it lasts, the first time of each mark since the mapping was cleared."""
    seen: dict[Mark, float] = {}
    with contextlib.ExitStack() as stack:
        for mark in MARKS:
            owner, name = _find(mark)
            function = inspect.getattr_static(owner, name)
            setattr(owner, name, _wrapped(function, mark, seen))
            stack.callback(setattr, owner, name, function)
        yield seen


def _find(mark: Mark) -> tuple[Any, str]:
    """What holds a mark's function, and under which name."""
    *path, name = mark.name.split(".")
    try:
        owner: Any = importlib.import_module(mark.module)
        for part in path:
            owner = getattr(owner, part)
        getattr(owner, name)
    except (ImportError, AttributeError):
        raise NoSuchFunction(f"there is no {mark.module}.{mark.name}: renew MARKS in benchmarks/profile.py") from None
    return owner, name


def _wrapped(function: Callable[..., Any], mark: Mark, seen: dict[Mark, float]) -> Callable[..., Any]:
    def note() -> None:
        seen.setdefault(mark, time.perf_counter())

    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def waits(*arguments: Any, **named: Any) -> Any:
            if not mark.left:
                note()
            try:
                return await function(*arguments, **named)
            finally:
                if mark.left:
                    note()

        return waits

    @functools.wraps(function)
    def returns(*arguments: Any, **named: Any) -> Any:
        if not mark.left:
            note()
        try:
            return function(*arguments, **named)
        finally:
            if mark.left:
                note()

    return returns


def table(steps: dict[str, float]) -> str:
    """The medians as they are printed."""
    lines = [f"{'step':56} {'us':>8}"]
    return "\n".join([*lines, *(f"{step:56} {taken:8.0f}" for step, taken in steps.items())])


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.profile", description=__doc__)
    parser.add_argument("--runs", type=work.positive, default=300, metavar="N", help="verifications (default: 300)")
    runs = parser.parse_args(arguments).runs
    work.check_machine()
    try:
        print(table(measure(runs)))
    except NoSuchFunction as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main()

"""The cases that are measured in one process, turn by turn: whatever else this machine does meets all of them alike."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from assay.grading import Captured
from assay.sandbox import Overlay, ReadOnly, Sandbox, SandboxSpec, Writable, get_provider
from assay.workspaces import scratch_folder

from . import ratios, work
from .bare import TRUE_UID, nothing, runner, stage, timed_bwrap
from .floor import Floor
from .peers import HarborPhase, NotHere, Rewardkit
from .served import Served
from .work import Work

ASSAY = [sys.executable, "-m", "assay.cli.main"]
APART_S = 0.05
_UNCOUNTED = 2
"""Turns before the first that counts, at most."""


@dataclass(frozen=True, slots=True)
class Case:
    """One thing to measure."""

    take: Callable[[int], list[float]]
    """Does it so many times, and gives the seconds of each."""
    counted: int = 1
    """How many of a turn count."""
    before: int = 0
    """How many come before them: what is to be measured back to back has had one of its own before it."""
    every: int = 1
    """Done in each so manieth turn: less often what takes seconds."""


def measure(wanted: Collection[str], runs: int) -> tuple[dict[str, list[float]], dict[str, str]]:
    """Seconds of each of the cases that are wanted, by name; and of those that this machine has not, why not."""
    with contextlib.ExitStack() as stack:
        cases, notes = _cases(wanted, stack)
        seconds: dict[str, list[float]] = {name: [] for name in cases}
        for turn in range(-min(_UNCOUNTED, runs), runs if cases else 0):
            for name, case in cases.items():
                if turn % case.every or name in notes:
                    continue
                work.clear()
                try:
                    taken = case.take(case.before + case.counted)
                except NotHere as reason:
                    notes[name] = str(reason)
                    continue
                if turn >= 0:
                    seconds[name] += taken[case.before :]
            work.tell(f"turn {turn + 1} of {runs}" if turn >= 0 else "warming up")
        return {name: taken for name, taken in seconds.items() if name not in notes}, notes


def names() -> list[str]:
    """Of all cases."""
    return list(_MAKERS)


def _cases(wanted: Collection[str], stack: contextlib.ExitStack) -> tuple[dict[str, Case], dict[str, str]]:
    makers = {name: make for name, make in _MAKERS.items() if name in wanted}
    cases: dict[str, Case] = {}
    notes: dict[str, str] = {}
    if not makers:
        return cases, notes
    setting = stack.enter_context(_setting())
    for name, make in makers.items():
        try:
            cases[name] = make(setting, stack)
        except NotHere as reason:
            notes[name] = str(reason)
    return cases, notes


@dataclass(frozen=True, slots=True)
class _Setting:
    """What the cases share."""

    work: Work
    tests: Path
    """The task's tests folder as bare bubblewrap is shown it."""
    workspace: Path
    answer: Captured
    loop: asyncio.AbstractEventLoop


@contextlib.contextmanager
def _setting() -> Iterator[_Setting]:
    with scratch_folder("bench") as folder, scratch_folder("bench-tests") as tests:
        own = work.make_work(folder)
        workspace = work.make_workspace(folder / "workspace")
        answer = work.captured(workspace)
        stage(own.task, tests)
        loop = asyncio.new_event_loop()
        loop.run_until_complete(work.warm_up(own, answer))
        try:
            yield _Setting(own, tests, workspace, answer, loop)
        finally:
            loop.run_until_complete(loop.shutdown_default_executor())
            loop.close()


def _floor(setting: _Setting, stack: contextlib.ExitStack) -> Case:
    return Case(stack.enter_context(Floor()).take, counted=40, before=10)


def _floor_apart(setting: _Setting, stack: contextlib.ExitStack) -> Case:
    floor = stack.enter_context(Floor())
    return Case(lambda times: floor.take_apart(times, APART_S), counted=4)


def _bwrap(argv: list[str], uid: int | None = None) -> Callable[[_Setting, contextlib.ExitStack], Case]:
    def make(setting: _Setting, stack: contextlib.ExitStack) -> Case:
        return Case(lambda times: timed_bwrap(argv, setting.workspace, setting.tests, times, uid), 2)

    return make


def _grade(
    counted: int, before: int, provider: str = "namespaces", *, warm: bool = True, apart_s: float = 0.0
) -> Callable[[_Setting, contextlib.ExitStack], Case]:
    def make(setting: _Setting, stack: contextlib.ExitStack) -> Case:
        return _of(setting, setting.answer, counted, before, provider, warm=warm, apart_s=apart_s)

    return make


def _of(
    setting: _Setting,
    answer: Path | Captured,
    counted: int,
    before: int,
    provider: str = "namespaces",
    *,
    warm: bool = True,
    apart_s: float = 0.0,
) -> Case:
    def take(times: int) -> list[float]:
        return setting.loop.run_until_complete(
            work.verified(setting.work, answer, times, provider=provider, warm=warm, apart_s=apart_s)
        )

    return Case(take, counted, before)


def _workspace(files: int, file_bytes: int) -> Callable[[_Setting, contextlib.ExitStack], Case]:
    def make(setting: _Setting, stack: contextlib.ExitStack) -> Case:
        place = setting.work.folder / f"workspace-{files}-{file_bytes}"
        answer = work.captured(work.make_workspace(place, files=files, file_bytes=file_bytes))
        return _of(setting, answer, *_BACK_TO_BACK)

    return make


def _uncaptured(setting: _Setting, stack: contextlib.ExitStack) -> Case:
    return _of(setting, setting.workspace, *_BACK_TO_BACK)


def _with_submission(
    counted: int, before: int, *, warm: bool = True
) -> Callable[[_Setting, contextlib.ExitStack], Case]:
    def make(setting: _Setting, stack: contextlib.ExitStack) -> Case:
        own = work.make_work(stack.enter_context(scratch_folder("bench-submission")), work.SUBMISSION_VERIFIER)
        workspace = work.make_workspace(own.folder / "workspace")
        (workspace / "main.py").write_text(work.SUBMISSION)
        answer = work.captured(workspace)
        setting.loop.run_until_complete(work.warm_up(own, answer))
        return _of(replace(setting, work=own), answer, counted, before, warm=warm)

    return make


def _over_http(setting: _Setting, stack: contextlib.ExitStack) -> Case:
    served = stack.enter_context(Served(setting.work, setting.workspace))
    served.take(work.WARM_UP)
    return Case(served.take, *_BACK_TO_BACK)


def _rewardkit(setting: _Setting, stack: contextlib.ExitStack) -> Case:
    return Case(Rewardkit(stack.enter_context(scratch_folder("bench-rewardkit"))).take, every=_SELDOM)


def _harbor(setting: _Setting, stack: contextlib.ExitStack) -> Case:
    folder = stack.enter_context(scratch_folder("bench-harbor"))
    return Case(stack.enter_context(HarborPhase(folder)).take, 2)


def _true(setting: _Setting, stack: contextlib.ExitStack) -> Case:
    loop = setting.loop
    sandbox = loop.run_until_complete(get_provider("namespaces").create(_true_spec(setting)))
    stack.callback(lambda: loop.run_until_complete(sandbox.close()))
    return Case(lambda times: [_timed(lambda: loop.run_until_complete(_run_true(sandbox))) for _ in range(times)])


def _whole_true(setting: _Setting, stack: contextlib.ExitStack) -> Case:
    async def whole() -> None:
        sandbox = await get_provider("namespaces").create(_true_spec(setting))
        await _run_true(sandbox)
        await sandbox.close()

    return Case(lambda times: [_timed(lambda: setting.loop.run_until_complete(whole())) for _ in range(times)])


def _true_spec(setting: _Setting) -> SandboxSpec:
    mounts = (Overlay(setting.workspace, "/app"), ReadOnly(setting.tests, "/tests"), Writable("/logs/verifier"))
    return SandboxSpec(mounts=mounts)


async def _run_true(sandbox: Sandbox) -> None:
    result = await sandbox.exec(["true"], cwd="/app", timeout_s=60)
    if result.code != 0:
        raise SystemExit(f"the benchmark's own command failed: {result}")


def _command(*words: str) -> Callable[[_Setting, contextlib.ExitStack], Case]:
    def make(setting: _Setting, stack: contextlib.ExitStack) -> Case:
        argv = [*ASSAY, *(word.format(task=setting.work.task.folder, workspace=setting.workspace) for word in words)]
        env = {**os.environ, "ASSAY_STATE": str(setting.work.state)}

        def run() -> None:
            subprocess.run(argv, check=True, stdout=subprocess.DEVNULL, env=env)

        return Case(lambda times: [_timed(run) for _ in range(times)], every=_SELDOM)

    return make


def _timed(do: Callable[[], object]) -> float:
    began = time.perf_counter()
    do()
    return time.perf_counter() - began


_BACK_TO_BACK = (16, 8)
_SELDOM = 5
_MAKERS: dict[str, Callable[[_Setting, contextlib.ExitStack], Case]] = {
    ratios.FLOOR: _floor,
    "fork + wait of a bare interpreter, 50 ms apart": _floor_apart,
    ratios.BWRAP_TRUE: _bwrap(["true"], TRUE_UID),
    ratios.TRUE: _true,
    ratios.WHOLE_TRUE: _whole_true,
    ratios.BWRAP_PYTHON: _bwrap(nothing()),
    ratios.BWRAP_RUNNER: _bwrap(runner()),
    "bwrap, the runner compiled ahead": _bwrap(runner(compiled=True)),
    ratios.WARM: _grade(*_BACK_TO_BACK),
    ratios.PARKED: _grade(4, 1, apart_s=APART_S),
    ratios.FILES200: _workspace(200, 1000),
    ratios.MB100: _workspace(10, 10_000_000),
    "grade(), warm, captured in it": _uncaptured,
    "grade(), warm, a submission run in it": _with_submission(*_BACK_TO_BACK),
    ratios.HTTP: _over_http,
    ratios.COLD: _grade(2, 1, warm=False),
    "grade(), cold, a submission run in it": _with_submission(2, 1, warm=False),
    "grade(), cold, on bubblewrap": _grade(1, 0, "bubblewrap", warm=False),
    ratios.REWARDKIT: _rewardkit,
    ratios.HARBOR: _harbor,
    "assay verify, as a command": _command("verify", "{task}", "--workspace", "{workspace}"),
    "assay --help, as a command": _command("--help"),
}

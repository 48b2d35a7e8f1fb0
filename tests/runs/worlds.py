"""Runs on a scripted provider: datasets of small tasks, and what an agent and a verifier do in their sandboxes.

The agent writes `answer.txt` (task, rollout, a number) and notes its call; the verifier gives the number times the factor
that stands in its `test.sh`. Which of them fail, and how long they take, is the test's to say.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from assay.answers import Identity, Outcome, outcomes
from assay.runs import AgentSettings, GradingSettings, OpenRun, RunSettings, Setting, find_place, open_run, read_run
from assay.sandbox import Ended, ExecResult, Overlay, ReadOnly
from assay.sandbox.testing import Call, FakeProvider

OK = ExecResult(Ended.EXITED, 0)
LOST = ExecResult(Ended.FAULT, fault="for a test")
WORKS = "write an answer"


def make_dataset(folder: Path, tasks: int = 3, *, factor: float = 1.0, toml: str = "") -> Path:
    for number in range(tasks):
        task = folder / f"t{number:03}"
        (task / "tests").mkdir(parents=True)
        (task / "instruction.md").write_text(f"Do number {number}.\n")
        (task / "task.toml").write_text('schema_version = "1.4"\n' + toml)
        set_factor(task, factor)
    return folder


def set_factor(task: Path, factor: float | str) -> None:
    """Give a task another verifier."""
    (task / "tests" / "test.sh").write_text(f"#!/bin/bash\n# {factor}\n")


@dataclass
class World:
    """What happens in sandboxes."""

    value: Callable[[Identity], float] = lambda one: 1.0
    """What an agent answers."""
    agent_fails: Callable[[Identity, int], ExecResult | None] = lambda one, call: None
    """How its n-th call ends instead."""
    verifier_fails: Callable[[Identity, int], ExecResult | None] = lambda one, call: None
    log: Path | None = None
    """Gets a line for each call of the agent as it begins, and so survives this process."""
    slow_s: float = 0.0
    """Each takes up to this."""
    calls: Counter[Identity] = field(default_factory=Counter)
    verified: Counter[Identity] = field(default_factory=Counter)
    hold: asyncio.Event | None = None
    """Verifiers wait for it."""
    verifying: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when one has begun."""

    def provider(self) -> FakeProvider:
        return FakeProvider(self._play)

    async def _play(self, call: Call) -> ExecResult:
        if self.slow_s:
            await asyncio.sleep(random.random() * self.slow_s)
        if call.argv[:2] == ("bash", "-c"):
            return self._agent(call)
        return await self._verifier(call)

    def _agent(self, call: Call) -> ExecResult:
        one = Identity(call.env["ASSAY_TASK"], int(call.env["ASSAY_ROLLOUT"]))
        self.calls[one] += 1
        if self.log is not None:
            with self.log.open("a") as log:
                log.write(f"{one.task_id} {one.rollout}\n")
        failed = self.agent_fails(one, self.calls[one])
        (call.folders["/app"] / "answer.txt").write_text(f"{one.task_id} {one.rollout} {self.value(one)}")
        return failed or OK

    async def _verifier(self, call: Call) -> ExecResult:
        lower = next(mount.lower for mount in call.spec.mounts if isinstance(mount, Overlay) and mount.at == "/app")
        tests = next(mount.source for mount in call.spec.mounts if isinstance(mount, ReadOnly) and mount.at == "/tests")
        self.verifying.set()
        if self.hold is not None:
            await self.hold.wait()
        reward = 0.0
        if (lower / "answer.txt").exists():
            task, rollout, value = (lower / "answer.txt").read_text().split()
            one = Identity(task, int(rollout))
            self.verified[one] += 1
            failed = self.verifier_fails(one, self.verified[one])
            if failed is not None:
                return failed
            factor = (tests / "test.sh").read_text().split("# ")[1].strip()
            if factor == "broken":
                return OK
            reward = float(value) * float(factor)
        (call.folders["/logs/verifier"] / "reward.txt").write_text(str(reward))
        return OK


async def no_sleep(seconds: float) -> None:
    await asyncio.sleep(0)


def run_settings(
    dataset: Path, *, rollouts: int = 1, control: bool = False, agent: str = "command", **given: object
) -> RunSettings:
    if agent == "command":
        given.setdefault("command", WORKS)
    return RunSettings(
        str(dataset), AgentSettings(agent, **given), GradingSettings("process", control=control), rollouts
    )  # type: ignore[arg-type]


@contextmanager
def opened(folder: Path, settings: RunSettings | None = None) -> Iterator[OpenRun]:
    """A run beside its state."""
    folder.mkdir(parents=True, exist_ok=True)
    with open_run(find_place(folder), who="a test", state=folder.parent / "state", settings=settings) as run:
        yield run


def working(folder: Path, world: World, **given: object) -> Setting:
    """What a command works with; the state is the test's own."""
    values = {"concurrency": 4, "state": folder.parent / "state", "provider": world.provider(), "sleep": no_sleep}
    return Setting(**{**values, **given})  # type: ignore[arg-type]


def rows_of(folder: Path) -> Mapping[Identity, Outcome]:
    """Every row by its identity, read as another process would."""
    with read_run(find_place(folder)) as store:
        found = list(outcomes(store.database))
    assert len({one.identity for one in found}) == len(found)
    return {one.identity: one for one in found}


def soaking() -> bool:
    """Whether the long form of a test was asked for."""
    return os.environ.get("ASSAY_SOAK") == "1"

"""Agents that work in a sandbox made on the task's environment: the task's own solution, nobody, any command."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from assay.answers import Identity
from assay.failures import FailureEvent
from assay.failures.kinds import AGENT_RUN_ERROR, PROVIDER_UNAVAILABLE, TASK_INVALID, WORKSPACE_INVALID, WORKSPACE_LIMIT
from assay.grading.job import Answer, Job, bases_of, plan_jobs
from assay.grading.rehearsal import Actor, Said, Solution, perform
from assay.images import held
from assay.runs.left import Left
from assay.sandbox import Ended, ExecResult, Mount, Provider, Sandbox, Writable
from assay.tasks import Task, as_response, strict_json
from assay.workspaces import Unreadable, copy_tree, read_file, scratch_folder

DEFAULT_AGENT_S: Final = 3600.0
"""Wall-clock seconds for a command whose task gives the agent no time limit."""
UNCAPTURED: Final = (WORKSPACE_LIMIT, WORKSPACE_INVALID)
"""Kinds that say something of what an agent left, so they are graded, not tried again."""

_LOGS: Final = "/logs/agent"
_INSTRUCTION: Final = "instruction.md"
_SAID_MAX: Final = 16 * 1024 * 1024
_TRAJECTORY_MAX: Final = 256 * 1024 * 1024
_TAIL: Final = 2000
_SHOWN: Final = 500


@dataclass(frozen=True, slots=True)
class Stage:
    """Where such agents work."""

    provider: Provider
    state: Path
    rootfs: str | None = None
    verifier_network: bool = False
    """Whether verifiers were allowed the network: else tasks that demand it are refused before an agent works on them."""


@dataclass(frozen=True, slots=True)
class SandboxAgent:
    """See `Agent`. `oracle`, `nop` and `command`, by what `name` says."""

    stage: Stage
    name: str
    command: str | None = None
    env: Sequence[str] = ()
    network: bool = False
    timeout_s: float | None = None

    @asynccontextmanager
    async def working(self, task: Task, identity: Identity) -> AsyncIterator[Left]:
        """See `Agent.working`."""
        if self.name == "oracle" and not _has_solution(task):
            raise FailureEvent(TASK_INVALID, f"{task.id} has no solution/solve.sh, so no oracle", stage="agent")
        job = _job(task, self.stage, self.network)
        actor = self._actor(identity)
        began = time.monotonic()
        with ExitStack() as kept:
            for folder in bases_of((job,)):
                kept.enter_context(held(folder))
            place = kept.enter_context(scratch_folder("agent"))
            last = Answer(None)
            workspace: Path | FailureEvent | None = None
            async with aclosing(perform(job, actor)) as answers:
                try:
                    for number, _ in enumerate(job.steps or (job.task,)):
                        # The last one is not gone past: it is there until the next is asked for.
                        last = await anext(answers)
                        workspace = await _put_aside(last, job, number, place)
                except FailureEvent as failure:
                    if failure.kind not in UNCAPTURED:
                        raise
                    workspace = failure
                told = actor.told if isinstance(actor, Command) else {}
                extra = {"seconds": round(time.monotonic() - began, 3), **told}
                said = actor.said if isinstance(actor, Command) else Said(last.response, last.trajectory)
                yield Left(workspace, said.response, said.trajectory, {"_assay_agent": extra})

    def _actor(self, identity: Identity) -> Actor | None:
        if self.name == "nop":
            return None
        if self.name == "oracle":
            return Solution()
        return Command(self.command or "", self.env, self.timeout_s, identity)


@dataclass
class Command:
    """See `Actor`. Any program: it is given the instruction, works in the workspace and ends with 0.

    It finds the instruction on its standard input and in `$ASSAY_INSTRUCTION`, a file. What it prints is its response, unless
    it writes `/logs/agent/response.json` (a Responses object) or `response.txt`; `/logs/agent/trajectory.json` is kept, too.
    Time that ran out is part of a task: what it left then is an answer. Any other end is a failure.
    """

    command: str
    env: Sequence[str]
    timeout_s: float | None
    identity: Identity
    said: Said = field(default_factory=Said)
    told: dict[str, Any] = field(default_factory=dict)
    """What became of it: `ended`, `code`, `log_tail`."""
    _place: Path = Path()

    def mounts(self, view: Task, place: Path) -> tuple[Mount, ...]:
        """See `Actor.mounts`."""
        self._place = place
        given = place / "given"
        given.mkdir()
        (given / _INSTRUCTION).write_bytes(instruction_of(view))
        return (Writable(_LOGS, on_disk=True),)

    async def act(self, sandbox: Sandbox, view: Task, workdir: str, env: dict[str, str]) -> Said:
        """See `Actor.act`."""
        await sandbox.put(self._place / "given", _LOGS)
        own = {
            "ASSAY_INSTRUCTION": f"{_LOGS}/{_INSTRUCTION}",
            "ASSAY_TASK": self.identity.task_id,
            "ASSAY_ROLLOUT": str(self.identity.rollout),
        }
        result = await sandbox.exec(
            ["bash", "-c", self.command],
            cwd=workdir,
            env=env | _passed(self.env) | own,
            stdin=instruction_of(view),
            timeout_s=self.timeout_s or view.config.agent.timeout_sec or DEFAULT_AGENT_S,
        )
        self.told = {"ended": result.how.value, "code": result.code, "log_tail": _tail(result.stderr)}
        _refuse(result)
        left = await sandbox.get(_LOGS)
        self.said = await asyncio.to_thread(_read_said, left, result, self._place)
        return self.said


def instruction_of(view: Task) -> bytes:
    """What the agent is told: the step's own instruction, else the task's; empty when there is none."""
    if view.step is not None:
        own = view.source.read(f"steps/{view.step.name}/{_INSTRUCTION}")
        if own is not None:
            return own
    return view.source.read(_INSTRUCTION) or b""


def _has_solution(task: Task) -> bool:
    if task.steps:
        return all(step.solution is not None or task.solution is not None for step in task.steps)
    return task.solution is not None


def _job(task: Task, stage: Stage, network: bool) -> Job:
    jobs = plan_jobs(
        task, sandbox=stage.provider, state=stage.state, rootfs=stage.rootfs, network=stage.verifier_network
    )
    job = jobs[-1]
    if job.agent_base is None:
        # The same words as for a verifier's.
        from assay.grading.bases import find_base

        find_base(task, stage.rootfs, stage.state)
    return replace(job, network=network)


async def _put_aside(answer: Answer, job: Job, number: int, place: Path) -> Path | None:
    """The workspace itself; for a step a copy, since the next one works on it, in a folder that holds one for each."""
    if not job.steps or answer.workspace is None:
        return answer.workspace
    step = job.steps[number].step
    assert step is not None  # noqa: S101 - a step's view has one
    await asyncio.to_thread(copy_tree, answer.workspace, place / step.name)
    return place


def _passed(names: Sequence[str]) -> dict[str, str]:
    missing = [name for name in names if name not in os.environ]
    if missing:
        raise FailureEvent(
            AGENT_RUN_ERROR, f"--agent-env {missing[0]}: is not set here; export it, or leave it out", stage="agent"
        )
    return {name: os.environ[name] for name in names}


def _refuse(result: ExecResult) -> None:
    if result.how is Ended.FAULT:
        raise FailureEvent(PROVIDER_UNAVAILABLE, f"the agent's sandbox was lost: {result.fault}", stage="agent")
    if result.how is Ended.WALL_LIMIT or (result.how is Ended.EXITED and result.code == 0):
        return
    ended = f"exited with code {result.code}" if result.how is Ended.EXITED else f"ended: {result.how.value}"
    said = (_tail(result.stderr) or _tail(result.stdout))[-_SHOWN:]
    raise FailureEvent(
        AGENT_RUN_ERROR,
        f"the agent's command {ended}; only with 0 does it say that it left an answer{': ' + said if said else ''}",
        boundary="agent",
        stage="agent",
        details={"how": result.how.value, "code": result.code},
    )


def _read_said(left: Path, result: ExecResult, place: Path) -> Said:
    """What a command said; files of a folder that it could write anything into."""
    trajectory = None
    content = _read(left, "trajectory.json", _TRAJECTORY_MAX)
    if content is not None:
        trajectory = place / "trajectory.json"
        trajectory.write_bytes(content)
    written = _read(left, "response.json", _SAID_MAX)
    if written is not None:
        try:
            value = strict_json(written)
        except ValueError as error:
            raise _bad_response(str(error)) from None
        if not isinstance(value, dict):
            raise _bad_response("must be an object, a response of the Responses API")
        return Said(value, trajectory)
    text = _read(left, "response.txt", _SAID_MAX)
    shown = (text if text is not None else result.stdout).decode("utf-8", "replace")
    return Said(as_response(shown) if shown.strip() else None, trajectory)


def _bad_response(problem: str) -> FailureEvent:
    return FailureEvent(AGENT_RUN_ERROR, f"the agent's response.json: {problem}", boundary="agent", stage="agent")


def _read(folder: Path, name: str, most: int) -> bytes | None:
    if not os.path.lexists(folder / name):
        return None
    try:
        return read_file(folder, name, max_bytes=most)
    except Unreadable as error:
        raise FailureEvent(AGENT_RUN_ERROR, f"/logs/agent/{error}", boundary="agent", stage="agent") from error


def _tail(output: bytes) -> str:
    return output[-_TAIL:].decode("utf-8", "replace").strip()

"""One run of a verifier in a sandbox, from staged files to an observation. Decides nothing."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

from assay.failures import FailureEvent, is_infrastructure
from assay.sandbox import (
    BaseUse,
    Mount,
    Overlay,
    ReadOnly,
    Sandbox,
    SandboxSpec,
    Writable,
)
from assay.tasks import StagedTests, Task, resolve_env, verifier_environment
from assay.verifiers.compiled import HOME, START
from assay.workspaces import find_inside, scratch_folder

from .bases import find_python, verifier_workdir
from .broker import SOCKET_AT, VARIABLE, Broker, with_broker
from .channel import Channel
from .gathering import ARTIFACTS, check_health, gather, home_of
from .job import Answer, Job
from .observation import Observation, Run, Standing, not_graded
from .reading import is_little, read_whatever
from .siblings import Setting
from .staging import TESTS, Laid, laid_tests
from .verdict import Timing

_log = logging.getLogger(__name__)
LOGS = "/logs/verifier"
_AMBIGUOUS_BEFORE = (
    "assay:collect_failed",
    "assay:healthcheck_failed",
    "assay:workspace_limit",
    "assay:workspace_invalid",
)
"""Observed before the verifier started, and brought about by the answer or by the task alike."""


async def verify_once(job: Job, answer: Answer, logs: Path | None = None) -> Observation:
    """Run the verifier once on an answer and report what was observed.

    `logs`: an absent host folder that gets what the verifier left in its log folder (as `verifier/`) and its output (as
    `test-stdout.txt`), whatever happened.
    """
    began = time.monotonic()
    begun: Run | None = None
    seen: Observation | None = None
    try:
        async with contextlib.AsyncExitStack() as stack:
            own = _Own(stack)
            # Closed before the sandbox is: what was sent to it and not taken counts as the sandbox's own memory till then.
            talk = await stack.enter_async_context(contextlib.AsyncExitStack())
            channel = talk.enter_context(Channel())
            laid = await stack.enter_async_context(laid_tests(job, answer.response, own.folder))
            answer = await gather(job, answer, own.folder)
            broker = await talk.enter_async_context(_broker(job, answer))
            env = _environment(job, answer, laid.staged, broker)
            argv, fds = _command(job, answer, laid, channel, env.get("PATH"))
            interpreter = argv[0] if job.warm and answer.root is None and argv[1:3] == ["-I", "-c"] else None
            sandbox = await stack.enter_async_context(_sandbox(job, answer, laid.mounts, broker, interpreter))
            stack.push_async_callback(talk.aclose)
            if answer.root is not None:
                await check_health(job, sandbox)
            prepared = time.monotonic()
            if broker is not None:
                broker.begin(job.limit_s)
            # From here on its code may have run, whatever else goes wrong.
            begun = Run(ended={"how": "unknown", "code": None, "signal": None})
            result = await sandbox.exec(
                argv,
                cwd=verifier_workdir(job.task, job.workdir),
                env=env,
                timeout_s=job.limit_s,
                merge_stderr=True,
                pass_fds=fds,
            )
            ran = time.monotonic()
            written = await sandbox.get(LOGS)
            beside_s = broker.used_since(prepared) if broker is not None else 0.0
            heard = channel if fds else None
            if logs is None and is_little(written):
                seen = read_whatever(job, result, written, heard, None, beside_s)
            else:
                seen = await asyncio.to_thread(read_whatever, job, result, written, heard, logs, beside_s)
            if broker is not None:
                seen = with_broker(seen, broker)
    except (OSError, FailureEvent) as error:
        if seen is None:
            return _not_verified(error, begun, time.monotonic() - began)
        # What was read stays read: the rest is this machine's own affair.
        _log.warning("what a verification had on this machine could not be let go of: %s", error)
    done = time.monotonic()
    timing = Timing(0.0, prepared - began, ran - prepared, done - ran, done - began)
    return replace(seen, timing=timing)


class _Own:
    """A scratch folder of one verification's own, made when it is first needed: most need none."""

    def __init__(self, stack: contextlib.AsyncExitStack) -> None:
        self._stack = stack
        self._folder: Path | None = None

    def folder(self) -> Path:
        if self._folder is None:
            self._folder = self._stack.enter_context(scratch_folder("verification", later=True))
        return self._folder


def _not_verified(error: OSError | FailureEvent, begun: Run | None, total_s: float) -> Observation:
    if isinstance(error, FailureEvent):
        return not_graded(standing_of(error), error, begun, Timing(total_s=total_s))
    # The host's own disk, descriptors or processes: nothing the task or the answer can be blamed for.
    failure = FailureEvent("provider_unavailable", f"the verification could not be prepared: {error}")
    return not_graded(Standing.INFRASTRUCTURE, failure, begun, Timing(total_s=total_s))


def standing_of(failure: FailureEvent) -> Standing:
    """What a failure before the verifier started can be taken for."""
    if is_infrastructure(failure.kind):
        return Standing.INFRASTRUCTURE
    return Standing.AMBIGUOUS if failure.kind in _AMBIGUOUS_BEFORE else Standing.REFUSED


@contextlib.asynccontextmanager
async def _sandbox(
    job: Job, answer: Answer, tests: tuple[Mount, ...], broker: Broker | None, interpreter: str | None
) -> AsyncIterator[Sandbox]:
    mounts: list[Mount] = [*tests, Writable(LOGS)]
    if broker is not None:
        mounts.append(broker.mount)
    if answer.workspace is not None:
        mounts.append(Overlay(answer.workspace, job.workdir, answer.disposable, own=True))
    elif answer.root is not None and find_inside(answer.root, job.workdir) is None:
        # An agent that removed its workdir has left an empty one.
        mounts.append(Writable(job.workdir, on_disk=True))
    for part in answer.parts:
        folder = part.source.is_dir()
        mounts.append(Overlay(part.source, part.at, disposable=True) if folder else ReadOnly(part.source, part.at))
    if answer.root is None and not any(mount.at == ARTIFACTS for mount in mounts):
        mounts.append(Writable(ARTIFACTS, on_disk=True))
    if answer.trajectory is not None:
        mounts.append(ReadOnly(answer.trajectory, "/logs/agent/trajectory.json"))
    root = answer.root or job.base.folder
    account = job.terms.account(root, job.task.config.verifier.user)
    spec = SandboxSpec(
        root,
        tuple(mounts),
        job.network,
        job.terms.limits,
        BaseUse.READ_ONLY if answer.root is None else BaseUse.OVERLAID,
        account.uid if account is not None else None,
        interpreter,
    )
    try:
        sandbox = await job.provider.create(spec)
    except ValueError as error:
        if answer.root is None and not answer.parts:
            raise FailureEvent("assay:task_invalid", f"{job.task.id} does not fit its base: {error}") from error
        # What an answer holds stands in a mount's way.
        raise FailureEvent("assay:workspace_invalid", f"the answer cannot be laid out in a sandbox: {error}") from error
    try:
        yield sandbox
    finally:
        await sandbox.close()


@contextlib.asynccontextmanager
async def _broker(job: Job, answer: Answer) -> AsyncIterator[Broker | None]:
    """Who runs a submission, and asks a model, for the verifier.

    Nobody in shared mode, where there is no snapshot of the workspace alone.
    """
    if answer.workspace is None:
        yield None
        return
    env = {**job.base.env, **_task_environment(job.task)}
    python = find_python(job.base, env.get("PATH"), job.workdir) if job.warm and job.base.folder is None else None
    setting = Setting(job.provider, job.base.folder, job.workdir, answer.workspace, job.terms.limits, env, python)
    async with Broker(setting, job.judge) as broker:
        yield broker


def _command(
    job: Job, answer: Answer, laid: Laid, channel: Channel, path: str | None
) -> tuple[list[str], tuple[int, ...]]:
    """What is started, and the descriptors it gets: our own runner directly, as the shim would.

    Where no interpreter is seen, the shim says what is missing. Only the channel counts then too: files alone never decide
    what our own runner was to grade.
    """
    staged = laid.staged
    if not staged.is_shim:
        return ["bash", f"{TESTS}/test.sh"], ()
    base = job.base if answer.root is None else replace(job.base, folder=answer.root)
    python = find_python(base, path, job.workdir)
    if python is None:
        return ["bash", f"{TESTS}/test.sh"], (channel.theirs,)
    # By its own path and with -I: PATH, PYTHONPATH and HOME may lead into the workspace, and `site` would run what is there.
    runner = ["-c", START, HOME] if laid.compiled else [f"{HOME}/run_verifier.py"]
    argv = [python, "-I", *runner, "--verifier", f"{TESTS}/{staged.verifier_path}"]
    argv += ["--workspace", job.workdir, "--reward-dir", LOGS, "--verdict-fd", str(channel.theirs)]
    if staged.task_data_path is not None:
        argv += ["--task-data", f"{TESTS}/{staged.task_data_path}"]
    if staged.response_path is not None:
        argv += ["--response", f"{TESTS}/{staged.response_path}"]
    return argv, (channel.theirs,)


def _environment(job: Job, answer: Answer, staged: StagedTests, broker: Broker | None) -> dict[str, str]:
    task, where = job.task, f"{job.task.folder}/task.toml"
    own = task.config.verifier.environment is not None
    env = resolve_env(verifier_environment(task).env, f"{where}: [{'verifier.' if own else ''}environment.env]")
    env |= resolve_env(task.config.verifier.env, f"{where}: [verifier.env]")
    if broker is not None:
        env[VARIABLE] = SOCKET_AT
    if staged.response_path is not None:
        env["ASSAY_RESPONSE"] = f"{TESTS}/{staged.response_path}"
    return {**job.base.env, **home_of(job, answer.root, task.config.verifier.user), **env}


def _task_environment(task: Task) -> dict[str, str]:
    return resolve_env(task.config.environment.env, f"{task.folder}/task.toml: [environment.env]")

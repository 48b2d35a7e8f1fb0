"""`grade`: a task and an answer in, a verdict out."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ulid import ULID

from assay.failures import FailureEvent
from assay.images import held
from assay.sandbox import Provider
from assay.tasks import Task, as_response, load_task
from assay.workspaces import Found, capture, scratch_folder

from .arguments import WrongArgument, provider_of, require_json
from .bases import agent_filesystem
from .decide import Evidence, Settled, decide
from .evidence import EvidenceStore
from .filesystem import take_filesystem
from .job import Answer, Captured, Job, bases_of, plan_jobs
from .judging import AskJudge
from .observation import Standing, not_graded
from .rehearsal import rehearsed
from .replaced import replaced_programs
from .settling import Progress, Verification
from .state import state_dir
from .steps import combined_verdict, shortfall
from .verdict import CausedBy, Timing, Verdict

Folder = Path | str | Captured
Folders = Folder | Mapping[str, Folder] | None
"""One folder, or one for each step by its name."""

_MODES = ("separate", "shared")


@dataclass(frozen=True, slots=True)
class _Given:
    """What there is to grade, before it is captured."""

    workspace: Folder | FailureEvent | None
    root: Path | None
    response: dict[str, Any] | None
    trajectory: Path | None


@dataclass(frozen=True, slots=True)
class _Means:
    """How it is to be graded."""

    control: bool
    logs: Path | None
    store: EvidenceStore
    tell: Progress


async def grade(
    task: Task | Path | str,
    workspace: Folders | FailureEvent,
    response: Mapping[str, Any] | str | None = None,
    *,
    task_data: Mapping[str, Any] | None = None,
    trajectory: Path | str | None = None,
    mode: str = "separate",
    sandbox: Provider | str = "auto",
    rootfs: str | None = None,
    network: bool = False,
    timeout_s: float | None = None,
    control: bool = True,
    warm: bool = True,
    logs: Path | str | None = None,
    state: Path | str | None = None,
    judge: AskJudge | None = None,
    progress: Progress | None = None,
) -> Verdict:
    """Verify one answer and return its verdict. What is graded is captured first and never changed.

    Args:
        task: a task, or its folder.
        workspace: the folder the agent worked in; None for the untouched environment. For a multi-step task: a folder with
            one folder for each step, as it was when the step ended, by the step's name; or a mapping of these names to
            folders. A folder is copied before it is graded; a `Captured` one is not. In shared mode it may be None: then the
            workdir is what the filesystem has there. A `FailureEvent`: why what the agent left could not be captured; it is
            judged as if it had come up now.
        response: the agent's final response: a Responses API object, or plain text. Every step is given the same.
        task_data: fields merged over the task's own.
        trajectory: a file that the verifier sees as `/logs/agent/trajectory.json`.
        mode: "separate", a fresh sandbox; or "shared", the agent's own filesystem.
        sandbox: a provider, or its name; "auto" is the best one this machine has.
        rootfs: the root filesystem to grade on: "host", a name in `STATE_DIR/rootfs`, or a folder. In shared mode the
            folder of the agent's own root filesystem; for a multi-step task it holds one for each step.
        network: whether the verifier may use the network.
        timeout_s: wall-clock seconds in place of the task's own limit.
        control: False runs no repeat, no untouched environment and no solution for evidence's sake.
        warm: False starts an interpreter anew for each Python verifier, and each Python program of a submission, also where the
            provider has one ready to be forked.
        logs: a folder that gets one `attempt-N` folder for each run of the verifier on the answer (for a multi-step task
            in a folder for each step).
        state: where evidence and root filesystems are kept (`state_dir`).
        judge: asks a model for a verifier that uses `ask_judge` (`assay.client.judges_of` makes one); None: there are none.
        progress: told what is being done.

    Returns a verdict whatever happens to the verification: a failure is a verdict of status "failed". Raises
    `assay.tasks.TaskInvalid` for a task folder that cannot be read, and `WrongArgument` for an argument that is of the
    wrong kind or names something that does not exist.
    """
    began = time.monotonic()
    _check(mode, rootfs, timeout_s)
    if response is not None and not isinstance(response, str | Mapping):
        raise WrongArgument(f"response must be a text or an object, got {type(response).__name__}")
    for name, value in (("response", response), ("task_data", task_data)):
        await require_json(name, value)
    if trajectory is not None and not Path(trajectory).is_file():
        raise WrongArgument(f"trajectory: there is no file {trajectory}")
    if logs is not None:
        _make_logs(Path(logs))
    loaded = task if isinstance(task, Task) else load_task(task)
    if isinstance(workspace, Mapping) and not loaded.steps:
        raise WrongArgument(f"{loaded.id} has no steps: give one workspace, not one for each step")
    for captured in workspace.values() if isinstance(workspace, Mapping) else [workspace]:
        if isinstance(captured, Captured) and not captured.folder.is_dir():
            raise WrongArgument(f"workspace: the captured folder {captured.folder} is not there")
    provider = provider_of(sandbox)
    place = state_dir(state)
    kept = contextlib.ExitStack()
    try:
        # Digests read every file: one that cannot be read is found here.
        _ = loaded.digest, loaded.verifier_digest, loaded.solution_digest
        jobs = plan_jobs(
            loaded,
            sandbox=provider,
            state=place,
            rootfs=rootfs,
            mode=mode,
            task_data=task_data,
            network=network,
            timeout_s=timeout_s,
            warm=warm,
            judge=judge,
        )
        if judge is None and loaded.asks_judge:
            # Found here and not when it asks: there it would look like a verifier that the submission broke.
            raise FailureEvent(
                "judge_failed",
                f"the verifier of {loaded.id} asks a judge, and none was given: name one with --judge NAME=URL, or as "
                "[assay.judges.NAME] in dataset.toml",
                stage="admission",
            )
        for folder in bases_of(jobs):
            kept.enter_context(held(folder))
    except FailureEvent as failure:
        kept.close()
        return failed_verdict(failure, loaded, sandbox=provider.name, began=began)
    given = _Given(
        None if isinstance(workspace, Mapping) else workspace,
        Path(rootfs) if mode == "shared" and rootfs is not None else None,
        as_response(response) if response is not None else None,
        Path(trajectory).absolute() if trajectory else None,
    )
    means = _Means(
        control, Path(logs) if logs is not None else None, EvidenceStore(place), progress or (lambda _: None)
    )
    verdicts: list[Verdict] = []
    with kept:
        if not loaded.steps:
            return await _grade_one(jobs[0], given, means)
        for job in jobs:
            verdicts.append(await _grade_step(job, workspace, given, means))
            if not verdicts[-1].graded or shortfall(job.task, verdicts[-1]) is not None:
                break
    return combined_verdict(loaded, verdicts, began)


async def _grade_step(job: Job, workspace: Folders | FailureEvent, given: _Given, means: _Means) -> Verdict:
    """One step, on its own part of what there is to grade."""
    name = job.step or ""
    if isinstance(workspace, Mapping) and name not in workspace:
        missing = FailureEvent(
            "assay:workspace_invalid", f"there is no workspace for the step {name!r}; give its folder"
        )
        return failed_verdict(missing, job.task, sandbox=job.provider.name)
    if isinstance(workspace, Mapping):
        own: Folder | FailureEvent | None = workspace[name]
    elif isinstance(workspace, FailureEvent):
        own = workspace
    else:
        own = _step_of(workspace, name) if workspace is not None else None
    return await _grade_one(
        job,
        replace(given, workspace=own, root=given.root / name if given.root is not None else None),
        replace(
            means,
            logs=means.logs / name if means.logs is not None else None,
            tell=lambda text: means.tell(f"{name}: {text}"),
        ),
    )


def _step_of(workspace: Folder, name: str) -> Folder:
    if isinstance(workspace, Captured):
        own = workspace.folder / name
        # What is not there, or no folder, its capture refuses in its own words.
        return Captured(own) if own.is_dir() and not own.is_symlink() else own
    return Path(workspace) / name


def _check(mode: str, rootfs: str | None, timeout_s: float | None) -> None:
    if mode not in _MODES:
        raise WrongArgument(f"mode must be one of {', '.join(_MODES)}, got {mode!r}")
    if mode == "shared" and rootfs is None:
        raise WrongArgument("mode 'shared' needs the agent's own root filesystem: give its folder with --rootfs DIR")
    if timeout_s is not None and not (isinstance(timeout_s, int | float) and 0 < timeout_s < float("inf")):
        raise WrongArgument(f"timeout_s must be a positive number of seconds, got {timeout_s!r}")


def grade_sync(task: Task | Path | str, workspace: Folders, response: Any = None, **options: Any) -> Verdict:
    """`grade`, for code without an event loop. The same arguments, result and errors."""
    return asyncio.run(grade(task, workspace, response, **options))


def failed_verdict(
    failure: FailureEvent,
    task: Task | None,
    *,
    task_id: str = "",
    sandbox: str | None = None,
    began: float | None = None,
) -> Verdict:
    """The verdict of a verification that never started."""
    settled = decide(not_graded(Standing.REFUSED, failure), Evidence())
    assert isinstance(settled, Settled)  # noqa: S101 - a refusal asks for nothing
    return Verdict(
        verdict_id=str(ULID()),
        task_id=task.id if task is not None else task_id,
        task_digest=_digest(task, "digest"),
        verifier_digest=_digest(task, "verifier_digest"),
        base=None,
        status="failed",
        reward=None,
        caused_by=settled.caused_by,
        failure=failure.to_record(),
        sandbox=sandbox,
        timing=Timing(total_s=time.monotonic() - began) if began is not None else Timing(),
    )


def lost_verdict(
    failure: FailureEvent, task_id: str, *, task_digest: str | None = None, verifier_digest: str | None = None
) -> Verdict:
    """The verdict of a verification that was cut and must not be made again: nobody knows how it would have ended."""
    return replace(
        failed_verdict(failure, None, task_id=task_id),
        task_digest=task_digest,
        verifier_digest=verifier_digest,
        caused_by=CausedBy.INFRASTRUCTURE,
    )


def _digest(task: Task | None, name: str) -> str | None:
    """A digest, or None for a task that cannot be read whole."""
    try:
        return getattr(task, name, None)
    except (FailureEvent, OSError):
        return None


def _make_logs(folder: Path) -> None:
    """Before anything runs: a place that cannot be had costs no verification."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        taken = any(folder.iterdir())
    except OSError as error:
        raise WrongArgument(f"logs: {folder} cannot be made: {error.strerror}") from None
    if taken:
        raise WrongArgument(f"logs: {folder} is not empty; give a new folder")


async def _grade_one(job: Job, given: _Given, means: _Means) -> Verdict:
    began = time.monotonic()
    verification = Verification(job, means.control, means.logs, means.store, means.tell)
    dropped: tuple[Found, ...] = ()
    replaced: tuple[str, ...] = ()
    with contextlib.ExitStack() as stack:
        try:
            if isinstance(given.workspace, Captured) and given.root is None:
                workspace = given.workspace.folder.absolute()
                answer = Answer(workspace, given.response, given.trajectory, disposable=False)
                dropped = given.workspace.dropped
            else:
                means.tell("capturing the workspace")
                folder = stack.enter_context(scratch_folder("answer", later=True))
                answer, dropped = await _capture(job, given, folder)
        except FailureEvent as failure:
            # Filling the disk must not mask a bad answer: over a cap is ambiguous, and evidence settles it.
            # So is a workspace that something still changes: what lives on must not be able to mask it.
            over = failure.kind == "assay:workspace_limit" or failure.details.get("moving") is True
            first = not_graded(Standing.AMBIGUOUS if over else Standing.REFUSED, failure)
            settled = await verification.settle(first, None)
        else:
            image = job.agent_base.folder if job.agent_base is not None else None
            if answer.root is not None and image is not None:
                replaced = await asyncio.to_thread(replaced_programs, answer.root, image)
            settled = await verification.settle(await verification.look(answer), answer)
    base = job.base.name if given.root is None else str(given.root)
    return replace(verification.verdict(settled, dropped, began, base), replaced=replaced)


async def _capture(job: Job, given: _Given, folder: Path) -> tuple[Answer, tuple[Found, ...]]:
    if isinstance(given.workspace, FailureEvent):
        raise given.workspace
    root, workspace = None, None
    dropped: tuple[Found, ...] = ()
    if given.root is not None:
        root = folder / "root"
        taken = await _stoppable(take_filesystem, agent_filesystem(given.root), root)
        # A filesystem's own device files say nothing; the sandbox has a /dev of its own.
        dropped = tuple(found for found in taken if not found.path.startswith("dev/"))
    if isinstance(given.workspace, Captured):
        workspace, dropped = given.workspace.folder.absolute(), (*dropped, *given.workspace.dropped)
    elif given.workspace is not None:
        workspace = folder / "workspace"
        dropped += await _stoppable(capture, Path(given.workspace).absolute(), workspace)
    elif root is None:
        workspace = folder / "workspace"
        async with rehearsed(job, solve=False) as untouched:
            assert untouched.workspace is not None  # noqa: S101 - separate mode has one
            dropped += await _stoppable(capture, untouched.workspace, workspace)
    disposable = not isinstance(given.workspace, Captured)
    return Answer(workspace, given.response, given.trajectory, root, disposable=disposable), dropped


async def _stoppable(work: Callable[..., Any], source: Path, into: Path) -> tuple[Found, ...]:
    """Capture in a thread that ends soon after the caller was cancelled, so that its folder can be removed."""
    stop = threading.Event()
    running = asyncio.ensure_future(asyncio.to_thread(work, source, into, stop=stop))
    try:
        dropped: tuple[Found, ...] = (await asyncio.shield(running)).dropped
    except asyncio.CancelledError:
        stop.set()
        await asyncio.wait([running])
        if not running.cancelled():
            # That it was stopped: asked for, or it would be logged as lost.
            running.exception()
        raise
    return dropped

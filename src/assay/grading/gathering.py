"""From what the agent left to what the verifier sees: collect hooks, artifacts, healthchecks.

Hooks run in a fresh sandbox on the agent's files, after the capture and before the verifier; what they write is part of
the answer from then on. Artifacts are what the verifier is to see beside the workspace: the folder `/logs/artifacts`, and
every named path that a fresh mount would hide.
"""

from __future__ import annotations

import asyncio
import fnmatch
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path, PurePosixPath

from assay.failures import FailureEvent
from assay.sandbox import BaseUse, Ended, ExecResult, Limits, Mount, Sandbox, SandboxSpec, Writable
from assay.tasks import Artifact, Collect, Healthcheck, Task, resolve_env
from assay.workspaces import capture, copy_tree, remove_tree, take_part

from .filesystem import clear_mount_points
from .job import Answer, Job, Part

ARTIFACTS = "/logs/artifacts"
_MAIN = ("main", None)
_NEVER = ("/", "/dev", "/logs", "/logs/agent", "/logs/verifier", "/proc", "/run", "/solution", "/sys", "/tests")
_NEVER_WITHIN = ("/dev", "/logs/verifier", "/proc", "/run/assay", "/solution", "/sys", "/tests")
_SYSTEM = ("/bin", "/etc", "/home", "/lib", "/lib64", "/root", "/sbin", "/tmp", "/usr", "/var", "/var/tmp")  # noqa: S108
_HIDDEN = ("/tmp", "/var/tmp")  # noqa: S108 - inside a sandbox, where they are fresh
_SAID = 300


async def gather(job: Job, answer: Answer, own: Callable[[], Path]) -> Answer:
    """The answer as the verifier is to see it. `own` makes a folder of ours: what is gathered lies in there.

    Raises `FailureEvent`: `assay:collect_failed` for a hook that failed, `assay:task_invalid` for an artifact that cannot
    be one, and as `capture` does.
    """
    sources = [artifact_path(job.task, part) for part in _artifacts(job.task)]
    hooks = [hook for hook in job.task.config.verifier.collect if hook.service in _MAIN]
    if not sources and not hooks and answer.root is None:
        return answer
    folder = own() / "gathered"
    folder.mkdir()
    conventional = folder / "artifacts"
    if hooks:
        answer = await _collect(job, answer, hooks, folder, conventional)
    if answer.root is not None:
        await asyncio.to_thread(_take, answer.root, ARTIFACTS, conventional)
    parts = await asyncio.to_thread(_parts, job, answer, sources, folder, conventional)
    return replace(answer, parts=parts)


def missing_artifacts(job: Job) -> tuple[str, ...]:
    """Artifacts that lie where a workspace alone holds nothing: named in the verdict, since no verifier sees them."""
    if job.shared:
        return ()
    paths = [artifact_path(job.task, part) for part in _artifacts(job.task)]
    return tuple(path for path in paths if not _within(path, job.workdir) and not _within(path, ARTIFACTS))


def artifact_path(task: Task, part: Artifact) -> str:
    """The absolute path of an artifact. Raises `FailureEvent` of kind `assay:task_invalid` for one that cannot be seen there."""
    path = os.path.normpath(part.source)
    wrong = None
    if not part.source.startswith("/") or ".." in PurePosixPath(part.source).parts or "\0" in part.source:
        wrong = "must be an absolute path without '..'"
    elif path in (*_NEVER, *_SYSTEM) or any(_within(path, tree) for tree in _NEVER_WITHIN):
        wrong = "belongs to the sandbox itself; name a file or folder of the task's own"
    if wrong is not None:
        raise FailureEvent(
            "assay:task_invalid", f"{task.folder}/task.toml: artifacts: {part.source!r} {wrong}", stage="admission"
        )
    return path


async def check_health(job: Job, sandbox: Sandbox, check: Healthcheck | None = None) -> None:
    """Run a healthcheck, the environment's own by default, in a sandbox that is there.

    Once: every command starts from the same state, so that waiting and trying again would change nothing. Raises
    `FailureEvent` of kind `assay:healthcheck_failed` when it does not hold.
    """
    wanted = check or job.task.config.environment.healthcheck
    if wanted is None:
        return
    result = await sandbox.exec(
        ["bash", "-c", wanted.command],
        cwd=job.workdir,
        env=agent_environment(job, job.task, None, None),
        timeout_s=wanted.timeout_sec,
        merge_stderr=True,
    )
    _refuse(result, "assay:healthcheck_failed", f"the healthcheck {wanted.command!r}")


def agent_environment(job: Job, task: Task, root: Path | None, user: str | int | None) -> dict[str, str]:
    """The environment of what runs as the agent did: the image's, its home, the task's own.

    Raises `TaskInvalid` for a host variable that is not set.
    """
    image = job.agent_base.env if job.agent_base is not None else {}
    own = resolve_env(task.config.environment.env, f"{task.folder}/task.toml: [environment.env]")
    return {**image, **home_of(job, root, user), **own}


def home_of(job: Job, root: Path | None, user: str | int | None) -> dict[str, str]:
    """HOME as the base's `/etc/passwd` has it, on a filesystem that may be written; elsewhere `/tmp` stays the home."""
    account = job.terms.account(root, user) if root is not None else None
    return {"HOME": account.home} if account is not None and account.home is not None else {}


def agent_spec(job: Job, mounts: tuple[Mount, ...], root: Path | None, user: str | int | None) -> SandboxSpec:
    """A sandbox on the agent's files: the base read-only, or a root filesystem of ours that is written."""
    base = job.agent_base.folder if job.agent_base is not None else None
    account = job.terms.account(root or base, user)
    wishes = job.task.config.environment
    own = job.task.config.verifier.environment is not None
    limits = Limits(memory_bytes=wishes.memory_mb * 1024 * 1024 if wishes.memory_mb else None, cpus=wishes.cpus)
    return SandboxSpec(
        root or base,
        mounts,
        job.network,
        limits if own else job.terms.limits,
        BaseUse.READ_ONLY if root is None else BaseUse.WRITTEN,
        account.uid if account is not None else None,
    )


async def _collect(job: Job, answer: Answer, hooks: list[Collect], folder: Path, conventional: Path) -> Answer:
    """Run the hooks, each as its own user, all on what the one before left."""
    root, workspace = None, folder / "workspace"
    if answer.root is not None:
        root = folder / "root"
        await asyncio.to_thread(copy_tree, answer.root, root)
    if answer.workspace is not None:
        await asyncio.to_thread(copy_tree, answer.workspace, workspace)
    for number, hook in enumerate(hooks, 1):
        mounts: list[Writable] = [] if root is not None else [Writable(ARTIFACTS, on_disk=True)]
        if answer.workspace is not None:
            mounts.append(Writable(job.workdir, on_disk=True))
        sandbox = await job.provider.create(agent_spec(job, tuple(mounts), root, hook.user))
        try:
            if answer.workspace is not None:
                await sandbox.put(workspace, job.workdir)
            if root is None and conventional.exists():
                await sandbox.put(conventional, ARTIFACTS)
            result = await sandbox.exec(
                ["bash", "-c", hook.command],
                cwd=job.workdir,
                env=agent_environment(job, job.task, root, hook.user),
                timeout_s=hook.timeout_sec,
                merge_stderr=True,
            )
            _refuse(result, "assay:collect_failed", f"[[verifier.collect]] #{number}, {hook.command!r:.120},")
            for at, kept in ((job.workdir, workspace), (ARTIFACTS, conventional)):
                if any(mount.at == at for mount in mounts):
                    left = await sandbox.get(at)
                    await asyncio.to_thread(_replace, left, kept)
        finally:
            await sandbox.close()
        if root is not None:
            await asyncio.to_thread(clear_mount_points, root)
    return replace(answer, root=root, workspace=workspace if answer.workspace is not None else None, disposable=True)


def _replace(left: Path, kept: Path) -> None:
    remove_tree(kept)
    capture(left, kept)


def _refuse(result: ExecResult, kind: str, what: str) -> None:
    if result.how is Ended.FAULT:
        raise FailureEvent("provider_unavailable", f"the sandbox of {what} was lost: {result.fault}")
    if result.how is Ended.EXITED and result.code == 0:
        return
    ended = f"exited with code {result.code}" if result.how is Ended.EXITED else f"ended: {result.how.value}"
    said = result.stdout[-_SAID:].decode("utf-8", "replace").strip()
    raise FailureEvent(kind, f"{what} {ended}{': ' + said if said else ''}")


def _artifacts(task: Task) -> list[Artifact]:
    return [part for part in task.config.artifacts if part.service in _MAIN]


def _parts(job: Job, answer: Answer, sources: list[str], folder: Path, conventional: Path) -> tuple[Part, ...]:
    parts: list[Part] = []
    for number, (source, artifact) in enumerate(zip(sources, _artifacts(job.task), strict=True)):
        taken = folder / f"part-{number}"
        hidden = answer.root is not None and any(_within(source, tree) for tree in _HIDDEN)
        if not (hidden or artifact.destination) or not _take_source(job, answer, source, conventional, taken):
            continue
        if taken.is_dir():
            _exclude(taken, artifact.exclude)
        if artifact.destination:
            _place(taken, conventional, artifact.destination)
        covered = any(_within(source, part.at) for part in parts)
        if hidden and not covered and not _within(source, job.workdir):
            parts.append(Part(taken, source))
    if conventional.exists():
        parts.append(Part(conventional, ARTIFACTS))
    return tuple(parts)


def _take_source(job: Job, answer: Answer, source: str, conventional: Path, into: Path) -> bool:
    if answer.workspace is not None and _within(source, job.workdir):
        return _take(answer.workspace, os.path.relpath(source, job.workdir), into)
    if _within(source, ARTIFACTS):
        return conventional.exists() and _take(conventional, os.path.relpath(source, ARTIFACTS), into)
    return answer.root is not None and _take(answer.root, source, into)


def _take(root: Path, path: str, into: Path) -> bool:
    if path == ".":
        capture(root, into)
        return True
    return take_part(root, path.lstrip("/"), into)


def _place(taken: Path, conventional: Path, destination: str) -> None:
    """Copy an artifact to its destination below `/logs/artifacts`, whatever the agent left in the way."""
    parts = PurePosixPath(destination).parts
    if not parts:
        return
    conventional.mkdir(exist_ok=True)
    place = conventional
    for name in parts[:-1]:
        place = place / name
        if place.is_symlink() or not place.is_dir():
            remove_tree(place)
            place.mkdir()
    place = place / parts[-1]
    remove_tree(place)
    if taken.is_dir():
        capture(taken, place)
    else:
        shutil.copy(taken, place)


def _exclude(folder: Path, patterns: list[str]) -> None:
    """Take out of a copied folder what a pattern names: by its own name, or by its path within the folder."""
    if not patterns:
        return
    waiting = [folder]
    while waiting:
        for entry in os.scandir(waiting.pop()):
            path = Path(entry.path)
            names = (entry.name, path.relative_to(folder).as_posix())
            if any(fnmatch.fnmatchcase(name, pattern) for name in names for pattern in patterns):
                remove_tree(path)
            elif entry.is_dir(follow_symlinks=False):
                waiting.append(path)


def _within(path: str, tree: str) -> bool:
    return path == tree or path.startswith(tree.rstrip("/") + "/")

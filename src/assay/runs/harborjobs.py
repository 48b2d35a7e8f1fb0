"""Trials of a Harbor job folder: the artifacts that were recorded of each become an answer's workspace.

As Harbor 0.26 writes them: `<trial>/result.json` says which task it was of and what came of it, `<trial>/artifacts/manifest.json`
what was recorded: `source` in the container, `destination` in the trial's folder, `status`. What lies at the task's workdir
is the workspace; parts of it are laid over the untouched environment, as Harbor lays them for a verifier of its own.
"""

from __future__ import annotations

import asyncio
import json
import os
import posixpath
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path, PurePosixPath
from typing import Any, Final

from assay.failures import FailureEvent
from assay.failures.kinds import WORKSPACE_INVALID
from assay.grading.job import plan_jobs
from assay.runs.catalogue import Catalogue
from assay.runs.left import Left
from assay.runs.offers import Numbering, Offer, Problem
from assay.runs.performing import SandboxAgent, Stage
from assay.tasks import Task
from assay.workspaces import Unreadable, copy_tree, read_file, remove_tree, scratch_folder, take_part

_RESULT: Final = "result.json"
_MANIFEST: Final = "artifacts/manifest.json"
_TRAJECTORY: Final = "agent/trajectory.json"
_FILE_MAX: Final = 64 * 1024 * 1024


def is_job_folder(path: Path) -> bool:
    """Whether a folder holds trials."""
    return any(_is_trial(trial) for trial in _folders(path))


def offered_trials(path: Path, catalogue: Catalogue, stage: Stage) -> Iterator[Offer | Problem]:
    """Every trial of a job as an answer or a problem, in the order of their names. Blocks."""
    numbering = Numbering()
    for trial in _folders(path):
        if _is_trial(trial):
            yield _offer(trial, catalogue, numbering, stage)


def _offer(trial: Path, catalogue: Catalogue, numbering: Numbering, stage: Stage) -> Offer | Problem:
    try:
        result = _read(trial, _RESULT)
        manifest = _read(trial, _MANIFEST)
    except ValueError as error:
        return Problem(trial.name, str(error))
    task = _task_of(result, catalogue)
    if isinstance(task, str):
        return Problem(trial.name, task)
    if not isinstance(manifest, list):
        return Problem(trial.name, f"{_MANIFEST} must be a list, so nothing says what was recorded")
    recorded = [entry for entry in manifest if isinstance(entry, dict) and entry.get("status") == "ok"]
    one = numbering.identity(task.id, None, trial.name)
    if isinstance(one, Problem):
        return one

    @asynccontextmanager
    async def left() -> AsyncIterator[Left]:
        job = plan_jobs(task, sandbox=stage.provider, state=stage.state, rootfs=stage.rootfs, network=True)[-1]
        parts = _parts(recorded, job.workdir, trial)
        with scratch_folder("recorded") as place:
            workspace = place / "workspace"
            if all(inside != "." for inside, _ in parts):
                async with SandboxAgent(stage, "nop").working(task, one) as untouched:
                    if isinstance(untouched.workspace, FailureEvent):
                        raise untouched.workspace
                    if untouched.workspace is not None:
                        await asyncio.to_thread(copy_tree, untouched.workspace, workspace)
            for number, (inside, destination) in enumerate(parts):
                await asyncio.to_thread(_lay, trial, destination, workspace, inside, place / f"part-{number}")
            trajectory = place / "trajectory.json"
            has = await asyncio.to_thread(take_part, trial, _TRAJECTORY, trajectory)
            yield Left(
                workspace, None, trajectory if has and trajectory.is_file() else None, _extra(result, trial, parts)
            )

    return Offer(trial.name, task, one, left, agent_settings={"name": _agent_of(result)} if _agent_of(result) else {})


def _parts(recorded: list[dict[str, Any]], workdir: str, trial: Path) -> list[tuple[str, str]]:
    """Where in the workspace, and where in the trial's folder, each recorded artifact lies; the whole first."""
    found = []
    for entry in recorded:
        source, destination = entry.get("source"), entry.get("destination")
        if (
            not isinstance(source, str)
            or not isinstance(destination, str)
            or entry.get("service") not in (None, "main")
        ):
            continue
        path = posixpath.normpath(source)
        if path == workdir or path.startswith(f"{workdir}/"):
            found.append((posixpath.relpath(path, workdir), destination))
    if not found:
        raise FailureEvent(
            WORKSPACE_INVALID,
            f"{trial.name}: nothing of {workdir} was recorded, so there is nothing to verify; give artifacts = [{workdir!r}] in "
            "task.toml when Harbor runs it",
        )
    return sorted(found, key=lambda part: len(PurePosixPath(part[0]).parts))


def _lay(trial: Path, destination: str, workspace: Path, inside: str, taken: Path) -> None:
    """Put a recorded artifact into a workspace of ours, in the place of what is there; through no link."""
    if ".." in PurePosixPath(destination).parts or not take_part(trial, destination.lstrip("/"), taken):
        raise FailureEvent(WORKSPACE_INVALID, f"{trial.name}: {destination} was recorded and is not there")
    place = workspace
    for name in PurePosixPath(inside).parts[:-1]:
        place = place / name
        if place.is_symlink() or not place.is_dir():
            remove_tree(place)
            place.mkdir(parents=True)
    place = workspace if inside == "." else place / PurePosixPath(inside).name
    if os.path.lexists(place):
        remove_tree(place)
    place.parent.mkdir(parents=True, exist_ok=True)
    taken.rename(place)


def _task_of(result: Any, catalogue: Catalogue) -> Task | str:
    if not isinstance(result, dict):
        return f"{_RESULT} must be an object"
    names = [result.get("task_name")]
    for holder in (result.get("task_id"), _within(result, "config", "task")):
        if isinstance(holder, Mapping):
            names += [holder.get("path"), holder.get("name")]
    given = [name for name in names if isinstance(name, str) and name]
    for name in given:
        for candidate in (name, posixpath.basename(name.rstrip("/"))):
            if candidate in catalogue.tasks:
                return catalogue.tasks[candidate]
    for task in catalogue.tasks.values():
        if task.config.task is not None and task.config.task.name in given:
            return task
    return f"is of the task {(given or ['(none named)'])[0]!r:.200}, which the dataset does not have"


def _extra(result: Mapping[str, Any], trial: Path, parts: list[tuple[str, str]]) -> dict[str, Any]:
    said: dict[str, Any] = {"trial": trial.name, "artifacts": [inside for inside, _ in parts]}
    rewards = _within(result, "verifier_result", "rewards")
    if isinstance(rewards, Mapping):
        said["rewards"] = dict(rewards)
    failed = _within(result, "exception_info", "exception_type")
    if failed is not None:
        said["exception"] = failed
    return {"_assay_recorded": said}


def _agent_of(result: Mapping[str, Any]) -> str | None:
    name = _within(result, "agent_info", "name")
    return name if isinstance(name, str) else None


def _within(record: Mapping[str, Any], *names: str) -> Any:
    value: Any = record
    for name in names:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _read(trial: Path, name: str) -> Any:
    """Raises `ValueError` with what is wrong with the file."""
    try:
        return json.loads(read_file(trial, name, max_bytes=_FILE_MAX, single_link=False))
    except Unreadable as error:
        raise ValueError(f"{error}; the trial did not end, or recorded nothing") from None
    except ValueError as error:
        raise ValueError(f"{name} is torn or no JSON: {error}") from None


def _is_trial(path: Path) -> bool:
    return (path / "artifacts").is_dir() or ((path / _RESULT).is_file() and (path / "agent").is_dir())


def _folders(path: Path) -> list[Path]:
    return sorted(one for one in path.iterdir() if one.is_dir() and not one.is_symlink())

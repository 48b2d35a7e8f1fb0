"""The kept answers of another run, workspaces included."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

from assay.answers import Answer, Snapshots, answers, find_trajectory
from assay.runs.catalogue import Catalogue
from assay.runs.left import Left
from assay.runs.offers import Offer, Problem
from assay.runs.place import find_place, read_run
from assay.workspaces import scratch_folder


def offered_answers(path: Path, catalogue: Catalogue, unpacked: Path) -> Iterator[Offer | Problem]:
    """Every kept answer of a run as one of this run's, or a problem. Blocks."""
    place = find_place(path)
    with read_run(place) as store:
        snapshots = Snapshots(place.snapshots, unpacked=unpacked)
        for answer in answers(store.database):
            where = f"{path.name}: {answer.identity.task_id}, rollout {answer.identity.rollout}"
            task = catalogue.tasks.get(answer.identity.task_id)
            if task is None:
                yield Problem(where, "is of a task that the dataset does not have")
                continue
            trajectory = find_trajectory(store.database, answer.id)
            yield Offer(
                where,
                task,
                answer.identity,
                _left(answer, trajectory, snapshots),
                answer.task_digest,
                agent=answer.agent,
                agent_settings=answer.agent_settings,
            )


def _left(
    answer: Answer, trajectory: bytes | None, snapshots: Snapshots
) -> Callable[[], AbstractAsyncContextManager[Left]]:
    @asynccontextmanager
    async def left() -> AsyncIterator[Left]:
        with scratch_folder("replayed") as place:
            workspace = None
            if answer.snapshot is not None:
                workspace = place / "workspace"
                await asyncio.to_thread(snapshots.restore, answer.snapshot, workspace)
            file = place / "trajectory.json" if trajectory is not None else None
            if file is not None and trajectory is not None:
                file.write_bytes(trajectory)
            yield Left(workspace, answer.response, file, answer.extra)

    return left

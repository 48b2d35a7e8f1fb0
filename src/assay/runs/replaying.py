"""Answers that are kept somewhere else become a run's own: from rows, from Harbor's trials, from another run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Final

from ulid import ULID

from assay.answers import Answer, Identity, outcomes
from assay.failures import FailureEvent
from assay.grading import WrongArgument
from assay.runs.catalogue import Catalogue
from assay.runs.gymrows import no_workspace, offered_rows
from assay.runs.harborjobs import is_job_folder, offered_trials
from assay.runs.keeping import Sleep, finished, kept
from assay.runs.offers import Offer, Problem
from assay.runs.otherruns import offered_answers
from assay.runs.performing import Stage
from assay.runs.place import OpenRun, is_run, run_around
from assay.workspaces import Found

_AT_ONCE: Final = 64
"""Answers that are looked at together; those that are made ready at once share their waits for the disk."""
_PROBLEMS_MAX: Final = 100


@dataclass
class Replayed:
    """What was found in a source."""

    kept: int = 0
    """Answers that came in now."""
    there: int = 0
    """Answers that were kept before."""
    refused: int = 0
    """What could not be taken."""
    problems: list[Problem] = field(default_factory=list)
    """The first of what was refused."""

    def refuse(self, problem: Problem) -> None:
        """Count it, and remember the first ones."""
        self.refused += 1
        if len(self.problems) < _PROBLEMS_MAX:
            self.problems.append(problem)

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        problems = [problem._asdict() for problem in self.problems]
        return {"kept": self.kept, "there": self.there, "refused": self.refused, "problems": problems}


async def replay(
    run: OpenRun, catalogue: Catalogue, stage: Stage, tell: Callable[[str], None], sleep: Sleep, *, concurrency: int
) -> Replayed:
    """Keep every answer of the run's source that is not kept yet, `concurrency` at once. One is taken whole or not at all.

    `tell` gets a sentence for each thing that cannot be taken; the rest goes on. Raises `WrongArgument` for a source that
    is none, and `CannotKeep`.
    """
    found = Replayed()
    source = Path(run.settings.agent.source or "")
    there = await asyncio.to_thread(
        lambda: {one.identity for one in outcomes(run.store.database) if one.answer_id is not None}
    )
    offers = _offers(source, catalogue, stage)
    slots = asyncio.Semaphore(concurrency)
    while batch := await asyncio.to_thread(lambda: list(islice(offers, _AT_ONCE))):
        new: list[Offer] = []
        missing: list[Identity] = []
        for offered in batch:
            if isinstance(offered, Problem):
                found.refuse(offered)
                missing += [offered.missing] if offered.missing is not None else []
                tell(f"{offered.where}: {offered.reason}")
            elif offered.identity in there:
                found.there += 1
            else:
                new.append(offered)
        # Planned in the source's order; keeping is not in any.
        planned = [*(offer.identity for offer in new), *missing]
        await kept(lambda planned=planned: run.store.plan(planned), sleep)  # type: ignore[misc]  # (the loop's own value)
        for problem in await asyncio.gather(*(_keep(run, offer, sleep, slots) for offer in new)):
            if problem is None:
                found.kept += 1
            else:
                found.refuse(problem)
                tell(f"{problem.where}: {problem.reason}")
    return found


def _offers(source: Path, catalogue: Catalogue, stage: Stage) -> Iterator[Offer | Problem]:
    if (run := run_around(source)) is not None:
        raise WrongArgument(f"from: {source} is a part of a run; give its folder, {run}")
    if source.is_file():
        return offered_rows(source, catalogue)
    if not source.is_dir():
        raise WrongArgument(f"from: there is no file or folder {source}")
    if is_run(source):
        return offered_answers(source, catalogue, stage.state / "unpacked")
    if is_job_folder(source):
        return offered_trials(source, catalogue, stage)
    raise WrongArgument(
        f"from: {source} is neither a run (no run.sqlite) nor a Harbor job (no folder in it holds artifacts/); "
        "give one of these, or a JSONL of rows"
    )


async def _keep(run: OpenRun, offer: Offer, sleep: Sleep, slots: asyncio.Semaphore) -> Problem | None:
    try:
        async with slots, offer.left() as left:
            snapshot = offer.snapshot
            dropped: tuple[Found, ...] = ()
            if isinstance(left.workspace, FailureEvent):
                raise left.workspace
            if left.workspace is not None:
                folder = left.workspace
                put = await kept(lambda: asyncio.to_thread(run.snapshots.put_folder, folder), sleep)
                snapshot, dropped = put.digest, put.dropped
            elif snapshot is not None and not await asyncio.to_thread(run.snapshots.has, snapshot):
                raise no_workspace(snapshot, run.snapshots.where)
            answer = Answer(
                str(ULID()),
                Identity(*offer.identity),
                offer.task_digest,
                snapshot,
                left.response,
                offer.agent,
                offer.agent_settings,
                dropped=[{"path": one.path, "type": one.type, "bytes": one.bytes} for one in dropped],
                extra=left.extra,
            )
            trajectory = await asyncio.to_thread(left.trajectory.read_bytes) if left.trajectory is not None else None
            await finished(kept(lambda: run.store.keep_answer(answer, trajectory=trajectory), sleep))
    except ValueError as error:
        return Problem(offer.where, str(error))
    except FailureEvent as failure:
        return Problem(offer.where, failure.reason)
    except OSError as error:
        # This machine's disk or descriptors, while the answer was made ready: the same command takes it later.
        return Problem(offer.where, f"cannot be made ready: {error}")
    return None

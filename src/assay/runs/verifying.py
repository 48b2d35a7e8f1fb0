"""One kept answer, verified: its workspace out of the snapshots, into a sandbox, a verdict."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from assay.answers import Answer, Snapshots
from assay.failures import FailureEvent
from assay.grading import AskJudge, Captured, Verdict, failed_verdict, grade
from assay.runs.settings import GradingSettings
from assay.sandbox import Provider
from assay.tasks import Task
from assay.workspaces import scratch_folder

UNCAPTURED: Final = "_assay_uncaptured"
"""Among an answer's fields: the failure for which its workspace could not be captured."""

_PROTOCOL: Final = frozenset(
    {
        "responses_create_params",
        "response",
        "workspace",
        "task_id",
        "task_digest",
        "reward",
        "mask_sample",
        "failure_kind",
        "failure_reason",
        "verdict",
    }
)


@dataclass(frozen=True, slots=True)
class Verifier:
    """Verifies kept answers. Safe for many at once."""

    provider: Provider
    snapshots: Snapshots
    state: Path
    settings: GradingSettings

    async def verdict(self, task: Task, answer: Answer, trajectory: bytes | None) -> Verdict:
        """The verdict of one verification. A workspace that cannot be had is a failed one, which hides no other."""
        with ExitStack() as held:
            try:
                workspace = await self._workspace(answer, held)
            except FailureEvent as failure:
                # Without a verifier's digest: it says nothing of any verifier, so a graded verdict stays the current one.
                return failed_verdict(failure, None, task_id=task.id, sandbox=self.provider.name)
            file = None
            if trajectory is not None:
                file = held.enter_context(scratch_folder("trajectory")) / "trajectory.json"
                await asyncio.to_thread(file.write_bytes, trajectory)
            return await grade(
                task,
                workspace,
                answer.response,
                task_data=row_of(answer.extra),
                trajectory=file,
                sandbox=self.provider,
                rootfs=self.settings.rootfs,
                network=self.settings.network,
                timeout_s=self.settings.timeout_s,
                control=self.settings.control,
                warm=self.settings.warm,
                state=self.state,
                judge=self._judge(task),
            )

    def _judge(self, task: Task) -> AskJudge | None:
        if not task.settings.judges and not self.settings.judges:
            return None
        # Loaded where it is needed: most verifiers ask nobody, and HTTP takes longer to load than they take to run.
        from assay.client import judges_of

        return judges_of(task.settings.judges, self.settings.judges)

    async def _workspace(self, answer: Answer, held: ExitStack) -> Captured | FailureEvent | None:
        uncaptured = answer.extra.get(UNCAPTURED)
        if uncaptured is not None:
            return FailureEvent.from_record(uncaptured)
        if answer.snapshot is None:
            return None
        digest = answer.snapshot
        stop = threading.Event()
        opening = asyncio.ensure_future(
            asyncio.to_thread(lambda: held.enter_context(self.snapshots.unpacked(digest, stop=stop)))
        )
        try:
            return Captured(await asyncio.shield(opening))
        except asyncio.CancelledError:
            stop.set()
            await asyncio.wait([opening])
            if not opening.cancelled():
                # That it was stopped: asked for, or it would be logged as lost.
                opening.exception()
            raise


def row_of(extra: Mapping[str, Any]) -> dict[str, Any] | None:
    """What the row that an answer came from adds to the task's data: as the verifier server reads a request."""
    return {name: value for name, value in extra.items() if is_rows_own(name)} or None


def is_rows_own(name: str) -> bool:
    """Whether a field of a row is data of its task, rather than a part of the protocol."""
    return not name.startswith("_") and name not in _PROTOCOL

"""The seam to grading: one answer to a task in, its verdict and log out."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Protocol

from assay.client import judges_of
from assay.grading import Captured, Verdict, grade, state_dir
from assay.grading.bases import find_base
from assay.sandbox import Provider
from assay.workspaces import Unreadable, read_file

from .catalogue import Catalogue, Chosen
from .threads import scratch

LOG_MAX: Final = 256 * 1024
"""Bytes that are kept of one log: its end."""
_STDOUT: Final = "test-stdout.txt"
_READ_MAX: Final = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Graded:
    """What one verification came to."""

    verdict: Verdict
    log: bytes
    """What the verifier printed, run by run; the last `LOG_MAX` bytes."""


class Grader(Protocol):
    """Verifies one answer."""

    async def __call__(
        self, chosen: Chosen, workspace: Path | Captured | None, response: Mapping[str, Any] | str | None
    ) -> Graded:
        """The verdict; cancelling it kills what runs for it."""
        ...


@dataclass(frozen=True, slots=True)
class SandboxGrader:
    """Grades with `assay.grading.grade`. The fields are its options."""

    sandbox: Provider | str = "auto"
    rootfs: str | None = None
    network: bool = False
    timeout_s: float | None = None
    control: bool = True
    state: Path | None = None
    judges: Mapping[str, str] = field(default_factory=dict)
    """Base URLs of judges by name, in place of the dataset's own."""
    warm: bool = True

    async def require_rootfs(self, catalogue: Catalogue) -> None:
        """Raises `FailureEvent`, `assay:image_missing`, for a root filesystem that is not there: it would fail every answer."""
        if self.rootfs is not None:
            task = await catalogue.find(catalogue.ids[0])
            await asyncio.to_thread(find_base, task, self.rootfs, state_dir(self.state))

    async def __call__(
        self, chosen: Chosen, workspace: Path | Captured | None, response: Mapping[str, Any] | str | None
    ) -> Graded:
        """See `Grader`."""
        async with scratch("served") as folder:
            verdict = await grade(
                chosen.task,
                workspace,
                response,
                task_data=chosen.row,
                sandbox=self.sandbox,
                rootfs=self.rootfs,
                network=self.network,
                timeout_s=self.timeout_s,
                control=self.control,
                warm=self.warm,
                logs=folder / "logs",
                state=self.state,
                judge=judges_of(chosen.task.settings.judges, self.judges),
            )
            log = await asyncio.to_thread(_read_log, folder / "logs")
        # The folder is gone; the server hands the log out itself.
        return Graded(replace(verdict, logs={**verdict.logs, "folder": None}), log)


def _read_log(logs: Path) -> bytes:
    """What was printed, in order, each run under its own heading when there are several."""
    parts = []
    for path in sorted(logs.rglob(_STDOUT)):
        # Below `verifier/` lies what the verifier itself left.
        if "verifier" in path.relative_to(logs).parts:
            continue
        try:
            parts.append((path.parent, read_file(path.parent, _STDOUT, max_bytes=_READ_MAX)))
        except Unreadable:
            continue
    if len(parts) == 1:
        return parts[0][1][-LOG_MAX:]
    return b"".join(b"--- %s\n%s\n" % (bytes(folder.relative_to(logs)), data) for folder, data in parts)[-LOG_MAX:]

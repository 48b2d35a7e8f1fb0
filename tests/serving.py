"""A server on a real socket, and a grader whose every move is the test's."""

from __future__ import annotations

import asyncio
import io
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from ulid import ULID

from assay.failures import FailureEvent
from assay.grading import Captured, Verdict, failed_verdict
from assay.server import Chosen, Graded, Limits, Settings
from assay.server.running import Server, started
from commands import make_task

LIMITS = Limits()
LIMITS = Limits()
VERIFIER = "def verify(task_data):\n    return 1.0\n"


@dataclass
class ScriptedGrader:
    """Stands in for sandboxes: counts what it is given by the row's `answer`, and does with it what `script` says."""

    script: Callable[[Chosen, Path | None], Any] = lambda chosen, workspace: 1.0
    """A reward, a `FailureEvent`, or an awaitable of one of them."""
    visits: Counter[str] = field(default_factory=Counter)
    cancelled: Counter[str] = field(default_factory=Counter)
    at_once: int = 0
    most_at_once: int = 0

    async def __call__(
        self, chosen: Chosen, workspace: Path | Captured | None, response: Mapping[str, Any] | str | None
    ) -> Graded:
        name = str(chosen.row.get("answer", ""))
        self.visits[name] += 1
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            outcome = self.script(chosen, workspace.folder if isinstance(workspace, Captured) else workspace)
            if asyncio.iscoroutine(outcome) or isinstance(outcome, asyncio.Future):
                outcome = await outcome
        except asyncio.CancelledError:
            self.cancelled[name] += 1
            raise
        finally:
            self.at_once -= 1
        return Graded(verdict_of(chosen, outcome), b"log of " + name.encode())


def verdict_of(chosen: Chosen, outcome: float | FailureEvent) -> Verdict:
    if isinstance(outcome, FailureEvent):
        return failed_verdict(outcome, chosen.task)
    return Verdict(
        str(ULID()),
        chosen.task.id,
        chosen.digest,
        chosen.verifier_digest,
        "host",
        "graded",
        float(outcome),
        proven=True,
    )


def make_dataset(folder: Path, mode: str = "stateless", tasks: tuple[str, ...] = ("one",)) -> Path:
    """A dataset of tasks with a verifier that gives everybody 1."""
    for name in tasks:
        task = make_task(folder / name, VERIFIER, f'[assay]\nreverify_mode = "{mode}"\n')
        (task / "task_data.json").write_text(json.dumps({"expected": 3}))
    return folder


@dataclass
class Served:
    server: Server
    session: aiohttp.ClientSession
    grader: ScriptedGrader

    async def verify(self, key: str | None = None, *, headers: Mapping[str, str] = {}, **fields: Any) -> Reply:
        with_key = {"Idempotency-Key": key, **headers} if key is not None else dict(headers)
        body = json.dumps(fields).encode()
        # aiohttp would rather not be given much at once.
        return await self.ask("POST", "/verify", data=body if len(body) < 2**20 else io.BytesIO(body), headers=with_key)

    async def ask(self, method: str, path: str, **options: Any) -> Reply:
        async with self.session.request(method, self.server.url + path, **options) as reply:
            return Reply(reply.status, reply.headers, await reply.read())


@dataclass
class Reply:
    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


async def until(true: Callable[[], bool]) -> None:
    """Let the event loop run until something has happened."""
    async with asyncio.timeout(30):
        while not true():
            await asyncio.sleep(0)


@asynccontextmanager
async def served(
    dataset: Path, grader: ScriptedGrader | None = None, *, limits: Limits = LIMITS, state: Path, **settings: Any
) -> AsyncIterator[Served]:
    """A server for a dataset, in this process, and a client for it."""
    grader = grader or ScriptedGrader()
    chosen = {"concurrency": 4, **settings}
    async with (
        started(Settings(dataset, port=0, grader=grader, limits=limits, state=state, **chosen)) as server,
        aiohttp.ClientSession() as session,
    ):
        yield Served(server, session, grader)

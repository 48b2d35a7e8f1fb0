"""The engine of every command that works on a run: identities are taken up, at most so many at once, until none is left.

For each: the agent works, unless an answer is kept; the answer is kept; it is verified; the verdict is kept. Nothing is told
before it is on disk. What goes wrong with one identity is that identity's own affair.
"""

from __future__ import annotations

import asyncio
import contextlib
import traceback
from asyncio import ALL_COMPLETED, FIRST_COMPLETED
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

from ulid import ULID

from assay.answers import (
    BUDGET,
    LEASE_S,
    Answer,
    Choice,
    Claim,
    Identity,
    Need,
    attempts_at,
    find_answer,
    find_trajectory,
    verdicts_of,
)
from assay.failures import FailureEvent, event_for
from assay.failures.kinds import SESSION_LOST
from assay.grading import Verdict, lost_verdict
from assay.grading.evidence import EvidenceStore
from assay.runs.catalogue import Catalogue
from assay.runs.keeping import CannotKeep, Sleep, finished, kept
from assay.runs.left import Agent, Left
from assay.runs.performing import UNCAPTURED as UNCAPTURED_KINDS
from assay.runs.performing import instruction_of
from assay.runs.place import OpenRun
from assay.runs.tally import Happened, Tally, Watch, unwatched
from assay.runs.verifying import UNCAPTURED, Verifier
from assay.tasks import Task

T = TypeVar("T")

_AHEAD: Final = 256
"""Identities that are taken up before there is room for them, where nobody else could have them: looking for what is left to do
costs more the more is done."""
_RENEWALS: Final = 4
"""How often leases are renewed in the time that they last."""


@dataclass(frozen=True, slots=True)
class Order:
    """What a command is for."""

    name: str
    needs: Collection[Need]
    choice: Choice = field(default_factory=Choice)
    budget: int = BUDGET
    session_lost: bool = False
    """Whether answers whose session was lost are verified again, though their verifier may not be stateless."""
    settings: dict[str, Any] = field(default_factory=dict)
    """What tells this command from another of its name."""
    join: bool = False
    """Whether it goes on with the same command that was killed."""
    changed_tasks: bool = False
    """Whether answers to another version of their task are graded, too."""


@dataclass(frozen=True, slots=True)
class Means:
    """What a command works with."""

    run: OpenRun
    catalogue: Catalogue
    verifier: Verifier
    agent: Agent | None
    """None: this command runs none."""
    concurrency: int
    watch: Watch = unwatched
    sleep: Sleep = asyncio.sleep


class Conductor:
    """One command at work. `conduct` once."""

    def __init__(self, order: Order, means: Means) -> None:
        self._order, self._means = order, means
        self._store = means.run.store
        self._command = ""
        self.tally = Tally()

    async def conduct(self) -> tuple[str, Tally]:
        """Work until nothing is left; the command's id and what it did.

        Cancelling it kills what runs in sandboxes and finishes what is being written; the run then goes on with the next
        command. A store or place of workspaces that keeps failing ends it early: `Tally.stopped` says why.
        """
        order, store = self._order, self._store
        try:
            self._command = await self._write(lambda: store.begin_command(order.name, order.settings, join=order.join))
            await self._take_over()
            if Need.VERDICT in order.needs:
                await self._learn()
            self.tally.todo = self.tally.done + await asyncio.to_thread(
                lambda: store.waiting_now(
                    order.needs,
                    command_id=self._command,
                    choice=order.choice,
                    budget=order.budget,
                    session_lost=order.session_lost,
                )
            )
            await self._work()
            await finished(self._write(lambda: store.end_command(self._command)))
        except* CannotKeep as group:
            self.tally.stopped = str(_first(group))
        except* FailureEvent as group:
            # Of the store itself: what an identity meets is kept with it.
            self.tally.stopped = str(_first(group))
        return self._command, self.tally

    async def _work(self) -> None:
        order, most = self._order, self._means.concurrency
        shared = self._store.database.shared
        # Where machines share a run, what waits behind an agent that takes hours is better left to another one.
        ahead = _AHEAD if not shared else 0 if Need.ANSWER in order.needs else most
        enough = most + ahead // 2 if ahead else most - 1
        slots = asyncio.Semaphore(most)
        running: set[asyncio.Task[None]] = set()
        async with asyncio.TaskGroup() as group:
            renewing = group.create_task(self._renew())
            while True:
                claims = await self._claim(most + ahead - len(running))
                for claim in claims:
                    task = group.create_task(self._guarded(claim, slots))
                    running.add(task)
                    task.add_done_callback(running.discard)
                if not running:
                    break
                if not claims:
                    # Only another machine can leave something to take.
                    await asyncio.wait(running, return_when=FIRST_COMPLETED if shared else ALL_COMPLETED)
                while len(running) > enough:
                    await asyncio.wait(running, return_when=FIRST_COMPLETED)
            renewing.cancel()

    async def _claim(self, most: int) -> list[Claim]:
        order = self._order
        return await self._write(
            lambda: self._store.claim(
                order.needs,
                most,
                command_id=self._command,
                choice=order.choice,
                budget=order.budget,
                session_lost=order.session_lost,
            )
        )

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(LEASE_S / _RENEWALS)
            # A store that fails is told of by whoever has something to keep.
            with contextlib.suppress(FailureEvent):
                await self._store.renew()

    async def _take_over(self) -> None:
        """End what killed processes left open. What must not be made twice is lost, and said to be."""
        for attempt in await self._write(self._store.take_over_interrupted):
            if attempt.repeatable or attempt.answer_id is None:
                continue
            failure = FailureEvent(
                SESSION_LOST,
                "the process that verified this answer died, and its verifier is not stateless: nobody knows what it did; "
                "`assay recover --session-lost` verifies the answer again all the same",
                boundary="collection",
            )
            verdict = lost_verdict(failure, attempt.identity.task_id)
            await self._keep_lost(attempt.identity, attempt.answer_id, verdict)

    async def _learn(self) -> None:
        """Settle what waited for evidence that came since: of `assay check`, of another run, of controls that ran again."""
        known_here = EvidenceStore(self._means.verifier.state)
        for waiting in await asyncio.to_thread(self._store.wanted_now):
            known = await asyncio.to_thread(known_here.known, waiting.key)
            if known.proven_by is None:
                continue
            # What verdicts told of the floor stands: it may be the declared one.
            floor = waiting.floor if waiting.floor is not None else known.floor
            await self._write(
                lambda waiting=waiting, known=known, floor=floor: self._store.learn(  # type: ignore[misc]  # (the loop's own values)
                    waiting.key,
                    task_id=waiting.task_id,
                    verifier_digest=waiting.verifier_digest,
                    proven_by=known.proven_by,
                    floor=floor,
                )
            )

    async def _keep_lost(self, one: Identity, answer_id: str, verdict: Verdict) -> None:
        await self._write(lambda: self._store.keep_verdict(answer_id, verdict, command_id=self._command))
        if not self._order.session_lost:
            # Else this very command verifies it again, and tells what came of that.
            self._tell_masked(one, verdict)

    async def _guarded(self, claim: Claim, slots: asyncio.Semaphore) -> None:
        async with slots:
            try:
                await self._one(claim)
            except (CannotKeep, asyncio.CancelledError):
                raise
            except Exception:
                # Ours, and told at the end; the identity stays held, so that this command does not meet it again.
                self.tally.open.add(claim.identity)
                self.tally.bugs.append(traceback.format_exc())

    async def _one(self, claim: Claim) -> None:
        one = claim.identity
        if claim.answer_id is None:
            answer = await self._collect(one)
            if answer is None:
                return
        else:
            found = await asyncio.to_thread(find_answer, self._store.database, claim.answer_id)
            assert found is not None  # noqa: S101 - answers are never removed
            answer = found
        try:
            task = self._means.catalogue.find(one.task_id)
            digest, *_ = await asyncio.to_thread(lambda: (task.digest, task.verifier_digest, task.solution_digest))
        except (FailureEvent, OSError) as error:
            self._skip(one, "the task cannot be read", str(error))
            return
        if answer.task_digest not in (None, digest) and not self._order.changed_tasks:
            self._skip(one, "the task is another one now", f"{one.task_id}: its instruction or environment changed")
            return
        if not self._may_verify(task, claim):
            self._skip(
                one,
                "its verifier is not stateless",
                f'{one.task_id}: state [assay] reverify_mode = "stateless" in its task.toml if grading twice does no harm',
            )
            return
        await self._verify(task, answer)

    def _may_verify(self, task: Task, claim: Claim) -> bool:
        """A verifier that is not stateless is never run twice on one answer, unless somebody asks for just that."""
        if self._is_stateless(task) or claim.answer_id is None or self._order.session_lost:
            return True
        database = self._store.database
        return not any(_has_run(verdict.body) for verdict in verdicts_of(database, claim.answer_id)) and not any(
            attempt.begun_for_good for attempt in attempts_at(database, claim.identity)
        )

    def _is_stateless(self, task: Task) -> bool:
        return task.reverify_mode == "stateless" and not self._means.verifier.settings.network

    async def _collect(self, one: Identity) -> Answer | None:
        """The agent's work, kept. None when there is no answer, or somebody else has kept one."""
        assert self._means.agent is not None  # noqa: S101 - only such a command claims what has no answer
        attempt = await self._write(lambda: self._store.begin_attempt(one, stage="agent", command_id=self._command))
        try:
            task = self._means.catalogue.find(one.task_id)
            await asyncio.to_thread(lambda: task.digest)
            async with self._means.agent.working(task, one) as left:
                return await finished(self._keep(task, one, left, attempt))
        except FailureEvent as failure:
            await self._agent_failed(one, attempt, failure)
        except OSError as error:
            # This machine's disk or descriptors, while the work was prepared.
            await self._agent_failed(one, attempt, event_for(error, kind="provider_unavailable", stage="agent"))
        return None

    async def _agent_failed(self, one: Identity, attempt: str, failure: FailureEvent) -> None:
        failure.stage = "agent" if failure.stage == "verification" else failure.stage
        await finished(self._write(lambda: self._store.fail_agent(attempt, failure)))
        self._tell("agent_failed", one, kind=failure.kind, reason=failure.reason)

    async def _keep(self, task: Task, one: Identity, left: Left, attempt: str) -> Answer | None:
        workspace, snapshot = left.workspace, None
        dropped: tuple[dict[str, Any], ...] = ()
        if workspace is not None and not isinstance(workspace, FailureEvent):
            folder = workspace
            try:
                snapshot = await self._write(lambda: asyncio.to_thread(self._means.run.snapshots.put_folder, folder))
            except FailureEvent as failure:
                if failure.kind not in UNCAPTURED_KINDS:
                    raise
                workspace = failure
            else:
                dropped = tuple({"path": f.path, "type": f.type, "bytes": f.bytes} for f in snapshot.dropped)
        extra = dict(left.extra)
        if isinstance(workspace, FailureEvent):
            extra[UNCAPTURED] = workspace.to_record()
        instruction = instruction_of(task).decode("utf-8", "replace")
        extra.setdefault("responses_create_params", {"input": [{"role": "user", "content": instruction}]})
        agent = self._means.run.settings.agent
        answer = Answer(
            str(ULID()),
            one,
            task.digest,
            snapshot.digest if snapshot is not None else None,
            left.response,
            agent.name,
            agent.shown(),
            dropped=dropped,
            extra=extra,
        )
        trajectory = await asyncio.to_thread(left.trajectory.read_bytes) if left.trajectory is not None else None
        kept_id = await self._write(lambda: self._store.keep_answer(answer, trajectory=trajectory, attempt_id=attempt))
        if kept_id != answer.id:
            self._skip(one, "another machine has answered it", "its lease had ended here")
            return None
        self._tell("answered", one, answer_id=answer.id)
        return answer

    async def _verify(self, task: Task, answer: Answer) -> None:
        one = answer.identity
        stateless = self._is_stateless(task)
        attempt = await self._write(
            lambda: self._store.begin_attempt(
                one, stage="verification", command_id=self._command, answer_id=answer.id, repeatable=stateless
            )
        )
        trajectory = await asyncio.to_thread(find_trajectory, self._store.database, answer.id)
        verdict = replace(await self._means.verifier.verdict(task, answer, trajectory), answer_id=answer.id)
        await finished(self._keep_verdict(answer, verdict, attempt, stateless=stateless))

    async def _keep_verdict(self, answer: Answer, verdict: Verdict, attempt: str, *, stateless: bool) -> None:
        # What ran once and must not run twice cannot be settled by verifying the saved answer again.
        terminal = not verdict.graded and not stateless and verdict.ended is not None
        result = await self._write(
            lambda: self._store.keep_verdict(
                answer.id, verdict, attempt_id=attempt, command_id=self._command, terminal=terminal
            )
        )
        one = answer.identity
        if result is None:
            self._skip(one, "another machine has graded it", "its lease had ended here")
        elif verdict.graded:
            self._tell("graded", one, reward=verdict.reward, verdict_id=verdict.verdict_id)
        else:
            self._tell_masked(one, verdict)
        if result is not None:
            self.tally.open.difference_update(result.settled)

    async def _write(self, write: Callable[[], Awaitable[T]]) -> T:
        return await kept(write, self._means.sleep)

    def _tell_masked(self, one: Identity, verdict: Verdict) -> None:
        failure = verdict.failure or {}
        self._tell("masked", one, kind=failure["kind"], reason=failure["reason"], verdict_id=verdict.verdict_id)

    def _skip(self, one: Identity, why: str, reason: str) -> None:
        self._tell("skipped", one, kind=why, reason=reason)

    def _tell(self, what: str, one: Identity, **about: Any) -> None:
        happened = Happened(what, one, about)
        self.tally.note(happened)
        self._means.watch(self.tally, happened)


def _has_run(verdict: Mapping[str, Any]) -> bool:
    """Whether a verifier ran for a verdict, or may have: of a lost session nobody knows."""
    return verdict.get("ended") is not None or (verdict.get("failure") or {}).get("kind") == SESSION_LOST


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error

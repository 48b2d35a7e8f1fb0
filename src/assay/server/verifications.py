"""Verifications on their way: each key is run once, whoever asks how often."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from assay.failures import FailureEvent, event_for
from assay.failures.kinds import PERSISTENCE_FAILED, PROVIDER_UNAVAILABLE, SESSION_LOST
from assay.grading import CausedBy, Verdict, failed_verdict, lost_verdict

from .admission import Admission, Deadline
from .catalogue import Catalogue, Chosen
from .grader import Graded, Grader
from .keys import Kept, Key, KeyStore
from .metrics import Metrics
from .refusal import NotAdmitted, malformed
from .request import VerifyRequest
from .uploads import Uploads


@dataclass(frozen=True, slots=True)
class Outcome:
    """The verdict for a request."""

    verdict: str
    """Its JSON text."""
    read: str
    """What a trainer reads of it, as the members of a JSON object: `reward`, `mask_sample`, `failure_kind`, `failure_reason`."""
    report: Mapping[str, Any] | None = None
    """The failure, as a report for the reply's header."""
    replayed: bool = False
    """Whether it was kept from an earlier request with the same key."""


@dataclass(slots=True, eq=False)
class Running:
    """One piece of work, and the task that does it."""

    body_digest: str
    deadline: Deadline
    task: asyncio.Task[Outcome]
    keyed: bool
    """Work under a key goes on when nobody waits any more."""


class Verifications:
    """Begins work, lets requests join it, and keeps what it came to before anybody is told."""

    def __init__(
        self,
        catalogue: Catalogue,
        grader: Grader,
        keys: KeyStore,
        uploads: Uploads,
        admission: Admission,
        metrics: Metrics,
    ) -> None:
        """All of them are shared with the server's other routes."""
        self.catalogue = catalogue
        self.keys = keys
        self.uploads = uploads
        self.admission = admission
        self._grader = grader
        self._metrics = metrics
        self._by_key: dict[tuple[str, str], Running] = {}
        self._all: set[asyncio.Task[Outcome]] = set()
        self._begun: set[asyncio.Task[Outcome]] = set()

    @property
    def under_way(self) -> frozenset[asyncio.Task[Outcome]]:
        """The work that is not done."""
        return frozenset(self._all)

    @property
    def waiting(self) -> frozenset[asyncio.Task[Outcome]]:
        """The work for which nothing was run yet."""
        return frozenset(self._all - self._begun)

    def begin(self, request: VerifyRequest, client: str, key: str | None, deadline_s: float | None) -> Running:
        """The work for a request: new, or under way already under the same key.

        Raises `Refused` (422) for a key that stands for another request.
        """
        at = self.admission.clock() + deadline_s if deadline_s is not None else math.inf
        if key is None:
            return self._start(self._verify(request, client, deadline := Deadline(at)), request, deadline, keyed=False)
        there = self._by_key.get((client, key))
        if there is not None:
            if there.body_digest != request.body_digest:
                raise _other_request()
            there.deadline.extend(at)
            return there
        deadline = Deadline(at)
        running = self._start(self._keyed(request, client, key, deadline), request, deadline, keyed=True)
        self._by_key[client, key] = running
        running.task.add_done_callback(lambda _: self._by_key.pop((client, key), None))
        return running

    def _start(
        self, work: Coroutine[Any, Any, Outcome], request: VerifyRequest, deadline: Deadline, *, keyed: bool
    ) -> Running:
        task = asyncio.create_task(work)
        self._all.add(task)
        task.add_done_callback(self._ended)
        return Running(request.body_digest, deadline, task, keyed)

    def _ended(self, task: asyncio.Task[Outcome]) -> None:
        self._all.discard(task)
        self._begun.discard(task)
        if not task.cancelled():
            # Whoever waited has it; when nobody did, it is no news.
            task.exception()

    async def _keyed(self, request: VerifyRequest, client: str, key: str, deadline: Deadline) -> Outcome:
        try:
            kept = await self.keys.find(client, key)
        except FailureEvent as failure:
            raise _not_looked_up(failure) from failure
        if kept is None:
            return await self._verify(request, client, deadline, key)
        if kept.body != request.body_digest:
            raise _other_request()
        if kept.verdict is not None:
            self._metrics.replayed()
            return replace(_outcome(json.loads(kept.verdict), kept.verdict), replayed=True)
        return await self._lost(kept, client, key)

    async def _lost(self, kept: Kept, client: str, key: str) -> Outcome:
        """A run that is not to be repeated came to nothing: its verdict is that there is none."""
        failure = FailureEvent(
            SESSION_LOST,
            "a run that verified this answer began and ended without a verdict that was kept (the server stopped, or failed; "
            "its log may have more), and this verifier is not one that may be run again",
            boundary="resources_server",
            operation="verify",
            operation_id=key,
        )
        verdict = lost_verdict(
            failure, kept.task_id, task_digest=kept.task_digest, verifier_digest=kept.verifier_digest
        )
        known = Key(client, key, kept.body, kept.task_id, kept.task_digest, kept.verifier_digest)
        try:
            return await self._keep(verdict, b"", known)
        except FailureEvent as error:
            raise _not_looked_up(error) from error

    async def _verify(self, request: VerifyRequest, client: str, deadline: Deadline, key: str | None = None) -> Outcome:
        chosen = await self.catalogue.choose(request)
        await self.uploads.refuse_unknown(request.workspace)
        known = (
            Key(client, key, request.body_digest, chosen.task.id, chosen.digest, chosen.verifier_digest)
            if key is not None
            else None
        )
        began = self.admission.clock()
        async with self.admission.room(client, deadline):
            queued_s = self.admission.clock() - began
            self._begun.add(_this_task())
            async with self.uploads.workspace(request.workspace) as folder:
                await self._announce(known, chosen)
                try:
                    graded = await self._grader(chosen, folder, request.response)
                except (FailureEvent, OSError) as error:
                    # A full disk, no more descriptors: this machine's, and as good a verdict of the key's as any.
                    failure = event_for(error, kind=PROVIDER_UNAVAILABLE, operation="verify")
                    graded = Graded(failed_verdict(failure, chosen.task), b"")
        verdict = graded.verdict
        self._metrics.verified(verdict, self.admission.clock() - began)
        try:
            return await self._keep(verdict, graded.log, known, queued_s)
        except FailureEvent as failure:
            # Nobody is told a verdict that may be forgotten.
            return _spoken(_not_kept(chosen, verdict, failure))

    async def _announce(self, known: Key | None, chosen: Chosen) -> None:
        """Keep that a run begins that may not be repeated, before anything of it exists."""
        if known is None or chosen.stateless:
            return
        try:
            await self.keys.start(known)
        except FailureEvent as failure:
            raise NotAdmitted(
                f"what happens cannot be kept ({failure.reason}); nothing ran", retry_after_s=10
            ) from failure

    async def _keep(self, verdict: Verdict, log: bytes, known: Key | None, queued_s: float = 0.0) -> Outcome:
        outcome = _spoken(verdict, queued_s)
        await self.keys.finish(known, verdict.verdict_id, outcome.verdict, log)
        return outcome


_json: Final = json.JSONEncoder(allow_nan=False).encode


def reply_of(request: VerifyRequest, outcome: Outcome) -> bytes:
    """The body of the reply: the request's fields, what a trainer reads, and the whole verdict."""
    echo = request.echo[:-1] + "," if len(request.echo) > 2 else "{"
    return f'{echo}{outcome.read},"verdict":{outcome.verdict}}}'.encode("ascii")


def _spoken(verdict: Verdict, queued_s: float = 0.0) -> Outcome:
    record = verdict.to_dict()
    record["timing"]["queue_s"] = round(queued_s, 6)
    return _outcome(record, _json(record))


def _outcome(record: Mapping[str, Any], verdict: str) -> Outcome:
    graded, failure = record["status"] == "graded", record["failure"]
    read = {
        "reward": record["reward"] if graded else 0.0,
        "mask_sample": not graded,
        "failure_kind": None if graded else failure["kind"],
        "failure_reason": None if graded else failure["reason"],
    }
    report = {"failure_id": failure["event_id"], "events": [failure]} if failure is not None else None
    return Outcome(verdict, _json(read)[1:-1], report)


def _not_kept(chosen: Chosen, verdict: Verdict, failure: FailureEvent) -> Verdict:
    event = FailureEvent(
        PERSISTENCE_FAILED,
        f"the verdict could not be kept, so it is not given: {failure.reason}",
        boundary="resources_server",
        operation="verify",
    )
    return replace(
        failed_verdict(event, chosen.task),
        sandbox=verdict.sandbox,
        timing=verdict.timing,
        caused_by=CausedBy.INFRASTRUCTURE,
    )


def _not_looked_up(failure: FailureEvent) -> NotAdmitted:
    return NotAdmitted(f"what is kept cannot be reached ({failure.reason}); nothing ran", retry_after_s=10)


def _this_task() -> asyncio.Task[Outcome]:
    task = asyncio.current_task()
    assert task is not None  # noqa: S101 - only ever called in one
    return task


def _other_request() -> Exception:
    return malformed("Idempotency-Key", "was used for another request; use a new key for each")

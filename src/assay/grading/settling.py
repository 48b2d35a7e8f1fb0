"""One answer on its way to a verdict: look, ask for the evidence that `decide` wants, decide, write it down."""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from ulid import ULID

from assay.failures import FailureEvent
from assay.workspaces import Found

from .controls import run_controls
from .decide import Ask, Controls, Evidence, Settled, decide, floor_is_known, floor_of
from .evidence import EvidenceStore, Known, evidence_key, may_ask, tells, with_controls
from .gathering import missing_artifacts
from .job import Answer, Job
from .observation import Observation, Standing, not_graded
from .rewards import Reward
from .verdict import RULE, Verdict
from .verification import verify_once

Progress = Callable[[str], None]
"""Told, in a few words, what is being done."""

_MOST_DROPPED = 50


class Verification:
    """One answer on its way to a verdict: fetches the evidence that `decide` asks for."""

    def __init__(self, job: Job, control: bool, logs: Path | None, store: EvidenceStore, tell: Progress) -> None:
        self._job, self._store, self._tell, self._logs = job, store, tell, logs
        self._verdict_id = str(ULID())
        self._attempts = 0
        # Without what the agent was given there is nothing to run for evidence.
        control = control and job.agent_base is not None
        self._allowed = control
        task, terms = job.task, job.terms
        low, _ = task.settings.reward_range or (None, None)
        self._stateless = task.reverify_mode == "stateless" and not job.network
        profile = repr(
            (
                job.provider.name,
                job.network,
                job.limit_s,
                terms.limits,
                sorted(job.task_data.items()),
                job.step,
                job.shared,
                job.agent_base.digest if job.agent_base is not None else None,
            )
        )
        self._key = evidence_key(task.digest, task.verifier_digest, job.base.digest, profile + task.solution_digest)
        known = store.known(self._key)
        self._evidence = Evidence(
            stateless=self._stateless,
            allowed=control,
            proven_before=known.proven_by is not None,
            range_low=low,
            untouched_asked=known.untouched_asked,
            untouched_before=known.untouched,
        )

    async def look(self, answer: Answer) -> Observation:
        """Run the verifier once on the answer."""
        self._attempts += 1
        self._tell("running the verifier" if self._attempts == 1 else f"running the verifier again ({self._attempts})")
        logs = self._logs / f"attempt-{self._attempts}" if self._logs is not None else None
        return await verify_once(self._job, answer, logs)

    async def settle(self, first: Observation, answer: Answer | None) -> Settled:
        """Ask `decide` until it decides. `answer` is None when there is nothing to run the verifier on."""
        while True:
            decision = decide(first, self._evidence)
            if isinstance(decision, Settled):
                self._learn(decision)
                return decision
            if decision is Ask.CONTROLS:
                await self._ask_controls()
                continue
            assert answer is not None  # noqa: S101 - what never started is neither repeated nor tried again
            look = await self.look(answer)
            if decision is Ask.REPEAT:
                self._evidence = replace(self._evidence, repeat=look, tries=1)
            elif self._evidence.repeat is not None:
                self._evidence = replace(self._evidence, repeat=look, tries=self._evidence.tries + 1)
            else:
                first = look
                self._evidence = replace(self._evidence, tries=self._evidence.tries + 1)

    async def _ask_controls(self) -> None:
        async with _lock_of(self._key):
            known = self._store.known(self._key)
            if (known.proven_by is not None and known.untouched_asked) or not may_ask(known):
                self._recall(known)
                return
            self._tell("grading the untouched environment and the task's own solution, for evidence")
            controls = await run_controls(self._job)
            if tells(controls):
                self._store.update(self._key, lambda now: with_controls(now, controls, self._evidence.range_low))
        self._evidence = replace(self._evidence, controls=controls)

    def _recall(self, known: Known) -> None:
        """Controls that were run before stand for controls now."""
        solution: Observation | None = None
        if known.solution_failed:
            failure = FailureEvent("verifier_error", "the task's own solution was not graded when it was last tried")
            solution = not_graded(Standing.AMBIGUOUS, failure)
        reward = Reward(known.untouched) if known.untouched is not None else None
        untouched = (
            Observation(Standing.GRADED, reward=reward)
            if reward is not None
            else not_graded(
                Standing.AMBIGUOUS, FailureEvent("verifier_error", "the untouched environment is not graded")
            )
        )
        self._evidence = replace(
            self._evidence, controls=Controls(untouched, solution), proven_before=known.proven_by is not None
        )

    def _learn(self, settled: Settled) -> None:
        """An answer above the floor proves the verifier for the answers that come after it."""
        above = settled.reward is not None and settled.failure is None and settled.proven
        if above and not self._evidence.proven_before and self._store.known(self._key).proven_by is None:
            self._store.update(self._key, lambda known: replace(known, proven_by=known.proven_by or self._verdict_id))

    def verdict(self, settled: Settled, dropped: Sequence[Found], began: float, base: str) -> Verdict:
        """The verdict for a decision; `base` is what the verifier ran on, for showing."""
        job, run = self._job, settled.deciding.run
        trust = "none" if not job.provider.isolated else "shared" if job.shared else "separate"
        folder = str(self._logs / f"attempt-{self._attempts}") if self._logs is not None and self._attempts else None
        verdict = Verdict(
            verdict_id=self._verdict_id,
            task_id=job.task.id,
            task_digest=job.task.digest,
            verifier_digest=job.task.verifier_digest,
            base=base,
            status="graded" if settled.reward is not None else "failed",
            reward=settled.reward.value if settled.reward is not None else None,
            metrics=dict(settled.reward.metrics) if settled.reward is not None else {},
            unmet=(*job.terms.unmet, *(f"artifacts ({path})" for path in missing_artifacts(job))),
            dropped_files=tuple(asdict(found) for found in dropped[:_MOST_DROPPED]),
            rule=RULE if self._allowed else f"{RULE}:no-control",
            provisional=settled.provisional,
            evidence={
                "key": self._key,
                "floor": floor_of(self._evidence) if floor_is_known(self._evidence) else None,
            },
            proven=settled.proven,
            flaky=settled.flaky,
            caused_by=settled.caused_by,
            failure=settled.failure.to_record() if settled.failure is not None else None,
            trust=trust,
            sandbox=job.provider.name,
            timing=replace(settled.deciding.timing, total_s=time.monotonic() - began),
            logs={"folder": folder, "truncated": run.truncated if run is not None else False},
        )
        if run is None:
            return verdict
        return replace(
            verdict,
            checks=run.checks,
            ended=run.ended,
            limits_hit=run.limits_hit,
            discarded_reward=run.discarded_reward,
            usage=run.usage,
            unmet=tuple(dict.fromkeys((*verdict.unmet, *run.unmet))),
            log_tail=run.log_tail,
            found=run.found,
        )


_locks: weakref.WeakValueDictionary[tuple[int, str], asyncio.Lock] = weakref.WeakValueDictionary()


def _lock_of(key: str) -> asyncio.Lock:
    """One lock for each kind of evidence and event loop, so that many answers at once ask for it once."""
    return _locks.setdefault((id(asyncio.get_running_loop()), key), asyncio.Lock())

"""Answers and verdicts as tests need them, and runs that hold some."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, insert
from ulid import ULID

from assay.answers import Answer, Identity, Kept, Need, Store, schema
from assay.failures import FailureEvent


def new_answer(task: str = "t", rollout: int = 0, **fields: Any) -> Answer:
    values = {"task_digest": "sha256:task", "snapshot": None, "response": {"output": "x"}, "agent": "command"}
    return Answer(str(ULID()), Identity(task, rollout), **{**values, **fields})


def graded(reward: float = 1.0, verifier: str = "v1", *, proven: bool = True, **fields: Any) -> dict[str, Any]:
    """A verdict object, with what a store looks at."""
    values = {
        "verdict_id": str(ULID()),
        "task_id": "t",
        "status": "graded",
        "reward": reward,
        "verifier_digest": verifier,
        "metrics": {},
        "caused_by": None,
        "failure": None,
        "proven": proven,
        "provisional": False,
        "flaky": False,
        "evidence": None,
    }
    return {**values, **fields}


def failed(
    kind: str = "provider_unavailable",
    verifier: str | None = "v1",
    *,
    caused_by: str | None = "infrastructure",
    **fields: Any,
) -> dict[str, Any]:
    failure = FailureEvent(kind, "for a test").to_record()
    values = {"status": "failed", "reward": None, "failure": failure, "caused_by": caused_by, "proven": False}
    return graded(**{"verifier": verifier, **values, **fields})


def provisional(key: str, floor: float | None = 0.0, **fields: Any) -> dict[str, Any]:
    """Failed for want of evidence."""
    evidence = {"key": key, "floor": floor}
    return failed("assay:missing_reward", caused_by="unknown", provisional=True, evidence=evidence, **fields)


async def answered(store: Store, task: str = "t", rollout: int = 0, **fields: Any) -> str:
    """The id of a new answer, kept without an attempt."""
    return await store.keep_answer(new_answer(task, rollout, **fields))


async def grade(
    store: Store, answer_id: str, verdict: Mapping[str, Any], command_id: str, needs: set[Need] | None = None
) -> Kept | None:
    """Claim one answer, attempt it, keep the verdict: as a command does it."""
    every = needs or {Need.VERDICT, Need.RECOVERY, Need.REGRADE}
    claims = [
        one for one in await store.claim(every, 100, command_id=command_id, budget=99) if one.answer_id == answer_id
    ]
    for one in claims:
        attempt = await store.begin_attempt(
            one.identity, stage="verification", command_id=command_id, answer_id=answer_id
        )
        kept = await store.keep_verdict(answer_id, verdict, attempt_id=attempt, command_id=command_id)
        await store.release()
        return kept
    await store.release()
    raise LookupError(f"{answer_id} is not to be had")


def fill(store: Store, count: int, response: str = '{"output": "some text of an agent"}') -> None:
    """Many graded answers at once, past what commands do: for tests of what many rows cost."""
    body = '{"verdict_id": "%s", "task_id": "%s", "status": "graded", "reward": 0.5, "metrics": {"a": 1.0}}'

    def work(connection: Connection, numbers: range) -> None:
        answers, verdicts, identities, metrics = [], [], [], []
        for n in numbers:
            task, rollout, reward = f"task-{n // 4:06}", n % 4, (n % 5) / 4
            answers.append(
                {
                    "id": f"A{n:08}", "task_id": task, "rollout": rollout, "task_digest": "sha256:t", "snapshot": None,
                    "agent": "command", "created_at": float(n), "agent_settings": "{}", "dropped": "[]", "extra": "{}",
                    "response": response,
                }
            )  # fmt: skip
            flags = {"proven": 1, "provisional": 0, "flaky": 0, "recoverable": 0, "terminal": 0}
            common = {"answer_id": f"A{n:08}", "status": "graded", "reward": reward, "verifier_digest": "v1", **flags}
            verdicts.append({"id": f"V{n:08}", "created_at": float(n), "body": body % (f"V{n:08}", task), **common})
            identities.append(
                {"task_id": task, "rollout": rollout, "position": n, "verdict_seq": n + 1, "tries": 0, **common}
            )
            metrics.append({"verdict_seq": n + 1, "name": f"m{n % 3}", "value": reward})
        for table, rows in (
            (schema.answer, answers),
            (schema.verdict, verdicts),
            (schema.identity, identities),
            (schema.metric, metrics),
        ):
            connection.execute(insert(table), rows)

    for begin in range(0, count, 5000):
        store.database.write_now(lambda c, begin=begin: work(c, range(begin, min(begin + 5000, count))))

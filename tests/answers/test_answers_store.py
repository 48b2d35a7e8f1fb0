"""The store of a run, the same in both kinds of database."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from making import answered, failed, grade, graded, new_answer, provisional
from sqlalchemy import Connection, inspect, select, text

from assay.answers import (
    BUDGET,
    Answer,
    Choice,
    Claim,
    Database,
    Identity,
    Need,
    Store,
    StoreHeld,
    StoreUnusable,
    attempts_at,
    changes,
    choice_of,
    exported,
    find_answer,
    find_trajectory,
    identities,
    open_store,
    outcomes,
    schema,
    totals,
    verdicts_of,
)
from assay.answers.claims import claim
from assay.failures import FailureEvent
from assay.grading import WrongArgument
from places import Where

ALL = {Need.ANSWER, Need.VERDICT, Need.RECOVERY}


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(where: Where, clock: Clock) -> Iterator[Store]:
    with open_store(where.place, namespace=where.namespace, clock=clock) as opened:
        yield opened


def reopened(where: Where, clock: Clock) -> Store:
    return open_store(where.place, namespace=where.namespace, clock=clock)


def states(store: Store) -> dict[str, str]:
    return {f"{one.identity.task_id}/{one.identity.rollout}": one.state for one in outcomes(store.database)}


async def test_a_run_is_begun_once(store: Store, where: Where, clock: Clock) -> None:
    assert store.run_now() is None
    run = store.create_run_now({"dataset": "d", "rollouts": 2})
    clock.now += 5
    assert store.create_run_now({"dataset": "another"}) == run
    assert (store.run_now(), run.settings) == (run, {"dataset": "d", "rollouts": 2})


async def test_identities_keep_the_order_they_were_planned_in(store: Store) -> None:
    first = [Identity("b", 0), Identity("a", 0)]
    assert await store.plan(first) == 2
    assert await store.plan([*first, Identity("b", 1), Identity("a", 1), Identity("B", 0)]) == 3
    expected = [*first, Identity("b", 1), Identity("a", 1), Identity("B", 0)]
    assert list(identities(store.database)) == expected
    assert [one.identity for one in outcomes(store.database, by_task=True)] == sorted(expected)
    assert list(identities(store.database, choice=Choice("[ab]", {}))) == expected[:4]


ODD_TEXTS = ["", "\0", "\ud800", "𝔘\n", "'; DROP TABLE answer; --", "x" * 100_000]


@pytest.mark.parametrize("text", ODD_TEXTS, ids=range(len(ODD_TEXTS)))
async def test_an_answer_comes_back_as_it_was(store: Store, text: str) -> None:
    answer = Answer(
        "01A",
        Identity("t", 3),
        None,
        "sha256:" + "a" * 64,
        {"text": text, "big": 2**70},
        "command",
        {"command": text},
        123.5,
        ({"path": text, "type": "fifo", "bytes": 0},),
        {"row": [text, None, 1.5]},
    )
    assert await store.keep_answer(answer, trajectory=b"\0\xff" * 1000) == "01A"
    assert find_answer(store.database, "01A") == answer
    assert find_answer(store.database, Identity("t", 3)) == answer
    assert find_trajectory(store.database, "01A") == b"\0\xff" * 1000
    assert [one.answer for one in exported(store.database)] == [answer]


async def test_what_is_not_there_is_none(store: Store) -> None:
    assert find_answer(store.database, "nothing") is None
    assert find_answer(store.database, Identity("t", 0)) is None
    assert find_trajectory(store.database, "nothing") is None
    assert verdicts_of(store.database, "nothing") == []
    with pytest.raises(LookupError, match="there is no answer nothing"):
        await store.keep_verdict("nothing", graded())


async def test_an_identity_has_one_answer_whoever_comes_later(store: Store) -> None:
    first = await answered(store, response="first")
    assert await answered(store, response="second") == first
    kept = find_answer(store.database, Identity("t", 0))
    assert kept is not None
    assert (kept.id, kept.response) == (first, "first")


# The current verdict: the latest, except that a failed one never hides a graded one of the same verifier digest.
CURRENT = {
    "graded": ([graded(1.0)], 0),
    "graded twice": ([graded(1.0), graded(0.0)], 1),
    "recovered": ([failed(), graded(1.0)], 1),
    "failed after graded": ([graded(1.0), failed()], 0),
    "failed after graded, then graded": ([graded(1.0), failed(), graded(0.5)], 2),
    "another verifier's failure": ([graded(1.0), failed(verifier="v2")], 1),
    "another verifier's failure, then its own": ([graded(1.0), failed(verifier="v2"), failed(verifier="v1")], 1),
    "both graded, then the older one fails": ([graded(1.0), graded(0.0, "v2"), failed(verifier="v1")], 1),
    "failed before there was a digest": ([graded(1.0), failed(verifier=None)], 0),
    "failed before there was a digest, twice": ([failed(verifier=None), failed(verifier=None)], 1),
}


@pytest.mark.parametrize(("sequence", "current"), CURRENT.values(), ids=CURRENT)
async def test_the_current_verdict(store: Store, sequence: list[dict[str, Any]], current: int) -> None:
    answer_id = await answered(store)
    for verdict in sequence:
        kept = await store.keep_verdict(answer_id, verdict)
        assert kept is not None
    history = verdicts_of(store.database, answer_id)
    assert [one.id for one in history] == [verdict["verdict_id"] for verdict in sequence]
    (one,) = exported(store.database)
    assert one.verdict == history[current]
    (outcome,) = outcomes(store.database)
    assert (outcome.status, outcome.reward) == (sequence[current]["status"], sequence[current]["reward"])
    assert kept.current is (current == len(sequence) - 1)


async def test_a_verdict_comes_back_with_its_answer(store: Store) -> None:
    answer_id = await answered(store)
    verdict = graded(0.75, log_tail="a\0b\ud800", metrics={"é": 1e300})
    await store.keep_verdict(answer_id, verdict)
    (kept,) = verdicts_of(store.database, answer_id)
    assert kept.body == {**verdict, "answer_id": answer_id}


async def test_a_number_that_is_none_is_refused_and_nothing_is_kept(store: Store) -> None:
    answer_id = await answered(store)
    with pytest.raises(ValueError, match="JSON compliant"):
        await store.keep_verdict(answer_id, graded(float("nan")))
    assert verdicts_of(store.database, answer_id) == []


async def test_the_same_verdict_twice_is_one(store: Store) -> None:
    answer_id = await answered(store)
    verdict = graded()
    first = await store.keep_verdict(answer_id, verdict)
    assert await store.keep_verdict(answer_id, verdict) == first
    assert len(verdicts_of(store.database, answer_id)) == 1


async def make_each(store: Store, command: str) -> None:
    """An identity in each situation, named for it."""
    await store.plan([Identity("missing", 0)])
    for name in ("ungraded", "scored", "judge", "route", "infrastructure", "verifier", "unknown", "lost", "marked"):
        await answered(store, name)
    verdicts = {
        "scored": graded(),
        "judge": failed("judge_failed"),
        "route": failed("agent_route_failed", caused_by=None),
        "infrastructure": failed("transport_timeout"),
        "verifier": failed("assay:missing_reward", caused_by="verifier"),
        "unknown": failed("assay:missing_reward", caused_by="unknown"),
        "lost": failed("session_lost", caused_by="infrastructure"),
    }
    for name, verdict in verdicts.items():
        answer = find_answer(store.database, Identity(name, 0))
        assert answer is not None
        await store.keep_verdict(answer.id, verdict, command_id=command)
    marked = find_answer(store.database, Identity("marked", 0))
    assert marked is not None
    await store.keep_verdict(marked.id, failed("agent_route_failed"), terminal=True)


SITUATIONS = {
    "missing": "missing",
    "ungraded": "recoverable",
    "scored": "scored",
    "judge": "recoverable",
    "route": "recoverable",
    "infrastructure": "recoverable",
    "verifier": "terminal",
    "unknown": "terminal",
    "lost": "terminal",
    "marked": "terminal",
}
TAKEN = {
    "resume": ({Need.ANSWER, Need.VERDICT}, {}, {"missing", "ungraded"}),
    "recover": ({Need.VERDICT, Need.RECOVERY}, {}, {"ungraded", "judge", "route", "infrastructure"}),
    "recover, lost sessions too": (
        {Need.VERDICT, Need.RECOVERY},
        {"session_lost": True},
        {"ungraded", "judge", "route", "infrastructure", "lost"},
    ),
    "regrade": ({Need.REGRADE}, {}, set(SITUATIONS) - {"missing"}),
    "regrade, chosen": ({Need.REGRADE}, {"choice": choice_of("[vu]*", ["status=failed"])}, {"verifier", "unknown"}),
}


@pytest.mark.parametrize(("needs", "options", "expected"), TAKEN.values(), ids=TAKEN)
async def test_what_a_command_takes_up(
    store: Store, needs: set[Need], options: dict[str, Any], expected: set[str]
) -> None:
    await make_each(store, await store.begin_command("run", {}))
    assert states(store) == {f"{name}/0": state for name, state in SITUATIONS.items()}
    command = await store.begin_command("x", {})
    assert store.waiting_now(needs, command_id=command, **options) == len(expected)
    claims = await store.claim(needs, 100, command_id=command, **options)
    assert {one.identity.task_id for one in claims} == expected
    assert [one.answer_id is None for one in claims] == [one.identity.task_id == "missing" for one in claims]
    assert await store.claim(needs, 100, command_id=command, **options) == []


async def test_claims_come_in_order_and_no_more_than_wanted(store: Store) -> None:
    await store.plan([Identity(f"t{n}", 0) for n in (3, 1, 2)])
    command = await store.begin_command("run", {})
    taken = [(await store.claim(ALL, 1, command_id=command))[0].identity.task_id for _ in range(3)]
    assert taken == ["t3", "t1", "t2"]


async def test_an_identity_that_was_given_back_can_be_had_again(store: Store) -> None:
    await store.plan([Identity("a", 0), Identity("b", 0)])
    command = await store.begin_command("run", {})
    await store.claim(ALL, 2, command_id=command)
    await store.release(Identity("a", 0))
    assert [one.identity.task_id for one in await store.claim(ALL, 2, command_id=command)] == ["a"]
    await store.release()
    assert len(await store.claim(ALL, 2, command_id=command)) == 2


async def test_a_command_does_not_get_again_what_it_finished(store: Store) -> None:
    answer_id = await answered(store)
    first, second = await store.begin_command("recover", {}), await store.begin_command("recover", {})
    await grade(store, answer_id, failed("judge_failed"), first)
    assert await store.claim(ALL, 1, command_id=first) == []
    assert len(await store.claim(ALL, 1, command_id=second)) == 1


async def test_budgets_count_by_kind_across_restarts(store: Store, where: Where, clock: Clock) -> None:
    answer_id = await answered(store)
    kinds = ["judge_failed", "judge_failed", "provider_unavailable", "judge_failed"]
    store.close()
    seen = []
    for kind in kinds:
        with reopened(where, clock) as again:
            await grade(again, answer_id, failed(kind), await again.begin_command("recover", {}))
            (one,) = outcomes(again.database)
            seen.append((one.tries, one.state))
    assert seen == [(1, "recoverable"), (2, "recoverable"), (1, "recoverable"), (3, "exhausted")]
    with reopened(where, clock) as again:
        command = await again.begin_command("recover", {})
        assert await again.claim(ALL, 1, command_id=command, budget=BUDGET) == []
        assert len(await again.claim(ALL, 1, command_id=command, budget=4)) == 1
        assert totals(again.database, budget=4).states["recoverable"] == 1


async def test_an_agent_that_fails_is_tried_as_often_as_it_may_be(store: Store) -> None:
    one = Identity("t", 0)
    await store.plan([one])
    for expected in ("missing", "missing", "exhausted"):
        command = await store.begin_command("resume", {})
        (claim,) = await store.claim(ALL, 1, command_id=command)
        attempt = await store.begin_attempt(claim.identity, stage="agent", command_id=command)
        await store.fail_agent(attempt, FailureEvent("agent_run_error", "it crashed", boundary="agent", stage="agent"))
        assert states(store) == {"t/0": expected}
    assert [(a.outcome, a.kind, len(a.events)) for a in attempts_at(store.database, one)] == [
        ("failed", "agent_run_error", 1)
    ] * 3
    assert totals(store.database).unanswered_kinds == {"agent_run_error": 1}
    assert await store.claim(ALL, 1, command_id=await store.begin_command("resume", {})) == []
    # An answer that arrives after all is graded.
    await answered(store)
    assert states(store) == {"t/0": "recoverable"}


async def test_an_agent_whose_failure_is_final(store: Store) -> None:
    await store.plan([Identity("t", 0)])
    command = await store.begin_command("run", {})
    attempt = await store.begin_attempt(Identity("t", 0), stage="agent", command_id=command)
    await store.fail_agent(attempt, FailureEvent("agent_timeout", "too slow"), terminal=True)
    assert states(store) == {"t/0": "terminal"}


async def test_an_attempt_is_kept_with_all_that_was_seen(store: Store, clock: Clock) -> None:
    command = await store.begin_command("run", {})
    await store.plan([Identity("t", 0)])
    (claim,) = await store.claim(ALL, 1, command_id=command)
    first = await store.begin_attempt(claim.identity, stage="agent", command_id=command)
    clock.now += 10
    answer_id = await store.keep_answer(new_answer(), attempt_id=first)
    second = await store.begin_attempt(claim.identity, stage="verification", command_id=command, answer_id=answer_id)
    clock.now += 1
    verdict = failed("judge_failed")
    seen = FailureEvent("transport_timeout", "an earlier try").to_record()
    await store.keep_verdict(answer_id, verdict, attempt_id=second, command_id=command, events=[seen])
    agent, verification = attempts_at(store.database, claim.identity)
    assert (agent.outcome, agent.answer_id, agent.began_at, agent.ended_at) == ("answered", answer_id, 1000, 1010)
    assert (verification.outcome, verification.kind) == ("failed", "judge_failed")
    assert verification.verdict_id == verdict["verdict_id"]
    assert [event["kind"] for event in verification.events] == ["transport_timeout", "judge_failed"]
    (kept,) = verdicts_of(store.database, answer_id)
    assert (kept.command_id, kept.attempt_id) == (command, second)


async def test_what_a_command_changed(store: Store) -> None:
    rewards = {"a": 0.0, "b": 1.0, "c": None}
    ids = {name: await answered(store, name) for name in rewards}
    run = await store.begin_command("run", {})
    for name, reward in rewards.items():
        await grade(store, ids[name], graded(reward) if reward is not None else failed(), run)
    await answered(store, "ungraded")
    regrade = await store.begin_command("regrade", {})
    await grade(store, ids["a"], graded(1.0, "v2"), regrade)
    await grade(store, ids["b"], failed(verifier="v1"), regrade)
    await grade(store, ids["c"], graded(0.5, "v2"), regrade)

    def side(verdict: Any) -> tuple[Any, ...]:
        return (verdict["status"], verdict["reward"], verdict["verifier_digest"])

    found = [(c.identity.task_id, side(c.before), side(c.after), c.current) for c in changes(store.database, regrade)]
    assert found == [
        ("a", ("graded", 0.0, "v1"), ("graded", 1.0, "v2"), True),
        ("b", ("graded", 1.0, "v1"), ("failed", None, "v1"), False),
        ("c", ("failed", None, "v1"), ("graded", 0.5, "v2"), True),
    ]
    assert [c.before for c in changes(store.database, run)] == [None, None, None]


async def test_a_command_that_was_cut_is_joined(store: Store, clock: Clock) -> None:
    first = await store.begin_command("regrade", {"task": "a*"})
    clock.now += 1
    assert await store.begin_command("regrade", {"task": "b*"}, join=True) != first
    assert await store.begin_command("regrade", {"task": "a*"}, join=True) == first
    assert await store.begin_command("regrade", {"task": "a*"}) != first
    for command in store.commands_now():
        await store.end_command(command.id)
    assert await store.begin_command("regrade", {"task": "a*"}, join=True) not in {first}
    ended = [command.ended_at for command in store.commands_now()]
    assert ended == [1001.0, 1001.0, 1001.0, None]


# Settling what waited for evidence.


async def test_proof_settles_what_waited_for_it(store: Store) -> None:
    waiting, other, proof = [await answered(store, "t", n) for n in range(3)]
    await store.keep_verdict(waiting, provisional("k", -0.5))
    await store.keep_verdict(other, provisional("another key"))
    kept = await store.keep_verdict(proof, graded(1.0, evidence={"key": "k", "floor": -0.5}))
    assert kept is not None
    assert (kept.current, kept.settled) == (True, (Identity("t", 0),))
    before, after = verdicts_of(store.database, waiting)
    assert (after.settles, after.body["reward"], after.body["caused_by"]) == (before.id, -0.5, "submission")
    assert (after.body["status"], after.body["provisional"], after.body["proven"]) == ("graded", False, True)
    assert after.body["failure"] == before.body["failure"]
    assert [(one.state, one.reward) for one in outcomes(store.database)] == [
        ("scored", -0.5),
        ("terminal", None),
        ("scored", 1.0),
    ]


async def test_what_comes_after_the_proof_is_settled_at_once(store: Store) -> None:
    proof, late = await answered(store, "t", 0), await answered(store, "t", 1)
    await store.keep_verdict(proof, graded(1.0, evidence={"key": "k", "floor": 0.0}))
    kept = await store.keep_verdict(late, provisional("k"))
    assert kept is not None
    assert (kept.current, kept.settled) == (False, (Identity("t", 1),))
    assert [one.settles is None for one in verdicts_of(store.database, late)] == [True, False]


async def test_without_a_known_floor_nothing_is_settled(store: Store) -> None:
    """A crash must not be worth more than a bad answer."""
    waiting, proof = await answered(store, "t", 0), await answered(store, "t", 1)
    await store.keep_verdict(waiting, provisional("k", None))
    kept = await store.keep_verdict(proof, graded(1.0, evidence={"key": "k", "floor": None}))
    assert kept is not None
    assert kept.settled == ()
    settled = await store.learn("k", task_id="t", verifier_digest="v1", proven_by=None, floor=-1.0)
    assert settled == (Identity("t", 0),)
    assert [one.reward for one in outcomes(store.database)] == [-1.0, 1.0]


async def test_evidence_from_controls_settles_too(store: Store) -> None:
    waiting = await answered(store)
    await store.keep_verdict(waiting, provisional("k"))
    (wanted,) = store.wanted_now()
    assert (wanted.key, wanted.task_id, wanted.floor) == ("k", "t", provisional("k")["evidence"]["floor"])
    settled = await store.learn("k", task_id="t", verifier_digest="v1", proven_by="solution", floor=None)
    assert settled == (Identity("t", 0),)
    assert store.wanted_now() == []
    assert await store.learn("k", task_id="t", verifier_digest="v1", proven_by=None, floor=None) == ()


@pytest.mark.parametrize(
    "proof",
    [graded(0.0, proven=False, evidence={"key": "k", "floor": 0.0}), failed(evidence={"key": "k", "floor": 0.0})],
)
async def test_what_proves_nothing_settles_nothing(store: Store, proof: dict[str, Any]) -> None:
    waiting, other = await answered(store, "t", 0), await answered(store, "t", 1)
    await store.keep_verdict(waiting, provisional("k"))
    await store.keep_verdict(other, {**proof, "verdict_id": "V"})
    assert states(store)["t/0"] == "terminal"


async def test_a_verdict_that_is_no_longer_current_is_not_settled(store: Store) -> None:
    waiting, proof = await answered(store, "t", 0), await answered(store, "t", 1)
    await store.keep_verdict(waiting, provisional("k"))
    await store.keep_verdict(waiting, graded(0.25, "v2"))
    await store.keep_verdict(proof, graded(1.0, evidence={"key": "k", "floor": 0.0}))
    assert [one.reward for one in outcomes(store.database)] == [0.25, 1.0]


async def test_what_a_regrade_settles_is_among_its_changes(store: Store) -> None:
    waiting, proof = await answered(store, "t", 0), await answered(store, "t", 1)
    for answer_id in (waiting, proof):
        await store.keep_verdict(answer_id, provisional("k"))
    regrade = await store.begin_command("regrade", {})
    await grade(store, proof, graded(1.0, evidence={"key": "k", "floor": 0.0}), regrade)
    assert [(c.identity.rollout, c.after["reward"]) for c in changes(store.database, regrade)] == [(0, 0.0), (1, 1.0)]


# One writer, or many with leases.


async def test_a_second_writer_is_told_who_writes(tmp_path: Path) -> None:
    path = tmp_path / "run.sqlite"
    with open_store(path, who="assay resume RUN"):
        with pytest.raises(StoreHeld, match=r"run\.sqlite: `assay resume RUN` \(process \d+, since .*\) writes to it"):
            open_store(path, who="assay recover RUN")
        with open_store(path, writing=False) as reader:
            assert totals(reader.database).planned == 0
    open_store(path).close()


def test_the_right_to_write_ends_with_the_process(tmp_path: Path) -> None:
    code = """
import sys, time
from assay.answers import open_store
store = open_store(sys.argv[1])
print("open", flush=True)
time.sleep(60)
"""
    path = tmp_path / "run.sqlite"
    holder = subprocess.Popen([sys.executable, "-c", code, path], stdout=subprocess.PIPE)
    assert holder.stdout is not None
    with holder.stdout:
        assert holder.stdout.readline() == b"open\n"
        with pytest.raises(StoreHeld):
            open_store(path)
        holder.kill()
        holder.wait()
    open_store(path).close()


def test_a_run_of_a_newer_assay_is_refused(where: Where) -> None:
    with open_store(where.place, namespace=where.namespace) as store:
        store.database.write_now(lambda c: c.execute(text("UPDATE assay_schema SET steps = 99")) and None)
    for writing in (True, False):
        with pytest.raises(StoreUnusable, match="a newer Assay wrote it"):
            open_store(where.place, namespace=where.namespace, writing=writing)


def test_the_tables_are_what_queries_take_them_for(store: Store, where: Where) -> None:
    def work(connection: Any) -> dict[str, dict[str, tuple[bool, str]]]:
        looked = inspect(connection)
        schema_name = where.namespace if store.database.shared else None
        return {
            name: {
                column["name"]: (
                    column["nullable"] and not column.get("primary_key"),
                    column["type"].python_type.__name__,
                )
                for column in looked.get_columns(name, schema_name)
            }
            for name in looked.get_table_names(schema_name)
        }

    found = store.database.read_now(work)
    del found["assay_schema"]
    found.pop("sqlite_sequence", None)
    expected = {
        table.name: {column.name: (bool(column.nullable), column.type.python_type.__name__) for column in table.columns}
        for table in schema.TABLES
    }
    assert found == expected


async def test_what_a_killed_process_held_is_free_at_once_in_a_file(tmp_path: Path) -> None:
    place = tmp_path / "run.sqlite"
    with open_store(place) as store:
        await store.plan([Identity("t", 0)])
        await store.claim(ALL, 1, command_id=await store.begin_command("run", {}))
        store.database.write_now(lambda c: c.execute(text("UPDATE identity SET lease_owner = 'a dead one'")) and None)
    with open_store(place) as store:
        assert len(await store.claim(ALL, 1, command_id=await store.begin_command("run", {}))) == 1


async def test_a_lease_ends_unless_it_is_renewed(in_postgresql: Where, clock: Clock) -> None:
    with reopened(in_postgresql, clock) as one, reopened(in_postgresql, clock) as two:
        await one.plan([Identity("t", 0)])
        command = await one.begin_command("run", {})
        assert len(await one.claim(ALL, 1, command_id=command, lease_s=60)) == 1
        clock.now += 50
        assert await two.claim(ALL, 1, command_id=command) == []
        await one.renew(60)
        clock.now += 50
        assert await two.claim(ALL, 1, command_id=command) == []
        clock.now += 11
        assert len(await two.claim(ALL, 1, command_id=command)) == 1


async def test_claims_that_are_made_at_once_do_not_overlap(in_postgresql: Where, clock: Clock) -> None:
    with reopened(in_postgresql, clock) as one, reopened(in_postgresql, clock) as two:
        await one.plan([Identity("t", n) for n in range(6)])
        command = await one.begin_command("run", {})
        taken, go_on = threading.Event(), threading.Event()

        def slow(connection: Connection) -> list[Claim]:
            claims, _ = claim(
                connection, ALL, 3, owner=one.owner, command_id=command, now=clock.now, lease_s=60, choice=Choice(),
                budget=BUDGET, session_lost=False,
            )  # fmt: skip
            taken.set()
            go_on.wait(10)
            return claims

        first = one.database.submit(slow)
        await asyncio.to_thread(taken.wait, 10)
        second = await two.claim(ALL, 3, command_id=command)
        go_on.set()
        assert [c.identity.rollout for c in first.result(10)] == [0, 1, 2]
        assert [c.identity.rollout for c in second] == [3, 4, 5]


async def test_a_verdict_after_the_lease_is_not_added(in_postgresql: Where, clock: Clock) -> None:
    with reopened(in_postgresql, clock) as one, reopened(in_postgresql, clock) as two:
        answer_id = await answered(one)
        command = await one.begin_command("run", {})
        tries = []
        for process in (one, two):
            (claim,) = await process.claim(ALL, 1, command_id=command, lease_s=60)
            tries.append(
                await process.begin_attempt(
                    claim.identity, stage="verification", command_id=command, answer_id=answer_id
                )
            )
            clock.now += 61
        kept = await two.keep_verdict(answer_id, graded(1.0), attempt_id=tries[1], command_id=command)
        assert kept is not None
        assert await one.keep_verdict(answer_id, graded(0.0), attempt_id=tries[0], command_id=command) is None
        assert [one.body["reward"] for one in verdicts_of(one.database, answer_id)] == [1.0]
        outcomes_seen = [attempt.outcome for attempt in attempts_at(one.database, claim.identity)]
        assert outcomes_seen == ["interrupted", "graded"]


async def test_an_interrupted_attempt_is_taken_over_and_counts_for_nothing(where: Where, clock: Clock) -> None:
    with reopened(where, clock) as store:
        answer_id = await answered(store)
    for _ in range(5):
        with reopened(where, clock) as store:
            command = await store.begin_command("resume", {})
            taken = await store.take_over_interrupted()
            assert all((one.outcome, one.repeatable) == ("interrupted", True) for one in taken)
            (claim,) = await store.claim(ALL, 1, command_id=command)
            await store.begin_attempt(claim.identity, stage="verification", command_id=command, answer_id=answer_id)
    with reopened(where, clock) as store:
        assert len(await store.take_over_interrupted()) == 1
        assert await store.take_over_interrupted() == []
        assert states(store) == {"t/0": "recoverable"}


async def test_what_must_not_be_repeated_is_not_to_be_had(where: Where, clock: Clock) -> None:
    """A verifier that is not stateless was started, and nobody knows how it ended: `session_lost`."""
    with reopened(where, clock) as store:
        answer_id = await answered(store)
        command = await store.begin_command("run", {})
        (claim,) = await store.claim(ALL, 1, command_id=command)
        await store.begin_attempt(
            claim.identity, stage="verification", command_id=command, answer_id=answer_id, repeatable=False
        )
    for _ in range(2):  # whoever took it over may die before it says so
        with reopened(where, clock) as store:
            command = await store.begin_command("resume", {})
            assert await store.claim(ALL, 1, command_id=command) == []
            (lost,) = await store.take_over_interrupted()
            assert (lost.repeatable, lost.answer_id) == (False, answer_id)
            assert await store.claim(ALL, 1, command_id=command) == []
    with reopened(where, clock) as store:
        await store.keep_verdict(answer_id, failed("session_lost", caused_by="infrastructure"))
        assert await store.take_over_interrupted() == []
        command = await store.begin_command("recover", {})
        assert await store.claim(ALL, 1, command_id=command) == []
        assert len(await store.claim(ALL, 1, command_id=command, session_lost=True)) == 1


async def test_reading_needs_no_right_to_write(where: Where) -> None:
    with pytest.raises(StoreUnusable, match="nothing is kept there yet"):
        open_store(where.place, namespace=where.namespace, writing=False)
    open_store(where.place, namespace=where.namespace).close()
    with open_store(where.place, namespace=where.namespace, writing=False) as reader:
        with pytest.raises(RuntimeError, match="opened for reading"):
            await answered(reader)
        assert list(outcomes(reader.database)) == []


@pytest.mark.parametrize(
    ("where_", "said"),
    [
        (["status"], "write FIELD=VALUE"),
        (["colour=red"], "there is no field 'colour'; there are status"),
        (["status=good"], "status is graded, failed or none"),
        (["state=lost"], "state is one of missing"),
        (["reward=much"], "reward is a number"),
        (["proven=maybe"], "proven is true or false"),
        (["kind=a", "kind=b"], "kind cannot be a and b at once"),
    ],
)
def test_a_choice_that_is_none_is_refused(where_: list[str], said: str) -> None:
    with pytest.raises(WrongArgument, match=said):
        choice_of(None, where_)


CHOICES = {
    "a*": {"a", "a-b", "a.b"},
    "?": {"a", "b"},
    "a.b": {"a.b"},
    "[!a]": {"b"},
    "[ab]": {"a", "b"},
    "a[-]b": {"a-b"},
    "*": {"a", "b", "a-b", "a.b", "x[1]", "ü+"},
    "x[[]1]": {"x[1]"},
    "ü+": {"ü+"},
    "": set(),
    "[": set(),
}


@pytest.mark.parametrize(("glob", "expected"), CHOICES.items(), ids=CHOICES)
async def test_globs_choose_tasks(store: Store, glob: str, expected: set[str]) -> None:
    await store.plan([Identity(name, 0) for name in CHOICES["*"]])
    assert {one.task_id for one in identities(store.database, choice=choice_of(glob))} == expected


FIELDS_CHOOSE = {
    "status=none": {"none"},
    "status=graded": {"good", "zero"},
    "state=recoverable": {"none", "judge"},
    "kind=judge_failed": {"judge"},
    "kind=none": {"none", "good", "zero"},
    "caused_by=verifier": {"broken"},
    "verifier_digest=sha256:ab": {"good"},
    "verifier_digest=none": {"none"},
    "reward=0": {"zero"},
    "proven=false": {"none", "zero", "judge", "broken"},
    "flaky=yes": {"good"},
    "agent=nop": {"zero"},
}


@pytest.mark.parametrize(("condition", "expected"), FIELDS_CHOOSE.items(), ids=FIELDS_CHOOSE)
async def test_fields_choose_rows(store: Store, condition: str, expected: set[str]) -> None:
    verdicts = {
        "good": graded(1.0, "sha256:abc", flaky=True),
        "zero": graded(0.0, "sha256:b", proven=False),
        "judge": failed("judge_failed"),
        "broken": failed("assay:missing_reward", caused_by="verifier"),
    }
    await answered(store, "none")
    for name, verdict in verdicts.items():
        agent = "nop" if name == "zero" else "command"
        await store.keep_verdict(await answered(store, name, agent=agent), {**verdict, "verdict_id": f"V{name}"})
    chosen = choice_of(None, [condition])
    assert {one.identity.task_id for one in outcomes(store.database, choice=chosen)} == expected


WORKER = """
import asyncio, random, sys, time
from ulid import ULID
from assay.answers import Need, open_store

async def main(place, namespace, command, seed):
    chance = random.Random(seed)
    with open_store(place, namespace=namespace) as store:
        await store.take_over_interrupted()
        while claims := await store.claim({Need.VERDICT}, 3, command_id=command, lease_s=1.0):
            for one in claims:
                attempt = await store.begin_attempt(
                    one.identity, stage="verification", command_id=command, answer_id=one.answer_id
                )
                await asyncio.sleep(chance.random() * 0.004)
                verdict = {"verdict_id": str(ULID()), "task_id": "t", "status": "graded", "reward": 1.0,
                           "verifier_digest": "v", "metrics": {"m": 1.0}, "proven": True, "failure": None,
                           "evidence": {"key": one.identity.task_id, "floor": 0.0}}
                kept = await store.keep_verdict(one.answer_id, verdict, attempt_id=attempt, command_id=command)
                if kept is not None:
                    print(verdict["verdict_id"], flush=True)

asyncio.run(main(*sys.argv[1:4], int(sys.argv[4])))
"""


async def test_processes_that_share_a_run_grade_nothing_twice(in_postgresql: Where) -> None:
    """One of three is killed again and again; what it had begun is graded by the others once its lease has ended."""
    place, namespace = in_postgresql.place, in_postgresql.namespace
    with open_store(place, namespace=namespace) as store:
        for n in range(150):
            await answered(store, f"t{n % 10}", n // 10)
        command = await store.begin_command("resume", {})
        start = [sys.executable, "-c", WORKER, place, namespace, command]
        steady = [subprocess.Popen([*start, str(seed)], stdout=subprocess.PIPE) for seed in (1, 2)]
        acknowledged: list[str] = []
        chance = random.Random(4)
        for seed in range(3, 6):
            victim = subprocess.Popen([*start, str(seed)], stdout=subprocess.PIPE)
            await asyncio.sleep(0.9 + chance.random() * 0.4)
            victim.kill()
            acknowledged += victim.communicate()[0].decode().split("\n")[:-1]
        for process in steady:
            acknowledged += (await asyncio.to_thread(process.communicate))[0].decode().split()
            assert process.returncode == 0
        assert all(one.state == "scored" for one in outcomes(store.database))
        kept = store.database.read_now(
            lambda c: c.execute(select(schema.verdict.c.id, schema.verdict.c.answer_id)).all()
        )
        assert len(kept) == len({row.answer_id for row in kept}) == 150
        assert set(acknowledged) <= {row.id for row in kept}
        assert len(set(acknowledged)) == len(acknowledged) >= 145


KEEPER = """
import asyncio, sys
from ulid import ULID
from assay.answers import Answer, Identity, Need, open_store

async def one(store, command, n):
    answer = Answer(str(ULID()), Identity(f"t{n}", 0), None, None, {"n": n}, "command")
    kept = await store.keep_answer(answer)
    print("answer", kept, flush=True)
    verdict = {"verdict_id": str(ULID()), "task_id": f"t{n}", "status": "graded", "reward": 0.5, "verifier_digest": "v"}
    await store.keep_verdict(kept, verdict, command_id=command)
    print("verdict", verdict["verdict_id"], flush=True)

async def main(place):
    with open_store(place) as store:
        command = await store.begin_command("run", {})
        begin = int(sys.argv[2])
        for batch in range(begin, begin + 100_000, 8):
            await asyncio.gather(*(one(store, command, n) for n in range(batch, batch + 8)))

asyncio.run(main(sys.argv[1]))
"""


@pytest.mark.slow
def test_what_was_acknowledged_survives_a_kill(tmp_path: Path, soaking: bool) -> None:
    place = tmp_path / "run.sqlite"
    chance, rounds = random.Random(11), 60 if soaking else 5
    said: dict[str, set[str]] = {"answer": set(), "verdict": set()}
    for number in range(rounds):
        command = [sys.executable, "-c", KEEPER, place, str(number * 100_000)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        lines = list(itertools.islice(process.stdout, chance.randint(1, 400)))
        process.send_signal(signal.SIGKILL)
        lines += process.communicate()[0].splitlines(keepends=True)
        for line in lines:
            if line.endswith("\n"):
                what, name = line.split()
                said[what].add(name)
    with open_store(place) as store:
        kept = {
            "answer": {one.answer.id for one in exported(store.database)},
            "verdict": {one.verdict.id for one in exported(store.database) if one.verdict is not None},
        }
        whole = store.database.read_now(lambda c: c.execute(text("PRAGMA integrity_check")).scalar())
    assert all(said.values())
    assert whole == "ok"
    assert {what: said[what] - kept[what] for what in said} == {"answer": set(), "verdict": set()}


@pytest.mark.parametrize("seed", range(3))
async def test_the_summary_is_what_the_history_says(store: Store, seed: int) -> None:
    """Whatever was done: each identity's row says what its attempts and verdicts, read one by one, come to."""
    chance = random.Random(seed)
    command = await store.begin_command("run", {})
    ids = [await answered(store, f"t{n % 4}", n // 4) for n in range(12)]
    for _ in range(60):
        verdict = chance.choice(
            [
                graded(chance.choice([0.0, 1.0]), chance.choice(["v1", "v2"]), evidence={"key": "k", "floor": 0.0}),
                failed(chance.choice(["judge_failed", "transport_timeout"]), chance.choice(["v1", "v2", None])),
                provisional("k"),
                failed("assay:missing_reward", caused_by="verifier"),
            ]
        )
        await store.keep_verdict(
            chance.choice(ids), {**verdict, "verdict_id": f"V{chance.random()}"}, command_id=command
        )
    for one in outcomes(store.database):
        assert one.answer_id is not None
        history = verdicts_of(store.database, one.answer_id)
        by_graded = {v.body["verifier_digest"] for v in history if v.body["status"] == "graded"}

        def hidden(verdict: dict[str, Any], digests: set[str] = by_graded) -> bool:
            digest = verdict["verifier_digest"]
            return verdict["status"] == "failed" and (digest in digests or (digest is None and bool(digests)))

        standing = [v for v in history if not hidden(dict(v.body))]
        assert (one.status, one.reward) == (
            (standing[-1].body["status"], standing[-1].body["reward"]) if standing else (None, None)
        )


async def test_every_write_may_be_made_twice(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when a connection is lost just as it commits: nobody knows, and the write is made again."""
    once = Database.submit

    def twice(self: Database, work: Any) -> Any:
        once(self, work).result(10)
        return once(self, work)

    monkeypatch.setattr(Database, "submit", twice)
    run = store.create_run_now({"a": 1})
    assert store.run_now() == run
    command = await store.begin_command("run", {})
    assert await store.begin_command("run", {}, join=True) == command
    await store.plan([Identity("t", n) for n in range(3)])
    claims = await store.claim(ALL, 2, command_id=command)
    assert [one.identity.rollout for one in claims] == [0, 1]
    tries = [await store.begin_attempt(one.identity, stage="agent", command_id=command) for one in claims]
    answer_id = await store.keep_answer(new_answer("t", 0), attempt_id=tries[0], trajectory=b"x")
    await store.fail_agent(tries[1], FailureEvent("agent_run_error", "it crashed"))
    attempt = await store.begin_attempt(Identity("t", 0), stage="verification", command_id=command, answer_id=answer_id)
    kept = await store.keep_verdict(answer_id, failed("judge_failed"), attempt_id=attempt, command_id=command)
    assert kept is not None
    assert await store.keep_verdict(answer_id, provisional("k"))
    assert await store.learn("k", task_id="t", verifier_digest="v1", proven_by="solution", floor=None) == ()
    assert [one.identity.rollout for one in await store.claim(ALL, 9, command_id=command)] == [2]
    await store.end_command(command)
    seen = [(one.state, one.reward, one.tries) for one in outcomes(store.database)]
    assert seen == [("scored", 0.0, 0), ("missing", None, 1), ("missing", None, 0)]
    assert [len(attempts_at(store.database, Identity("t", n))) for n in range(3)] == [2, 1, 0]
    assert [one.body["status"] for one in verdicts_of(store.database, answer_id)] == ["failed", "failed", "graded"]


def test_a_verdict_is_plain_json_in_its_row(tmp_path: Path) -> None:
    with open_store(tmp_path / "run.sqlite") as store:
        answer_id = asyncio.run(answered(store))
        asyncio.run(store.keep_verdict(answer_id, graded(log_tail="é")))
        stored = store.database.read_now(lambda c: c.execute(select(schema.verdict.c.body)).scalar_one())
    assert stored.isascii()
    assert json.loads(stored)["log_tail"] == "é"

"""`POST /verify` over a real socket: the reply, and that each key is run once."""

from __future__ import annotations

import asyncio
import errno
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from assay.failures import HEADER_NAME, FailureEvent, decode_header
from assay.server import Limits
from serving import ScriptedGrader, make_dataset, served, until

WIRE = {
    "responses_create_params": {"input": [{"role": "user", "content": "2+2?"}]},
    "expected_answer": "4",
    "response": {
        "id": "r1",
        "created_at": 0,
        "model": "m",
        "object": "response",
        "parallel_tool_calls": False,
        "tool_choice": "auto",
        "tools": [],
        "output": [
            {
                "id": "m1",
                "type": "message",
                "role": "assistant",
                "status": "completed",
                "content": [{"type": "output_text", "text": "4", "annotations": []}],
            }
        ],
    },
}


class Gate:
    """Holds graders until it opens."""

    def __init__(self, reward: float = 1.0) -> None:
        self.reward = reward
        self.opened = asyncio.Event()
        self.entered = asyncio.Event()

    def __call__(self, chosen: Any, workspace: Path | None) -> Any:
        return self._wait()

    async def _wait(self) -> float:
        self.entered.set()
        await self.opened.wait()
        return self.reward


async def test_the_wire_form_of_the_field(dataset: Path, tmp_path: Path) -> None:
    async with served(dataset, state=tmp_path / "state") as server:
        reply = await server.verify(**WIRE, _ng_task_index=3)
    assert reply.status == 200
    said = reply.json()
    assert {name: said[name] for name in WIRE} == WIRE
    assert said["_ng_task_index"] == 3
    assert (said["reward"], said["mask_sample"], said["failure_kind"], said["failure_reason"]) == (
        1.0,
        False,
        None,
        None,
    )
    assert (said["verdict"]["status"], said["verdict"]["task_id"]) == ("graded", "one")
    assert reply.headers["X-Assay-Verifier"]
    assert reply.headers["Content-Type"] == "application/json"
    assert HEADER_NAME not in reply.headers


async def test_a_failure_is_a_masked_row(dataset: Path, tmp_path: Path) -> None:
    lost = FailureEvent("provider_unavailable", "the disk is full")
    async with served(dataset, ScriptedGrader(lambda *_: lost), state=tmp_path / "state") as server:
        reply = await server.verify(workspace=None, answer="x")
    said = reply.json()
    assert (reply.status, said["reward"], said["mask_sample"]) == (200, 0.0, True)
    assert (said["failure_kind"], said["failure_reason"]) == ("provider_unavailable", "the disk is full")
    assert "workspace" not in said
    assert said["answer"] == "x"
    report = decode_header(reply.headers[HEADER_NAME])
    assert report is not None
    assert report["failure_id"] == said["verdict"]["failure"]["event_id"]


async def test_a_reply_can_be_sent_again_as_a_request(dataset: Path, tmp_path: Path) -> None:
    async with served(dataset, ScriptedGrader(lambda chosen, _: len(chosen.row)), state=tmp_path / "state") as server:
        first = await server.verify(**WIRE)
        second = await server.verify(**first.json())
    assert (first.json()["reward"], second.json()["reward"]) == (1.0, 1.0)


async def test_a_path_as_observers_prefix_it(dataset: Path, tmp_path: Path) -> None:
    async with served(dataset, state=tmp_path / "state") as server:
        assert (await server.ask("POST", "/ng-rollout/abc-1/verify", json=WIRE)).json()["reward"] == 1.0
        assert (await server.ask("GET", "/ng-rollout/abc-1/reverify_mode")).json() == "stateless"


async def test_one_that_comes_while_it_runs_joins_and_a_later_one_is_replayed(counting: Path, tmp_path: Path) -> None:
    gate = Gate(0.5)
    async with served(counting, ScriptedGrader(gate), state=tmp_path / "state") as server:
        asked = [asyncio.create_task(server.verify("k", answer="a")) for _ in range(5)]
        await gate.entered.wait()
        gate.opened.set()
        replies = await asyncio.gather(*asked)
        later = await server.verify("k", answer="a")
    assert server.grader.visits == {"a": 1}
    assert {reply.body for reply in [*replies, later]} == {later.body}
    assert [reply.headers.get("Idempotency-Replayed") for reply in [*replies, later]] == [None] * 5 + ["true"]


async def test_a_replay_survives_a_restart_and_the_dataset(counting: Path, tmp_path: Path) -> None:
    async with served(counting, state=tmp_path / "state") as server:
        first = await server.verify("k", answer="a")
    (counting / "one" / "instruction.md").write_text("Another task now.\n")
    async with served(counting, state=tmp_path / "state") as again:
        second = await again.verify("k", answer="a")
        log = await again.ask("GET", f"/verdicts/{first.json()['verdict']['verdict_id']}/logs")
        kept = await again.ask("GET", f"/verdicts/{first.json()['verdict']['verdict_id']}")
    assert (second.body, second.headers.get("Idempotency-Replayed")) == (first.body, "true")
    assert sum(again.grader.visits.values()) == 0
    assert (log.body, log.headers["Content-Type"]) == (b"log of a", "text/plain; charset=utf-8")
    assert kept.json() == first.json()["verdict"]


async def test_the_same_key_with_another_body_is_refused(counting: Path, tmp_path: Path) -> None:
    gate = Gate()
    async with served(counting, ScriptedGrader(gate), state=tmp_path / "state") as server:
        asked = asyncio.create_task(server.verify("k", answer="a"))
        await gate.entered.wait()
        while_it_runs = await server.verify("k", answer="b")
        gate.opened.set()
        await asked
        afterwards = await server.verify("k", answer="b")
    for refused in (while_it_runs, afterwards):
        assert (refused.status, refused.json()["field"]) == (422, "Idempotency-Key")
    assert server.grader.visits == {"a": 1}


async def test_a_key_is_its_clients_own(dataset: Path, tmp_path: Path) -> None:
    tokens = ("a" * 20, "b" * 20)
    async with served(dataset, state=tmp_path / "state", tokens=tokens) as server:
        for number, token in enumerate(tokens):
            reply = await server.verify("k", answer=str(number), headers={"Authorization": f"Bearer {token}"})
            assert (reply.status, reply.headers.get("Idempotency-Replayed")) == (200, None)


async def test_nobody_says_by_a_header_that_he_is_another_client(dataset: Path, tmp_path: Path) -> None:
    async with served(dataset, state=tmp_path / "state") as server:
        await server.verify("k", answer="a")
        spoofed = await server.verify(
            "k", answer="b", headers={"X-Forwarded-For": "192.0.2.1", "Forwarded": "for=192.0.2.1"}
        )
    assert (spoofed.status, spoofed.json()["field"]) == (422, "Idempotency-Key")


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"task_id": "two", "answer": "a"}, 404),
        ({"task_digest": "sha256:" + "0" * 64, "answer": "a"}, 409),
        ({"expected": 4, "answer": "a"}, 422),
        ({"workspace": {"snapshot": "sha256:" + "0" * 64}, "answer": "a"}, 422),
        ({"workspace": {"archive_b64": "AAAA"}, "answer": "a"}, 422),
    ],
)
async def test_a_refusal_never_uses_a_key_up(
    counting: Path, tmp_path: Path, fields: dict[str, Any], status: int
) -> None:
    async with served(counting, state=tmp_path / "state") as server:
        assert (await server.verify("k", **fields)).status == status
        reply = await server.verify("k", answer="b")
    assert (reply.status, reply.headers.get("Idempotency-Replayed")) == (200, None)
    assert server.grader.visits == {"b": 1}


async def test_a_key_that_found_no_room_is_not_used_up(counting: Path, tmp_path: Path) -> None:
    gate = Gate()
    async with served(
        counting, ScriptedGrader(gate), state=tmp_path / "state", concurrency=1, limits=Limits(queue=1)
    ) as server:
        asked = [asyncio.create_task(server.verify(name, answer=name)) for name in ("a", "b")]
        await gate.entered.wait()
        await until(lambda: server.server.service.verifications.admission.waiting == 1)
        refused = await server.verify("c", answer="c")
        gate.opened.set()
        await asyncio.gather(*asked)
        again = await server.verify("c", answer="c")
    assert (refused.status, refused.json()["kind"]) == (503, "assay:not_admitted")
    assert int(refused.headers["Retry-After"]) >= 1
    report = decode_header(refused.headers[HEADER_NAME])
    assert report is not None
    assert report["events"][0]["kind"] == "assay:not_admitted"
    assert (again.status, server.grader.visits) == (200, {"a": 1, "b": 1, "c": 1})


async def test_what_is_late_at_its_turn_is_not_run(dataset: Path, tmp_path: Path) -> None:
    async with served(dataset, state=tmp_path / "state") as server:
        reply = await server.verify("k", answer="a", headers={"X-Assay-Deadline-S": "-0.5"})
    assert (reply.status, reply.json()["kind"]) == (503, "assay:not_admitted")
    assert server.grader.visits == {}


async def abandon(server: Any, key: str | None, **fields: Any) -> None:
    """Send a request and go away before its reply."""
    _reader, writer = await asyncio.open_connection("127.0.0.1", int(server.server.url.rpartition(":")[2]))
    body = json.dumps(fields).encode()
    named = f"Idempotency-Key: {key}\r\n" if key else ""
    writer.write(f"POST /verify HTTP/1.1\r\nHost: x\r\n{named}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    await writer.drain()
    await until(lambda: bool(server.grader.visits[fields["answer"]]))
    writer.close()
    await writer.wait_closed()


async def test_a_client_that_goes_away_takes_unkeyed_work_with_it(dataset: Path, tmp_path: Path) -> None:
    gate = Gate()
    async with served(dataset, ScriptedGrader(gate), state=tmp_path / "state") as server:
        await abandon(server, None, answer="a")
        await until(lambda: bool(server.grader.cancelled["a"]))
    assert server.grader.cancelled == {"a": 1}


async def test_keyed_work_goes_on_and_its_verdict_waits_for_the_resend(counting: Path, tmp_path: Path) -> None:
    gate = Gate(0.25)
    async with served(counting, ScriptedGrader(gate), state=tmp_path / "state") as server:
        await abandon(server, "k", answer="a")
        metrics = server.server.service.metrics
        await until(lambda: b"assay_abandoned_total 1.0" in metrics.text())
        gate.opened.set()
        reply = await server.verify("k", answer="a")
    assert (reply.json()["reward"], server.grader.visits, server.grader.cancelled) == (0.25, {"a": 1}, {})


async def test_a_bug_is_said_to_be_one_and_a_run_that_may_not_be_repeated_is_not(
    counting: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> float:
        raise ZeroDivisionError("oops")

    async with served(counting, ScriptedGrader(broken), state=tmp_path / "state") as server:
        first = await server.verify("k", answer="a")
        second = await server.verify("k", answer="a")
    assert (first.status, b"oops" in first.body) == (500, False)
    assert "oops" in caplog.text
    assert (second.status, second.json()["failure_kind"], server.grader.visits) == (200, "session_lost", {"a": 1})
    assert "the server stopped, or failed" in second.json()["failure_reason"]


@pytest.mark.parametrize(
    "error", [FailureEvent("provider_unavailable", "the disk is full"), OSError(errno.ENOSPC, "the disk is full")]
)
async def test_a_failure_before_the_sandbox_is_a_masked_row(counting: Path, tmp_path: Path, error: Exception) -> None:
    def full(*_: object) -> float:
        raise error

    async with served(counting, ScriptedGrader(full), state=tmp_path / "state") as server:
        first = await server.verify("k", answer="a")
        second = await server.verify("k", answer="a")
    assert (first.status, first.json()["failure_kind"], second.body) == (200, "provider_unavailable", first.body)
    assert "the disk is full" in first.json()["failure_reason"]
    assert first.json()["verdict"]["caused_by"] == "infrastructure"
    assert server.grader.visits == {"a": 1}


async def test_a_store_that_fails_gives_no_verdict_and_no_false_one(
    counting: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody is told a verdict that is not on disk; and while nothing can be looked up, nothing runs."""

    async def fails(*_: object) -> None:
        raise FailureEvent("persistence_failed", "the disk is full")

    async with served(counting, state=tmp_path / "state") as server:
        keys = server.server.service.keys
        with monkeypatch.context() as patch:
            patch.setattr(keys, "finish", fails)
            not_kept = await server.verify("a", answer="a")
        lost = await server.verify("a", answer="a")
        with monkeypatch.context() as patch:
            patch.setattr(keys, "find", fails)
            not_found = await server.verify("b", answer="b")
        with monkeypatch.context() as patch:
            patch.setattr(keys, "start", fails)
            not_started = await server.verify("c", answer="c")
    assert (not_kept.json()["failure_kind"], not_kept.json()["mask_sample"]) == ("persistence_failed", True)
    assert lost.json()["failure_kind"] == "session_lost"
    for refused in (not_found, not_started):
        assert (refused.status, refused.json()["kind"]) == (503, "assay:not_admitted")
    assert server.grader.visits == {"a": 1}


async def test_many_tasks(tmp_path: Path) -> None:
    dataset = make_dataset(tmp_path / "dataset", tasks=("one", "two"))
    async with served(dataset, state=tmp_path / "state") as server:
        unnamed = await server.verify(answer="a")
        by_ng = await server.verify(answer="a", _ng_task_id="two")
    assert (unnamed.status, unnamed.json()["field"]) == (422, "task_id")
    assert by_ng.json()["verdict"]["task_id"] == "two"


async def test_a_task_that_changes_is_what_it_is_now(dataset: Path, tmp_path: Path) -> None:
    now = 0.0
    async with served(dataset, state=tmp_path / "state") as server:
        server.server.service.catalogue._clock = lambda: now
        before = await server.verify(answer="a")
        (dataset / "one" / "tests" / "verifier.py").write_text("def verify():\n    return 0.5\n")
        now = 1e6
        after = await server.verify(answer="a")
        (dataset / "one" / "task.toml").write_text("[")
        now = 2e6
        broken = await server.verify(answer="a")
    first, second = before.json()["verdict"], after.json()["verdict"]
    assert first["task_digest"] == second["task_digest"]
    assert first["verifier_digest"] != second["verifier_digest"]
    assert (broken.status, broken.json()["field"]) == (409, "task_id")


async def test_two_thousand_at_once(dataset: Path, tmp_path: Path) -> None:
    """None is lost: each is graded or refused, and what is refused was never run."""
    grader = ScriptedGrader(lambda *_: asyncio.sleep(0, 1.0))
    limits = Limits(queue=500)
    async with (
        served(dataset, grader, state=tmp_path / "state", concurrency=4, limits=limits) as server,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as many,
    ):
        server.session = many
        replies = await asyncio.gather(*(server.verify(str(n), answer=str(n)) for n in range(2000)))
        assert server.server.service.held.bytes == 0
        metrics = (await server.ask("GET", "/metrics")).body.decode()
    refused = [reply for reply in replies if reply.status == 503]
    graded = [reply for reply in replies if reply.status == 200]
    assert len(refused) + len(graded) == 2000
    assert len(graded) >= 500
    assert grader.most_at_once <= 4
    assert max(grader.visits.values()) == 1
    assert sum(grader.visits.values()) == len(graded)
    assert all(
        reply.json()["kind"] == "assay:not_admitted" and int(reply.headers["Retry-After"]) > 0 for reply in refused
    )
    assert f'assay_verifications_total{{kind="",status="graded"}} {len(graded)}.0' in metrics
    assert "assay_queue_depth 0.0" in metrics

"""The servers that users test their own agents with."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Mapping
from typing import Any

import aiohttp
import pytest

from assay.client import ServerClient
from assay.client.testing import AgentServer, ScriptedVerifier, faults
from assay.failures import HEADER_NAME, decode_header
from jumping import run


async def no_wait(seconds: float) -> None:
    pass


async def post(client: ServerClient, json: Any, key: str | None = None) -> Any:
    return await client.post("v", "/verify", json=json, headers={"Idempotency-Key": key} if key else {})


async def test_it_says_what_it_is_told_to() -> None:
    async with (
        ScriptedVerifier(reverify_mode="stateless", keeps_keys=True) as verifier,
        ServerClient({"v": verifier.url}) as client,
    ):
        mode, capabilities = [await client.get("v", path) for path in ("/reverify_mode", "/capabilities")]
        absent = await client.get("v", "/tasks")
    assert (mode.json(), capabilities.json(), absent.status) == ("stateless", {"idempotency": True}, 404)
    assert {reply.headers["X-Assay-Verifier"] for reply in (mode, capabilities, absent)} == {"scripted"}
    assert verifier.probes == ["/reverify_mode", "/capabilities", "/tasks"]


async def test_one_that_cannot_say_has_no_such_routes() -> None:
    async with ScriptedVerifier(reverify_mode=None) as verifier, ServerClient({"v": verifier.url}) as client:
        replies = [await client.get("v", path) for path in ("/reverify_mode", "/capabilities")]
        verified = await post(client, {})
    assert [reply.status for reply in replies] == [404, 404]
    assert "X-Assay-Verifier" not in verified.headers


async def test_the_reply_is_the_request_without_its_workspace_and_with_the_verdict() -> None:
    def grade(request: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"reward": 0.25}

    async with ScriptedVerifier(grade=grade) as verifier, ServerClient({"v": verifier.url}) as client:
        reply = await post(client, {"task_id": "t", "workspace": {"snapshot": "sha256:1"}, "reward": 9})
    assert reply.json() == {"task_id": "t", "reward": 0.25}


async def test_a_key_runs_once_is_joined_and_is_not_for_another_body() -> None:
    gate = asyncio.Event()

    async def grade(request: Mapping[str, Any]) -> Mapping[str, Any]:
        await gate.wait()
        return {"reward": len(verifier.executions)}

    async with ScriptedVerifier(keeps_keys=True, grade=grade) as verifier, ServerClient({"v": verifier.url}) as client:
        both = asyncio.gather(post(client, {}, "k"), post(client, {}, "k"))
        while len(verifier.posts) < 2:
            await asyncio.sleep(0)
        gate.set()
        first, joined = await both
        later, other, unkeyed = [
            await post(client, body, key) for body, key in (({}, "k"), ({"a": 1}, "k"), ({}, None))
        ]
    assert [reply.json()["reward"] for reply in (first, joined, later, unkeyed)] == [1, 1, 1, 2]
    assert [reply.headers.get("Idempotency-Replayed") for reply in (first, joined, later)] == [None, "true", "true"]
    assert other.status == 422
    assert [execution.key for execution in verifier.executions] == ["k", None]


@pytest.mark.parametrize("body", [[], "text", None])
async def test_what_is_no_object_is_refused(body: Any) -> None:
    async with ScriptedVerifier() as verifier, ServerClient({"v": verifier.url}) as client:
        assert (await post(client, body)).status == 422
    assert verifier.executions == []


async def test_it_outlives_whatever_is_said_to_it() -> None:
    async with ScriptedVerifier() as verifier, ServerClient({"v": verifier.url}) as client:
        host, port = verifier.url.removeprefix("http://").split(":")
        for said in (b"", b"nonsense\r\n\r\n", b"POST /verify HTTP/1.1\r\ncontent-length: 9\r\n\r\n{}", b"x" * 200_000):
            with socket.create_connection((host, int(port))) as peer:
                peer.sendall(said)
        assert (await post(client, {})).ok


@pytest.mark.parametrize("fault", [faults.no_reply("stall"), faults.upload_stalls(), faults.late_reply()], ids=str)
def test_the_end_of_the_block_cuts_what_is_open(fault: faults.Fault) -> None:
    async def main() -> BaseException | None:
        async with contextlib.AsyncExitStack() as outlives:
            async with ScriptedVerifier([fault]) as verifier:
                client = await outlives.enter_async_context(ServerClient({"v": verifier.url}))
                waiting = asyncio.create_task(post(client, {}))
                while not verifier.posts:
                    await asyncio.sleep(0)
            (error,) = await asyncio.gather(waiting, return_exceptions=True)
        return error

    assert isinstance(run(main()), aiohttp.ServerDisconnectedError)


class Ran:
    """What an agent server's caller sees."""

    def __init__(self, script: list[faults.Fault], make: Any, **options: Any) -> None:
        self.script, self.make, self.options = script, make, options
        self.verifier: Any = None

    async def row(self, sent: Any) -> Any:
        async with (
            ScriptedVerifier(self.script, keeps_keys=True, reverify_mode="unsupported") as self.verifier,
            ServerClient({"v": self.verifier.url}) as client,
            AgentServer(self.make, client, "v", sleep=no_wait, **self.options) as agent,
            ServerClient({"agent": agent.url}) as trainer,
        ):
            return await trainer.post("agent", "/run", json=sent)


RESPONSE = {"output_text": "4"}


def answers(row: Mapping[str, Any]) -> Mapping[str, Any]:
    return RESPONSE


async def answers_later(row: Mapping[str, Any]) -> Mapping[str, Any]:
    await asyncio.sleep(0)
    return RESPONSE


@pytest.mark.parametrize("make", [answers, answers_later])
@pytest.mark.parametrize("script", [[], [faults.cut_body()], [faults.no_reply("reset")] * 3])
def test_an_agent_returns_the_verified_row(make: Any, script: list[faults.Fault]) -> None:
    ran = Ran(script, make)
    reply = run(ran.row({"task_id": "t", "expected": "4"}))
    assert reply.status == 200
    assert reply.json() == {
        "task_id": "t",
        "expected": "4",
        "response": RESPONSE,
        "reward": 1.0,
        "mask_sample": False,
        "failure_kind": None,
        "failure_reason": None,
    }
    assert len(ran.verifier.executions) == 1


@pytest.mark.parametrize(
    ("script", "options", "recovery", "attempts"),
    [
        ([faults.cut_body()] * 4, {}, "agent_route_failed", 4),
        ([faults.status(500)], {}, "judge_failed", 1),
        ([faults.status(500)], {"regradable": False}, "agent_route_failed", 1),
    ],
)
def test_an_agent_returns_its_answer_whatever_became_of_the_verification(
    script: list[faults.Fault], options: dict[str, Any], recovery: str, attempts: int
) -> None:
    reply = run(Ran(script, answers, **options).row({"task_id": "t"}))
    row = reply.json()
    assert reply.status == 200
    assert (row["task_id"], row["response"], row["reward"], row["mask_sample"]) == ("t", RESPONSE, 0.0, True)
    assert (row["_ng_failure_class"], len(row["_ng_failure_events"])) == (recovery, attempts)
    assert row["_ng_failure_terminal"] is (options.get("regradable") is False)
    report = decode_header(reply.headers[HEADER_NAME])
    assert report is not None
    assert report["failure_id"] == row["_ng_failure_id"]


def test_an_agent_that_makes_no_answer_returns_a_masked_row() -> None:
    def broken(row: Mapping[str, Any]) -> Mapping[str, Any]:
        raise RuntimeError("no model")

    ran = Ran([], broken)
    row = run(ran.row({"task_id": "t"})).json()
    assert (row["failure_kind"], row["_ng_failure_class"], row["mask_sample"]) == ("agent_run_error",) * 2 + (True,)
    assert "response" not in row
    assert ran.verifier.executions == []


@pytest.mark.parametrize("sent", [[], 3])
def test_an_agent_refuses_what_is_no_row(sent: Any) -> None:
    assert run(Ran([], answers).row(sent)).status == 422

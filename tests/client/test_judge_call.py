from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from assay.client import JudgeEndpoint, JudgeError, JudgeReply, call_judge
from assay.client.testing import ScriptedVerifier, faults
from assay.client.testing.exchange import Answer, Exchange
from assay.failures import FailureEvent
from jumping import run

NOW = 1_700_000_000.0
CHAT = {"messages": [{"role": "user", "content": "2+2?"}]}
RESPONSES = {"input": "2+2?"}
CHAT_REPLY = {"choices": [{"message": {"content": "4"}}], "usage": {"prompt_tokens": 7, "completion_tokens": 2}}
RESPONSES_REPLY = {
    "output": [
        {"type": "reasoning", "summary": []},
        {"type": "message", "content": [{"type": "output_text", "text": "4"}, {"type": "refusal", "refusal": "no"}]},
    ],
    "usage": {"input_tokens": 7, "output_tokens": 2},
}


def says(body: Any, code: int = 200, **headers: str) -> faults.Fault:
    """The judge's reply."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()

    async def strike(exchange: Exchange) -> None:
        answer = Answer(code, raw, {name.replace("_", "-"): value for name, value in headers.items()})
        await exchange.write(answer.head() + raw)

    return faults.Fault(f"says({code})", strike, executes=False)


def cut() -> faults.Fault:
    """A judgement, cut in its body."""

    async def strike(exchange: Exchange) -> None:
        await exchange.write(Answer(200, json.dumps(CHAT_REPLY).encode()).head() + b"{")
        exchange.close()

    return faults.Fault("cut", strike, executes=False)


class Asked(NamedTuple):
    ended: JudgeReply | FailureEvent
    waits: list[float]
    posts: list[Any]


def asked(
    script: list[faults.Fault],
    request: dict[str, Any],
    check: Callable[[str], object] | None = None,
    **endpoint: Any,
) -> Asked:
    waits: list[float] = []

    async def wait(seconds: float) -> None:
        waits.append(seconds)

    async def main() -> Asked:
        async with ScriptedVerifier(script) as judge:
            place = JudgeEndpoint(judge.url + "/v1", **endpoint)
            ended: JudgeReply | FailureEvent
            try:
                ended = await call_judge(place, request, check=check, sleep=wait, random=lambda: 1.0, now=lambda: NOW)
            except JudgeError as error:
                ended = error
            return Asked(ended, waits, judge.posts)

    return run(main())


@pytest.mark.parametrize(
    ("request_body", "reply", "path"),
    [(CHAT, CHAT_REPLY, "/v1/chat/completions"), (RESPONSES, RESPONSES_REPLY, "/v1/responses")],
)
def test_a_judgement(request_body: dict[str, Any], reply: Any, path: str) -> None:
    ended, waits, posts = asked([says(reply)], request_body, model="m", api_key="sk-1", max_tokens=9)
    assert isinstance(ended, JudgeReply)
    assert (ended.text, ended.input_tokens, ended.output_tokens, ended.body) == ("4", 7, 2, reply)
    assert waits == []
    assert (posts[0].path, posts[0].headers["authorization"]) == (path, "Bearer sk-1")


@pytest.mark.parametrize(
    ("request_body", "sent"),
    [
        (CHAT, {"model": "m", "max_tokens": 9}),
        (RESPONSES, {"model": "m", "max_output_tokens": 9}),
        ({**CHAT, "model": "own", "max_completion_tokens": 3}, {"model": "own", "max_completion_tokens": 3}),
        ({**RESPONSES, "max_output_tokens": 3}, {"model": "m", "max_output_tokens": 3}),
    ],
)
async def test_the_endpoint_fills_in_what_the_request_leaves_open(request_body: Any, sent: Any) -> None:
    bodies = []

    async def strike(exchange: Exchange) -> None:
        bodies.append(exchange.request.json())
        answer = Answer(200, json.dumps(CHAT_REPLY if "messages" in request_body else RESPONSES_REPLY).encode())
        await exchange.write(answer.head() + answer.body)

    async with ScriptedVerifier([faults.Fault("judge", strike, executes=False)]) as judge:
        await call_judge(JudgeEndpoint(judge.url, model="m", max_tokens=9), request_body)
    assert {name: value for name, value in bodies[0].items() if name not in ("messages", "input")} == sent


GOOD = says(CHAT_REPLY)


@pytest.mark.parametrize(
    ("script", "waits", "ends"),
    [
        ([cut(), GOOD], [0.5], "4"),
        ([faults.no_reply("reset"), faults.no_reply("stall"), faults.no_http(), GOOD], [0.5, 1.0, 2.0], "4"),
        ([says({}, 429), says({}, 500), says({}, 503), GOOD], [0.5, 1.0, 2.0], "4"),
        ([says({}, 408), GOOD], [0.5], "4"),
        ([says({}, 500)] * 4, [0.5, 1.0, 2.0], "judge_failed 500 4"),
        ([cut()] * 4, [0.5, 1.0, 2.0], "judge_failed None 4"),
        # The endpoint's own wish, where it is longer.
        ([says({}, 429, retry_after="7"), GOOD], [7.0], "4"),
        ([says({}, 429, retry_after="0"), GOOD], [0.5], "4"),
        ([says({}, 503, retry_after="Tue, 14 Nov 2023 22:13:25 GMT"), GOOD], [5.0], "4"),
        ([says({}, 503, retry_after="Tue, 14 Nov 2023 22:00:00 GMT"), GOOD], [0.5], "4"),
        ([says({}, 429, retry_after="86400"), GOOD], [60.0], "4"),
        ([says({}, 429, retry_after="soon"), GOOD], [0.5], "4"),
        ([says({}, 429, retry_after="nan"), GOOD], [0.5], "4"),
        ([says({}, 429, retry_after="inf"), GOOD], [0.5], "4"),
        # The wish of one reply is not the next one's.
        ([says({}, 429, retry_after="7"), cut(), GOOD], [7.0, 1.0], "4"),
        # Nothing that another attempt changes.
        ([says({"error": "no such model"}, 404), GOOD], [], "judge_failed 404 1"),
        ([says({}, 401), GOOD], [], "judge_failed 401 1"),
        ([faults.redirect_loop(), GOOD], [], "judge_failed 307 1"),
        # The status before the body: a refusal that looks like a judgement is none.
        ([says(CHAT_REPLY, 400)], [], "judge_failed 400 1"),
        # It arrived and cannot be read.
        ([says(b"four")], [], "judge_unparseable None 1"),
        ([says({"choices": []})], [], "judge_unparseable None 1"),
        ([says([])], [], "judge_unparseable None 1"),
        ([says({"choices": [{"message": {"content": None}}]})], [], "judge_unparseable None 1"),
        ([says({"choices": [{"message": {"content": " "}}]})], [], "judge_unparseable None 1"),
        ([says({"choices": [{"message": {"content": "4"}}], "usage": 3})], [], "judge_unparseable None 1"),
        ([says({"choices": [{"message": {"content": "5"}}]})], [], "judge_unparseable None 1"),
        ([says({"choices": [{"message": {"content": [{"type": "text", "text": "4"}]}}]})], [], "4"),
    ],
)
def test_what_becomes_of_a_call(script: list[faults.Fault], waits: list[float], ends: str) -> None:
    def check(text: str) -> None:
        if text != "4":
            raise ValueError("not what was asked for")

    ended, waited, posts = asked(script, CHAT, check)
    assert waited == waits
    assert len(posts) == len(waits) + 1
    if isinstance(ended, JudgeReply):
        assert ended.text == ends
        return
    assert f"{ended.kind} {ended.http_status} {len(ended.earlier) + 1}" == ends
    assert [event.attempt_id for event in [*ended.earlier, ended]] == [str(n + 1) for n in range(len(posts))]
    assert ended.operation == "judge"
    assert ended.__cause__ is not None


@pytest.mark.parametrize("reply", [{"choices": [{"message": {"content": "[" * 100_000}}]}, b"[" * 100_000])
def test_a_reply_that_is_nested_too_deeply_cannot_be_read(reply: Any) -> None:
    ended, waits, _ = asked([says(reply)], CHAT, json.loads)
    assert isinstance(ended, JudgeError)
    assert (ended.kind, waits) == ("judge_unparseable", [])
    assert "recursion" in ended.reason


def test_a_key_never_enters_a_reason() -> None:
    ended, _, _ = asked(
        [says(b"bad key sk-abcdefghijklmnopqrstuvwxyz", 401)], CHAT, api_key="sk-abcdefghijklmnopqrstuvwxyz"
    )
    assert isinstance(ended, JudgeError)
    assert "abcdef" not in str(ended)
    assert "abcdef" not in repr(JudgeEndpoint("http://v", api_key="sk-abcdef"))


async def test_a_cancellation_passes() -> None:
    async with ScriptedVerifier([faults.no_reply("stall")]) as judge:
        task = asyncio.create_task(call_judge(JudgeEndpoint(judge.url), CHAT))
        while not judge.posts:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_it_does_not_use_the_key_of_a_verify_call_around_it() -> None:
    from assay.client import ServerClient, verify_with_transport_retry

    async with ScriptedVerifier([GOOD]) as judge, ServerClient({"v": judge.url}) as client:
        await verify_with_transport_retry(lambda: call_judge(JudgeEndpoint(judge.url), CHAT), client, "v")
    assert "idempotency-key" not in judge.posts[0].headers

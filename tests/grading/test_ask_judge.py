"""A model that a verifier asks: what the verifier gets, what is counted, and what a judge that failed comes to."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import threading
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from assay.failures import FailureEvent
from assay.grading import AskJudge, Judgement, NoSuchJudge, Verdict, grade
from assay.grading.asks import JudgeAsk, Refused, read_header
from assay.grading.broker import Broker
from assay.grading.judging import CALLS_MAX, Judging
from assay.grading.siblings import Setting
from assay.sandbox import Limits
from assay.sandbox.testing import FakeProvider
from assay.verifiers import CannotGrade, ask_judge
from commands import make_task

FAILED = FailureEvent("judge_failed", "HTTP 500", boundary="model", http_status=500)
TOO_LONG = FailureEvent("judge_failed", "HTTP 400: the prompt is too long", boundary="model", http_status=400)
UNREADABLE = FailureEvent("judge_unparseable", "no text", boundary="model")

Judged = Callable[..., Awaitable[Verdict]]


class Judge:
    """An injected judge that replies, or fails, as it is told."""

    def __init__(self, *replies: str | Exception) -> None:
        self.replies = list(replies)
        self.asked: list[tuple[str, str, Any]] = []

    async def __call__(self, name: str, prompt: str, schema: Mapping[str, Any] | None) -> Judgement:
        self.asked.append((name, prompt, schema))
        reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        if isinstance(reply, Exception):
            raise reply
        return Judgement(reply, 10, 3)


@pytest.fixture
def judged(tmp_path: Path) -> Judged:
    async def judged(body: str, judge: AskJudge | None, toml: str = "", **options: Any) -> Verdict:
        code = "from assay.verifiers import *\nimport time\ndef verify(workspace):\n" + "".join(
            f"    {line}\n" for line in body.splitlines()
        )
        workspace = tmp_path / "workspace"
        workspace.mkdir(exist_ok=True)
        options = {"control": False, **options}
        return await grade(
            make_task(tmp_path / "task", code, toml), workspace, judge=judge, state=tmp_path / "state", **options
        )

    return judged


async def test_a_verifier_asks_and_is_answered(judged: Judged) -> None:
    judge = Judge("yes, ü", '{"score": 0.5}')
    verdict = await judged(
        "assert ask_judge('Is it good? ü') == 'yes, ü'\n"
        "import json\n"
        "return json.loads(ask_judge('How good?', schema={'type': 'object'}, judge='strict'))['score']",
        judge,
    )
    assert (verdict.reward, verdict.failure) == (0.5, None)
    assert judge.asked == [
        ("default", "Is it good? ü", None),
        ("strict", "How good?", {"type": "object"}),
    ]
    assert verdict.usage.pop("judge_s") < 60  # type: ignore[attr-defined]  # a dict inside
    assert verdict.usage == {"judge_calls": 2, "judge_input_tokens": 20, "judge_output_tokens": 6}


def test_nothing_is_not_sent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """When the answer is there before the end of the asking, even sending nothing more fails with EPIPE."""

    class Strict(socket.socket):
        def sendall(self, content: Any, *flags: int) -> None:
            assert len(content) > 0
            super().sendall(content, *flags)

    def supervise() -> None:
        peer, _ = listening.accept()
        with peer:
            while b"?" not in peer.recv(1 << 16):
                pass
            text = json.dumps({"assay": 1, "text_len": 3}).encode()
            peer.sendall(struct.pack(">I", len(text)) + text + b"yes")

    place = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(place)
        listening.listen()
        supervisor = threading.Thread(target=supervise)
        supervisor.start()
        monkeypatch.setattr(socket, "socket", Strict)
        monkeypatch.setenv("ASSAY_BROKER", place)
        assert ask_judge("?") == "yes"
        supervisor.join()


SWALLOWS = "try:\n    ask_judge('?')\nexcept Exception as error:\n    print(type(error).__name__, error)\nreturn 0"
TELLS = "ask_judge('?')\nreturn 1"
INSISTS = "try:\n    ask_judge('?')\nexcept CannotGrade:\n    pass\nreturn float(ask_judge('?') == 'yes')"


@pytest.mark.parametrize(
    ("body", "discarded"), [(SWALLOWS, 0.0), (TELLS, None), (INSISTS, 1.0)], ids=["swallowed", "told", "asked again"]
)
async def test_a_failed_judge_is_never_a_zero(judged: Judged, body: str, discarded: float | None) -> None:
    judge = Judge(FAILED, "yes")
    verdict = await judged(body, judge)
    assert (verdict.status, verdict.reward, verdict.caused_by) == ("failed", None, "infrastructure")
    assert verdict.failure is not None
    assert verdict.failure["kind"] == "judge_failed"
    assert verdict.failure["event_id"] == FAILED.event_id
    assert verdict.discarded_reward == discarded
    # The call was tried again where it was made: the verification is not, at once.
    assert len(judge.asked) == (2 if body is INSISTS else 1)
    if body is SWALLOWS:
        assert verdict.log_tail == "CannotGrade ask_judge: HTTP 500\n"


async def test_a_prompt_that_the_endpoint_refuses_may_be_the_submissions_doing(judged: Judged) -> None:
    """Writing so much that no judge takes it must not mask a bad answer: it is settled by evidence, like any crash."""
    verdict = await judged(SWALLOWS, Judge(TOO_LONG))
    assert (verdict.status, verdict.caused_by, verdict.provisional) == ("failed", "unknown", True)
    assert verdict.failure is not None
    assert verdict.failure["kind"] == "judge_failed"


UNREADABLE_IS_WRONG = "try:\n    ask_judge('?')\nexcept JudgeUnparseable:\n    return 0.25"


async def test_what_an_unreadable_reply_is_worth_is_the_verifiers_to_say(judged: Judged) -> None:
    verdict = await judged(UNREADABLE_IS_WRONG, Judge(UNREADABLE))
    assert (verdict.reward, verdict.failure) == (0.25, None)


async def test_a_reply_that_is_no_text_is_unreadable(judged: Judged) -> None:
    verdict = await judged(UNREADABLE_IS_WRONG, Judge("half a character: \ud83d"))
    assert (verdict.reward, verdict.failure) == (0.25, None)


async def test_and_by_itself_it_is_a_failure(judged: Judged) -> None:
    verdict = await judged(TELLS, Judge(UNREADABLE))
    assert verdict.failure is not None
    assert (verdict.status, verdict.failure["kind"]) == ("failed", "verifier_error")
    assert "JudgeUnparseable" in verdict.failure["reason"]


@pytest.mark.parametrize(
    ("judge", "said"),
    [
        (None, "started without any"),
        (Judge(NoSuchJudge("no judge is named 'default'")), "no judge is named 'default'"),
    ],
    ids=["none at all", "none of this name"],
)
async def test_a_judge_that_there_is_not_is_no_fault(judged: Judged, judge: AskJudge | None, said: str) -> None:
    """Whoever got hold of the socket may ask for it: that must not mask a verdict."""
    hidden = SWALLOWS.replace("ask_judge('?')", "globals()['ask_' + 'judge']('?')")
    verdict = await judged(hidden, judge)
    assert (verdict.reward, verdict.failure) == (0.0, None)
    assert verdict.log_tail.startswith("RuntimeError ask_judge: ")
    assert said in verdict.log_tail


@pytest.mark.parametrize("body", [SWALLOWS, TELLS])
async def test_without_any_judge_a_verifier_that_asks_one_grades_nobody(judged: Judged, body: str) -> None:
    """To forget `--judge` must not become a zero that trains, however well the verifier is known to work."""
    verdict = await judged(body, None, control=True)
    assert (verdict.status, verdict.reward, verdict.caused_by) == ("failed", None, None)
    assert verdict.failure is not None
    assert verdict.failure["kind"] == "judge_failed"
    assert "--judge NAME=URL" in verdict.failure["reason"]


async def test_a_judge_that_takes_all_the_time_is_at_fault(judged: Judged) -> None:
    async def never(name: str, prompt: str, schema: Any) -> Judgement:
        await asyncio.Event().wait()
        raise AssertionError

    verdict = await judged(TELLS, never, "[verifier]\ntimeout_sec = 1.0\n")
    assert verdict.failure is not None
    assert (verdict.failure["kind"], verdict.caused_by) == ("judge_failed", "infrastructure")
    assert "when the verification's time was over" in verdict.failure["reason"]


async def test_one_that_is_asked_at_the_end_is_not(judged: Judged) -> None:
    async def never(name: str, prompt: str, schema: Any) -> Judgement:
        await asyncio.Event().wait()
        raise AssertionError

    verdict = await judged("time.sleep(1.2)\n" + TELLS, never, "[verifier]\ntimeout_sec = 2.0\n")
    assert verdict.failure is not None
    assert verdict.failure["kind"] != "judge_failed"
    assert verdict.caused_by == "unknown"


async def test_hanging_up_ends_the_call(tmp_path: Path) -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def slow(name: str, prompt: str, schema: Any) -> Judgement:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        raise AssertionError

    async with Broker(Setting(FakeProvider(), None, "/app", tmp_path, Limits()), slow) as broker:
        broker.begin(600)
        loop = asyncio.get_running_loop()
        with socket.socket(socket.AF_UNIX) as peer:
            peer.setblocking(False)
            await loop.sock_connect(peer, str(broker.mount.source))
            text = json.dumps(
                {"assay": 1, "ask": "judge", "judge": "default", "prompt_len": 1, "schema_len": 0}
            ).encode()
            await loop.sock_sendall(peer, struct.pack(">I", len(text)) + text + b"?")
            await begun.wait()
        await ended.wait()
        assert (broker.fault, broker.judging.failure) == (None, None)


@pytest.mark.parametrize(
    ("prompt", "schema", "error", "said"),
    [
        (b"\xff", b"", "malformed", "not UTF-8"),
        (b"?", b"{", "malformed", "the schema"),
        (b"?", b"[]", "malformed", "must be a JSON object"),
        (b"?", b'{"a": NaN}', "malformed", "the schema"),
    ],
)
async def test_a_bad_ask_is_refused_and_not_made(prompt: bytes, schema: bytes, error: str, said: str) -> None:
    judge = Judge("yes")
    judging = Judging(judge)
    judging.begin(60)
    with pytest.raises(Refused, match=said) as caught:
        await judging.ask("default", prompt, schema)
    assert caught.value.error == error
    assert judge.asked == []
    assert judging.usage() == {}


async def test_the_call_after_the_last_is_refused() -> None:
    judge = Judge("yes")
    judging = Judging(judge)
    judging.begin(60)
    for _ in range(CALLS_MAX):
        await judging.ask("default", b"?", b"")
    with pytest.raises(Refused, match="200 times") as caught:
        await judging.ask("default", b"?", b"")
    assert caught.value.error == "limit"
    assert (len(judge.asked), judging.usage()["judge_calls"]) == (CALLS_MAX, CALLS_MAX)


async def test_a_reply_without_end_is_unreadable() -> None:
    judging = Judging(Judge("x" * 2_000_000))
    judging.begin(60)
    with pytest.raises(Refused) as caught:
        await judging.ask("default", b"?", b"")
    assert caught.value.error == "unparseable"


HEADER = {"assay": 1, "ask": "judge", "judge": "default", "prompt_len": 5, "schema_len": 0}


def test_a_good_header_is_taken() -> None:
    assert read_header(json.dumps(HEADER).encode(), "/app") == JudgeAsk("default", 5, 0)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"judge": None}, "malformed"),
        ({"judge": ""}, "malformed"),
        ({"judge": "x" * 101}, "malformed"),
        ({"judge": 1}, "malformed"),
        ({"prompt_len": 0}, "malformed"),
        ({"prompt_len": True}, "malformed"),
        ({"prompt_len": (4 << 20) + 1}, "too_large"),
        ({"schema_len": -1}, "malformed"),
        ({"schema_len": None}, "malformed"),
        ({"schema_len": (64 << 10) + 1}, "too_large"),
        ({"argv_len": 2}, "malformed"),
        ({"api_key": "x"}, "malformed"),
    ],
)
def test_a_bad_header_is_refused_with_a_type(changes: dict[str, Any], error: str) -> None:
    with pytest.raises(Refused) as caught:
        read_header(json.dumps({**HEADER, **changes}).encode(), "/app")
    assert caught.value.error == error


@pytest.mark.parametrize(
    ("arguments", "options", "error"),
    [
        ((b"?",), {}, TypeError),
        ((" ",), {}, ValueError),
        (("x" * 5_000_000,), {}, ValueError),
        (("?",), {"judge": ""}, ValueError),
        (("?",), {"judge": 3}, ValueError),
        (("?",), {"schema": {"a": float("nan")}}, ValueError),
        (("?",), {"schema": {"a": "x" * 70_000}}, ValueError),
        # Under another harness there is nobody to ask.
        (("?",), {}, CannotGrade),
    ],
)
def test_what_cannot_be_asked(
    monkeypatch: pytest.MonkeyPatch, arguments: Any, options: Any, error: type[Exception]
) -> None:
    monkeypatch.delenv("ASSAY_BROKER", raising=False)
    with pytest.raises(error):
        ask_judge(*arguments, **options)

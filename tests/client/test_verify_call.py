"""What decides whether a verify call is sent again. The faults themselves are in `tests/faults/`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

import aiohttp
import pytest
from yarl import URL

from assay.client import (
    ServerClient,
    StatusError,
    idempotency_key,
    is_verify_transport_error,
    masked_verify_failure,
    verify_call,
    verify_route_failure,
    verify_with_transport_retry,
)
from assay.client.testing import ScriptedVerifier, faults
from assay.failures import FailureEvent, rebuild_failure
from jumping import run

INFO = aiohttp.RequestInfo(URL("http://v/verify"), "POST", {}, URL("http://v/verify"))  # type: ignore[arg-type]  # no headers
KEY = aiohttp.client_reqrep.ConnectionKey("v", 80, False, True, None, None, None)  # type: ignore[attr-defined]  # not exported


def no_http() -> aiohttp.ClientResponseError:
    error = aiohttp.ClientResponseError(INFO, (), status=400, message="Bad status line")
    error.__cause__ = aiohttp.http_exceptions.BadStatusLine("garbage")  # type: ignore[attr-defined]  # not exported
    return error


class Said(NamedTuple):
    status: int
    body: Any

    def json(self) -> Any:
        return self.body


class AwaitedSaid(NamedTuple):
    status: int
    body: Any

    async def json(self) -> Any:
        return self.body


class Asked:
    """Somebody else's client: nothing but `get`. Each path is answered by the next of its answers, the last one for ever."""

    def __init__(self, **answers: Any) -> None:
        self.answers = {path: list(said) if isinstance(said, list) else [said] for path, said in answers.items()}
        self.asked: list[str] = []

    async def get(self, name: str, path: str) -> Any:
        assert name == "v"
        self.asked.append(path.removeprefix("/"))
        left = self.answers.get(path.removeprefix("/"), [Said(404, {})])
        said = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(said, BaseException):
            raise said
        return said


class Calls:
    """A `call` that raises or returns what it is told, one after the other."""

    def __init__(self, *outcomes: Any, keyed: bool = False) -> None:
        self.outcomes = list(outcomes)
        self.keyed = keyed
        self.made = 0
        self.keys: set[str | None] = set()

    async def __call__(self) -> Any:
        self.made += 1
        if self.keyed:
            self.keys.add(idempotency_key())
        outcome = self.outcomes.pop(0) if len(self.outcomes) > 1 else self.outcomes[0]
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome


async def no_wait(seconds: float) -> None:
    pass


async def verified(call: Callable[[], Awaitable[Any]], client: Any, **options: Any) -> Any:
    """The reply, or the failure."""
    try:
        return await verify_with_transport_retry(call, client, "v", **{"sleep": no_wait, **options})
    except FailureEvent as failure:
        return failure


@pytest.mark.parametrize("attempt", [1, 2, 3, 4, 5, 6, 1000])
def test_the_wait_is_full_jitter(attempt: int) -> None:
    longest = [0.5, 1.0, 2.0, 4.0, 8.0][min(attempt, 5) - 1]
    assert verify_call._retry_wait_s(attempt, lambda: 0.0) == 0.0
    assert verify_call._retry_wait_s(attempt, lambda: 0.5) == longest / 2
    assert verify_call._retry_wait_s(attempt, lambda: 1.0) == longest
    assert 0 <= verify_call._retry_wait_s(attempt) <= longest


CERTIFICATE = aiohttp.ClientConnectorCertificateError(KEY, Exception("untrusted"))


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (aiohttp.ClientPayloadError(), True),
        (aiohttp.ServerDisconnectedError(), True),
        (aiohttp.ClientOSError(104, "reset"), True),
        (aiohttp.ClientConnectorError(KEY, OSError(111, "refused")), True),
        (aiohttp.ConnectionTimeoutError(), True),
        (aiohttp.SocketTimeoutError(), True),
        (ConnectionResetError(), True),
        (TimeoutError(), True),
        (no_http(), True),
        (CERTIFICATE, False),
        (aiohttp.ClientConnectorSSLError(KEY, OSError(1, "wrong version")), False),
        (aiohttp.ServerFingerprintMismatch(b"a", b"b", "v", 443), False),
        (aiohttp.ClientResponseError(INFO, (), status=502), False),
        (aiohttp.ClientResponseError(INFO, (), status=400), False),
        (aiohttp.ContentTypeError(INFO, (), status=200), False),
        (aiohttp.TooManyRedirects(INFO, (), status=307), False),
        (aiohttp.InvalidURL("x"), False),
        (ValueError(), False),
        (asyncio.CancelledError(), False),
        (KeyboardInterrupt(), False),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else str(value),
)
def test_which_errors_are_a_lost_reply(error: BaseException, expected: bool) -> None:
    assert is_verify_transport_error(error) is expected


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (Said(200, "stateless"), True),
        (AwaitedSaid(200, "stateless"), True),
        (Said(200, "unsupported"), False),
        (Said(200, "unknown"), False),
        (Said(200, {"mode": "stateless"}), False),
        (Said(200, None), False),
        (Said(404, "stateless"), False),
        (Said(307, "stateless"), False),
        (ValueError("no JSON"), False),
        (KeyError("no such server"), False),
        (CERTIFICATE, False),
        # No answer, for now.
        (Said(503, {}), None),
        (Said(502, "stateless"), None),
        (Said(429, {}), None),
        (aiohttp.ClientConnectorError(KEY, OSError(111, "refused")), None),
        (aiohttp.ClientPayloadError(), None),
        (TimeoutError(), None),
    ],
    ids=str,
)
async def test_what_the_verifier_says(said: Any, expected: bool | None) -> None:
    assert await verify_call._stateless_verifier(Asked(reverify_mode=said), "v") is expected


def test_a_verifier_that_does_not_answer_is_not_waited_for() -> None:
    class Silent:
        async def get(self, name: str, path: str) -> Any:
            await asyncio.Event().wait()

    async def asking() -> bool | None:
        return await verify_call._stateless_verifier(Silent(), "v")

    assert run(asking()) is None


LOST = aiohttp.ClientPayloadError("cut")
REFUSED = aiohttp.ClientConnectorError(KEY, OSError(111, "refused"))
AWAY = aiohttp.ClientConnectorError(KEY, OSError(111, "restarting"))
STATELESS, UNSUPPORTED = Said(200, "stateless"), Said(200, "unsupported")
KEYS, NO_KEYS = Said(200, {"idempotency": True}), Said(200, {"idempotency": False})
BY_A_PROXY = StatusError(502, {}, "HTTP 502")
SIGNED = StatusError(502, {"x-assay-verifier": "1"}, "HTTP 502")


class Case(NamedTuple):
    name: str
    outcomes: Sequence[Any]
    mode: Any
    keys: Any
    keyed: bool
    made: int
    """Calls made."""
    asked: str
    """What the verifier was asked, in order: the first letters."""
    ends: Any
    """The reply, or the status of the failure."""


# fmt: off
CASES = [
    Case("answered: nothing is asked", ["ok"], STATELESS, KEYS, True, 1, "", "ok"),
    Case("undelivered: nothing is asked", [REFUSED, REFUSED, REFUSED, "ok"], UNSUPPORTED, NO_KEYS, False, 4, "", "ok"),
    Case("undelivered for ever", [REFUSED], UNSUPPORTED, NO_KEYS, False, 4, "", None),
    Case("a definite answer is kept", [LOST, LOST, LOST, "ok"], STATELESS, KEYS, True, 4, "r", "ok"),
    Case("both definite answers are kept", [LOST, LOST, LOST, "ok"], UNSUPPORTED, KEYS, True, 4, "rc", "ok"),
    Case("no is final", [LOST, "ok"], UNSUPPORTED, NO_KEYS, True, 1, "rc", None),
    Case("a key that was not sent buys nothing", [LOST, "ok"], UNSUPPORTED, KEYS, False, 1, "r", None),
    Case("lost, then refused", [LOST, REFUSED, "ok"], STATELESS, NO_KEYS, True, 3, "r", "ok"),
    Case("refused, then lost", [REFUSED, LOST, "ok"], UNSUPPORTED, NO_KEYS, True, 2, "rc", None),
    Case("asked again after a restart", [LOST, "ok"], [AWAY, STATELESS], KEYS, False, 2, "rr", "ok"),
    Case("asked again after a restart: no", [LOST, "ok"], [AWAY, UNSUPPORTED], NO_KEYS, False, 1, "rr", None),
    Case("keys are enough while the other is away", [LOST, "ok"], [AWAY], KEYS, True, 2, "rc", "ok"),
    Case("no keys is not enough", [LOST, "ok"], [AWAY, AWAY, STATELESS], NO_KEYS, True, 2, "rcrr", "ok"),
    Case("away for ever: never sent again", [LOST, "ok"], [AWAY], [AWAY], True, 1, "rcrcrcrc", None),
    Case("an answer that is no success", [SIGNED], STATELESS, KEYS, True, 1, "", 502),
    Case("a proxy before one that keeps keys", [BY_A_PROXY, "ok"], UNSUPPORTED, KEYS, True, 2, "c", "ok"),
    Case("a proxy, the request without the key", [BY_A_PROXY, "ok"], UNSUPPORTED, KEYS, False, 1, "cr", None),
    Case("the same, of a stateless one", [BY_A_PROXY, "ok"], STATELESS, KEYS, False, 2, "cr", "ok"),
    Case("no keys: its own word", [BY_A_PROXY, "ok"], STATELESS, NO_KEYS, True, 1, "c", 502),
    Case("the proxy answers the questions, too", [BY_A_PROXY, "ok"], UNSUPPORTED, [Said(502, ""), KEYS], True, 2, "cc", "ok"),
    Case("for ever", [BY_A_PROXY, "ok"], UNSUPPORTED, Said(502, ""), True, 1, "cccc", 502),
    Case("not from a transport: at once", [ValueError("no JSON"), "ok"], STATELESS, KEYS, True, 1, "", None),
    Case("the call's own failure", [FailureEvent("verifier_error", "x", http_status=500)], STATELESS, KEYS, True, 1, "", 500),
    Case("no HTTP has no status", [no_http(), "ok"], UNSUPPORTED, NO_KEYS, False, 1, "r", None),
    Case("a redirect loop, followed", [aiohttp.TooManyRedirects(INFO, (), status=307)], STATELESS, KEYS, True, 1, "", 307),
]
# fmt: on


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_when_it_is_sent_again(case: Case) -> None:
    client = Asked(reverify_mode=case.mode, capabilities=case.keys)
    call = Calls(*case.outcomes, keyed=case.keyed)
    ended = await verified(call, client)
    ends = ended.http_status if isinstance(ended, FailureEvent) else ended
    asked = "".join(path[0] for path in client.asked)
    assert (call.made, asked, ends) == (case.made, case.asked, case.ends)
    assert len(call.keys) == (1 if case.keyed else 0)
    if isinstance(ended, FailureEvent):
        assert [event.attempt_id for event in [*ended.earlier, ended]] == [str(n + 1) for n in range(case.made)]
        assert ended.__cause__ is case.outcomes[min(case.made, len(case.outcomes)) - 1]


async def test_a_proxy_status_that_was_transport_is_kept_as_a_detail() -> None:
    ended = await verified(Calls(BY_A_PROXY, keyed=True), Asked(reverify_mode=UNSUPPORTED, capabilities=KEYS))
    assert [(event.http_status, event.details) for event in [*ended.earlier, ended]] == [
        (None, {"proxy_status": 502})
    ] * 4
    assert masked_verify_failure({}, ended)["_ng_failure_class"] == "agent_route_failed"


async def test_a_cancellation_is_never_tried_again_and_never_wrapped() -> None:
    call = Calls(asyncio.CancelledError())
    with pytest.raises(asyncio.CancelledError):
        await verify_with_transport_retry(call, Asked(reverify_mode=STATELESS), "v", sleep=no_wait)
    assert call.made == 1


async def test_a_task_cancelled_while_it_waits_ends() -> None:
    waiting = asyncio.Event()

    async def wait(seconds: float) -> None:
        waiting.set()
        await asyncio.Event().wait()

    call = Calls(LOST)
    task = asyncio.create_task(verify_with_transport_retry(call, Asked(reverify_mode=STATELESS), "v", sleep=wait))
    await waiting.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert call.made == 1


def test_the_key_is_there_only_while_the_call_runs() -> None:
    call = Calls("ok", keyed=True)

    async def main() -> None:
        assert idempotency_key() is None
        await verify_with_transport_retry(call, Asked(), "v")
        await verify_with_transport_retry(call, Asked(), "v")
        assert idempotency_key() is None

    run(main())
    assert len(call.keys - {None}) == 2


def test_attempts_and_waits_fit_into_the_deadline() -> None:
    async def main() -> tuple[Any, float, int]:
        loop = asyncio.get_running_loop()
        began = loop.time()

        async def call() -> Any:
            nonlocal made
            made += 1
            await asyncio.sleep(3)
            raise LOST

        made = 0
        ended = await verified(
            call, Asked(reverify_mode=STATELESS), sleep=asyncio.sleep, random=lambda: 1.0, timeout_s=8.0
        )
        return ended, loop.time() - began, made

    ended, took_s, made = run(main())
    # 3, a wait of 0.5, 3, a wait of 1, and half a second of the third.
    assert made == 3
    assert isinstance(ended.__cause__, TimeoutError)
    assert [type(event.__cause__) for event in ended.earlier] == [aiohttp.ClientPayloadError] * 2
    assert 7.9 < took_s < 8.5


def test_a_wait_past_the_deadline_is_not_begun() -> None:
    async def main() -> Any:
        return await verified(Calls(REFUSED), Asked(), random=lambda: 1.0, timeout_s=1.2)

    # After the second, a second's wait would be too long: the injected waits take no time, the first 0.5 s did not count.
    ended = run(main())
    assert ended.attempt_id == "3"


def test_asking_the_verifier_ends_with_the_deadline_too() -> None:
    class Silent:
        async def get(self, name: str, path: str) -> Any:
            await asyncio.Event().wait()

    async def main() -> tuple[Any, float]:
        loop = asyncio.get_running_loop()
        began = loop.time()
        return await verified(Calls(LOST), Silent(), timeout_s=2.0), loop.time() - began

    ended, took_s = run(main())
    assert ended.attempt_id == "1"
    assert took_s < 2.5


def test_the_servers_own_failure_is_linked() -> None:
    """A reply with a failure report: the event's cause is what the server reported."""
    below = FailureEvent("provider_unavailable", "no sandbox", boundary="resources_server")

    async def main() -> Any:
        from assay.failures import HEADER_NAME, encode_header, failure_report_for

        header = {HEADER_NAME: encode_header(failure_report_for(below))}

        async def strike(exchange: Any) -> None:
            answer = type(exchange.answer)(503, b"{}", header)
            await exchange.write(answer.head() + answer.body)

        async with (
            ScriptedVerifier([faults.Fault("reported", strike)]) as verifier,
            ServerClient({"v": verifier.url}) as client,
        ):

            async def call() -> Any:
                (await client.post("v", "/verify", json={})).raise_for_status()

            return await verified(call, client)

    ended = run(main())
    assert (ended.cause_id, ended.http_status) == (below.event_id, 503)
    row = masked_verify_failure({}, ended)
    events = row["_ng_failure_events"]
    assert [events[id_]["kind"] for id_ in events] == ["agent_route_failed", "provider_unavailable"]
    rebuilt = rebuild_failure({"failure_id": row["_ng_failure_id"], "events": list(events.values())})
    assert rebuilt.cause_id == below.event_id


ANSWER = {
    "task_id": "t",
    "response": {"output_text": "4"},
    "workspace": {"snapshot": "sha256:1"},
    "_ng_rollout_index": 3,
}


def after(error: Exception, attempts: int = 1) -> FailureEvent:
    events = [verify_route_failure(error, "op", number + 1) for number in range(attempts)]
    events[-1].earlier = events[:-1]
    return events[-1]


@pytest.mark.parametrize(
    ("failure", "regradable", "recovery", "terminal"),
    [
        (after(LOST), True, "agent_route_failed", False),
        (after(StatusError(500, {}, "")), True, "judge_failed", False),
        (after(StatusError(503, {}, "")), True, "judge_failed", False),
        (after(aiohttp.ClientResponseError(INFO, (), status=502)), True, "judge_failed", False),
        (after(StatusError(429, {}, "")), True, "judge_failed", False),
        (after(StatusError(404, {}, "")), True, "agent_route_failed", False),
        (after(StatusError(422, {}, "")), True, "agent_route_failed", False),
        (after(StatusError(307, {}, "")), True, "agent_route_failed", False),
        (after(ValueError("no JSON")), True, "agent_route_failed", False),
        (after(StatusError(500, {}, "")), False, "agent_route_failed", True),
        (after(LOST), False, "agent_route_failed", True),
        # Of an agent that failed before it had anything verified.
        (FailureEvent("agent_timeout", "too slow", boundary="agent", stage="agent"), True, "agent_timeout", False),
        (RuntimeError("a bug"), True, "agent_run_error", False),
    ],
)
def test_a_masked_row(failure: Exception, regradable: bool, recovery: str, terminal: bool) -> None:
    row = masked_verify_failure(ANSWER, failure, regradable=regradable)
    assert {name: row[name] for name in ANSWER} == ANSWER
    assert (row["reward"], row["mask_sample"]) == (0.0, True)
    assert (row["_ng_failure_class"], row["_ng_failure_terminal"]) == (recovery, terminal)
    ended = row["_ng_failure_events"][row["_ng_failure_id"]]
    assert (row["failure_kind"], row["failure_reason"]) == (ended["kind"], ended["reason"])


def test_a_masked_row_has_every_attempt_and_nothing_of_an_older_verdict() -> None:
    row = masked_verify_failure({**ANSWER, "reward": 1.0, "mask_sample": False}, after(LOST, 4))
    assert sorted(event["attempt_id"] for event in row["_ng_failure_events"].values()) == ["1", "2", "3", "4"]
    assert row["_ng_failure_events"][row["_ng_failure_id"]]["attempt_id"] == "4"
    assert (row["reward"], row["mask_sample"]) == (0.0, True)

"""The judge call: a model is asked to grade, at an OpenAI-compatible endpoint.

The status is checked before anything is parsed. A lost reply, 408, 429 and 5xx are tried again with the verify call's own
schedule; `Retry-After` lengthens a wait. Asking a model twice costs tokens and alters nothing, so no evidence is needed.
"""

from __future__ import annotations

import asyncio
import math
import random as _random
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any, Final

from aiohttp import ClientPayloadError
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, stop_after_attempt

from assay.client.backoff import retry_wait_s
from assay.client.delivery import is_lost_in_transport
from assay.client.operation import running
from assay.client.reply import Reply, StatusError
from assay.client.server_client import CONNECT_S, ServerClient, require_url
from assay.failures import FailureEvent
from assay.failures.event import describe_error
from assay.failures.kinds import JUDGE_FAILED, JUDGE_UNPARSEABLE

JUDGE_CALL_MAX_ATTEMPTS: Final = 4

RETRY_AFTER_MAX_S: Final = 60.0
"""The longest `Retry-After` that is waited for; who asks for more is asked again after this."""

_AGAIN: Final = frozenset({408, 429})
_CHAT: Final = "/chat/completions"
_RESPONSES: Final = "/responses"
_NAME: Final = "judge"


@dataclass(frozen=True, slots=True)
class JudgeEndpoint:
    """Where a judge is, and how it may be used."""

    base_url: str
    """Up to and with the version: `https://host/v1`."""
    model: str | None = None
    """The model of requests that name none."""
    api_key: str | None = field(default=None, repr=False)
    max_tokens: int | None = None
    """Of one reply, for requests that say nothing else."""
    timeout_s: float = 300.0
    """For one attempt."""

    def __post_init__(self) -> None:
        """Raises `ValueError` for a base URL that is none."""
        require_url("base_url", self.base_url)


@dataclass(frozen=True, slots=True)
class JudgeReply:
    """What a judge said."""

    text: str
    input_tokens: int
    """As the endpoint counts them; 0 where it does not."""
    output_tokens: int
    body: Mapping[str, Any] = field(repr=False)
    """The whole reply."""


class JudgeError(FailureEvent):
    """There is no judgement.

    `judge_failed`: no reply to be had. `judge_unparseable`: a reply that cannot be read as asked; whether that is a wrong
    answer or a failure is the caller's choice, and who does nothing about it has a failure.
    """


class _TryLater(JudgeError):
    """A failure that may pass, and how long the endpoint asks to wait."""

    retry_after_s: float = 0.0


async def call_judge(
    endpoint: JudgeEndpoint,
    request: Mapping[str, Any],
    *,
    check: Callable[[str], object] | None = None,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    random: Callable[[], float] = _random.random,
    now: Callable[[], float] = time.time,
) -> JudgeReply:
    """What the judge replied to `request`: the body of a Chat Completions call (it has `messages`), or of a Responses call.

    The endpoint's model and `max_tokens` are filled in where the request says nothing. `check` is given the text and
    raises `ValueError` for one that cannot be used. Raises `JudgeError`: `judge_failed` after `JUDGE_CALL_MAX_ATTEMPTS`
    attempts, or at once for a refusal that no second attempt changes; `judge_unparseable` for a reply that arrived and
    cannot be read. A cancellation passes as it is. `sleep` takes seconds, `random` gives numbers in [0, 1), `now` is the
    time in seconds since the epoch.
    """
    path = _CHAT if "messages" in request else _RESPONSES
    body = _filled(endpoint, request, path)
    failures: list[FailureEvent] = []

    def wait(state: RetryCallState) -> float:
        asked = getattr(failures[-1], "retry_after_s", 0.0)
        return max(retry_wait_s(state.attempt_number, random), asked)

    async def attempt() -> JudgeReply:
        try:
            return _read(_parsed(await _post(client, path, body, now)), path, check)
        except JudgeError as failure:
            failure.attempt_id = str(len(failures) + 1)
            failure.earlier = list(failures)
            failures.append(failure)
            raise

    client = ServerClient(
        {_NAME: endpoint.base_url}, endpoint.api_key, CONNECT_S, endpoint.timeout_s, total_s=endpoint.timeout_s
    )
    retrying = AsyncRetrying(
        stop=stop_after_attempt(JUDGE_CALL_MAX_ATTEMPTS),
        wait=wait,
        retry=retry_if_exception_type(_TryLater),
        sleep=sleep,
        reraise=True,
    )
    # A verify call that surrounds this one has its key for the verifier alone.
    with running(None):
        async with client:
            return await retrying(attempt)


def _filled(endpoint: JudgeEndpoint, request: Mapping[str, Any], path: str) -> dict[str, Any]:
    body = dict(request)
    if endpoint.model is not None:
        body.setdefault("model", endpoint.model)
    limits = ("max_tokens", "max_completion_tokens") if path == _CHAT else ("max_output_tokens",)
    if endpoint.max_tokens is not None and not any(name in body for name in limits):
        body[limits[0]] = endpoint.max_tokens
    return body


async def _post(client: ServerClient, path: str, body: Mapping[str, Any], now: Callable[[], float]) -> Reply:
    """A reply that is a success. Raises `JudgeError`, from its cause."""
    try:
        reply = await client.post(_NAME, path, json=body)
        reply.raise_for_status()
    except StatusError as error:
        failure = _failure(
            JUDGE_FAILED, error, _TryLater if error.status in _AGAIN or error.status >= 500 else JudgeError
        )
        failure.http_status = error.status
        if isinstance(failure, _TryLater):
            failure.retry_after_s = _retry_after_s(error.headers.get("Retry-After"), now())
        raise failure from error
    except Exception as error:
        raise _failure(JUDGE_FAILED, error, _TryLater if is_lost_in_transport(error) else JudgeError) from error
    return reply


def _parsed(reply: Reply) -> Any:
    try:
        return reply.json()
    except ValueError as error:
        raise _failure(JUDGE_UNPARSEABLE, error, JudgeError) from error
    except ClientPayloadError as error:
        raise _failure(JUDGE_FAILED, error, _TryLater) from error


def _read(body: Any, path: str, check: Callable[[str], object] | None) -> JudgeReply:
    try:
        text = _chat_text(body) if path == _CHAT else _responses_text(body)
        if check is not None:
            check(text)
        usage = body.get("usage") or {}
        return JudgeReply(
            text,
            _count(usage, "prompt_tokens", "input_tokens"),
            _count(usage, "completion_tokens", "output_tokens"),
            body,
        )
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise _failure(JUDGE_UNPARSEABLE, error, JudgeError) from error


def _chat_text(body: Any) -> str:
    content = body["choices"][0]["message"]["content"]
    if isinstance(content, list):
        content = "".join(part["text"] for part in content if part.get("type") == "text")
    return _said(content)


def _responses_text(body: Any) -> str:
    parts = [part for item in body["output"] if item.get("type") == "message" for part in item["content"]]
    return _said("".join(part["text"] for part in parts if part.get("type") == "output_text"))


def _said(text: Any) -> str:
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"the reply has no text: {text!r:.200}")
    return text


def _count(usage: Mapping[str, Any], *names: str) -> int:
    found = next((usage[name] for name in names if name in usage), 0)
    return found if isinstance(found, int) and found > 0 else 0


def _failure(kind: str, error: Exception, which: type[JudgeError]) -> JudgeError:
    return which(kind, describe_error(error), boundary="model", stage="verification", operation="judge")


def _retry_after_s(value: str | None, now: float) -> float:
    """Seconds that a `Retry-After` asks for (a number, or a date), at most `RETRY_AFTER_MAX_S`; 0 for what is neither."""
    if value is None:
        return 0.0
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(value).timestamp() - now
        except ValueError:
            return 0.0
    return min(max(seconds, 0.0), RETRY_AFTER_MAX_S) if math.isfinite(seconds) else 0.0

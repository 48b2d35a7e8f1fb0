"""The verify call: tried again when its reply was lost, and only when that is provably harmless.

    surely not delivered                     sent again to anyone
    may have been delivered, no reply        sent again when the verifier says `stateless`, or keeps idempotency keys and
                                             the request carried one
    a reply of any status                    the verifier's own answer: never again
    502, 503, 504 without its signature,
    from a verifier that keeps keys          a proxy's word: a reply lost in transport

At most `VERIFY_CALL_MAX_ATTEMPTS` attempts, with full jitter between them. Each failed one is an event of its own.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import random as _random
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NoReturn, Protocol, TypeVar

from tenacity import AsyncRetrying, RetryCallState

from assay.client.backoff import retry_wait_s
from assay.client.delivery import TRANSPORT_ERRORS, is_lost_in_transport, is_no_http, may_be_delivered, unsigned_status
from assay.client.operation import Operation, running
from assay.failures import FailureEvent, event_for, failure_report_for, verify_route_failure
from assay.failures.kinds import AGENT_ROUTE_FAILED, JUDGE_FAILED

__all__ = [
    "VERIFY_CALL_MAX_ATTEMPTS",
    "Asked",
    "is_verify_transport_error",
    "masked_verify_failure",
    "verify_route_failure",
    "verify_with_transport_retry",
]

VERIFY_CALL_MAX_ATTEMPTS: Final = 4

PROBE_S: Final = 10.0
"""How long the verifier may take to say what may be sent to it again."""

_TRANSPORT_ERRORS = TRANSPORT_ERRORS
_retry_wait_s = retry_wait_s
_TOO_MANY_REQUESTS: Final = 429

Result = TypeVar("Result")


class Asked(Protocol):
    """What the verify call needs of a client: to ask the verifier what may be sent to it again."""

    def get(self, name: str, path: str, /) -> Awaitable[Any]:
        """A reply with `status` and `json()`, plain or awaitable."""


def is_verify_transport_error(error: BaseException) -> bool:
    """Whether the reply was lost on its way (or the request, on its), and a second attempt might get one.

    True for `_TRANSPORT_ERRORS` and for a reply that is no HTTP; False for errors of certificates and TLS, which no second
    attempt mends, for a reply of any status, and for whatever is no `Exception`.
    """
    return isinstance(error, Exception) and is_lost_in_transport(error)


async def _stateless_verifier(server_client: Asked, server_name: str) -> bool | None:
    """Whether the verifier says that the same answer may be graded twice; None when it did not answer now.

    One that cannot say (no such route, or something else in its reply) is not stateless: False.
    """
    return await _says(server_client, server_name, "/reverify_mode", lambda said: said == "stateless")


async def _keeps_keys(server_client: Asked, server_name: str) -> bool | None:
    return await _says(
        server_client,
        server_name,
        "/capabilities",
        lambda said: isinstance(said, dict) and said.get("idempotency") is True,
    )


async def _says(server_client: Asked, server_name: str, path: str, yes: Callable[[Any], bool]) -> bool | None:
    """What the verifier says at `path`: yes, or no (which a verifier that cannot say means, too), or nothing for now."""
    try:
        async with asyncio.timeout(PROBE_S):
            reply = await server_client.get(server_name, path)
            if reply.status >= 500 or reply.status == _TOO_MANY_REQUESTS:
                return None
            if reply.status != 200:
                return False
            said = reply.json()
            return yes(await said if inspect.isawaitable(said) else said)
    except Exception as error:
        return None if is_verify_transport_error(error) else False


async def verify_with_transport_retry(
    call: Callable[[], Awaitable[Result]],
    server_client: Asked,
    server_name: str,
    *,
    timeout_s: float | None = None,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    random: Callable[[], float] = _random.random,
) -> Result:
    """What `call` returns: one request to the verifier, and its parsed reply.

    `call` is run again, after a wait, when its reply was lost and a resend is provably harmless. While it runs,
    `ServerClient` sends the id of the whole call as its idempotency key (another client may: `idempotency_key()`).
    `server_client` is asked what the verifier `server_name` says of itself, and only when that matters.

    Raises `FailureEvent` (`agent_route_failed`, from its cause) when the last attempt failed, and at once for anything that
    is no lost reply; the events of the attempts before are in its `earlier`. A cancellation passes as it is. With
    `timeout_s` all attempts and waits end within so many seconds. `sleep` takes seconds; `random` gives numbers in [0, 1).
    """
    verify_call = _VerifyCall(call, server_client, server_name, timeout_s)

    retrying = AsyncRetrying(
        stop=verify_call.stops,
        wait=lambda state: _retry_wait_s(state.attempt_number, random),
        retry=verify_call.goes_on,
        sleep=sleep,
        reraise=True,
    )
    result: Result = await retrying(verify_call.attempt)
    return result


class _VerifyCall:
    """One verify call: what its attempts came to, and what is known of the verifier."""

    def __init__(
        self, call: Callable[[], Awaitable[Any]], client: Asked, server_name: str, timeout_s: float | None
    ) -> None:
        self._call = call
        self._client = client
        self._server_name = server_name
        self._loop = asyncio.get_running_loop()
        deadline = None if timeout_s is None else self._loop.time() + timeout_s
        self._operation = Operation(_new_operation_id(), deadline)
        self._failures: list[FailureEvent] = []
        self._stateless: bool | None = None
        self._keys: bool | None = None
        """Definite answers alone; None while there is none."""
        self._in_doubt = False
        """Whether a request may have been delivered whose reply was lost."""
        self._unkeyed = False
        """Whether one of those went without the key."""
        self._maybe_answer = False
        """Whether the last failure is a status that a proxy may have made, or the verifier."""
        self._goes_on: bool | None = None
        """Whether to go on after the last failure; None: when the verifier says that it is harmless."""

    def stops(self, state: RetryCallState) -> bool:
        """Whether this was the last attempt: by their number, or because the next wait would outlast the deadline."""
        deadline = self._operation.deadline
        in_time = deadline is None or self._loop.time() + state.upcoming_sleep < deadline
        return state.attempt_number >= VERIFY_CALL_MAX_ATTEMPTS or not in_time

    async def attempt(self) -> Any:
        """One attempt. Its failure is recorded here, so that none is missed however the call ends."""
        if self._in_doubt:
            # The verifier has not said yet that a resend is harmless. Until it does, an attempt is to ask it.
            self._goes_on = await self._harmless()
            if self._goes_on is not True:
                self._reraise()
        self._operation.keyed = False
        try:
            async with asyncio.timeout_at(self._operation.deadline):
                with running(self._operation):
                    return await self._call()
        except Exception as error:
            self._record(error)
            self._goes_on = await self._whether_to_go_on(error)
            self._reraise()

    async def goes_on(self, state: RetryCallState) -> bool:
        """Whether there is another attempt (which may still find that it may not be sent)."""
        error = state.outcome.exception() if state.outcome is not None else None
        return isinstance(error, FailureEvent) and error in self._failures and self._goes_on is not False

    def _record(self, error: Exception) -> None:
        event = verify_route_failure(error, self._operation.operation_id, len(self._failures) + 1)
        if is_no_http(error):
            # The status is aiohttp's own.
            event.http_status = None
        event.earlier = list(self._failures)
        self._failures.append(event)

    def _reraise(self) -> NoReturn:
        event = self._failures[-1]
        raise event from event.__cause__

    async def _whether_to_go_on(self, error: Exception) -> bool | None:
        self._maybe_answer = unsigned_status(error) is not None
        if not self._maybe_answer and not is_verify_transport_error(error):
            return False
        if self._maybe_answer or may_be_delivered(error):
            self._in_doubt = True
            self._unkeyed = self._unkeyed or not self._operation.keyed
        return await self._harmless() if self._in_doubt else True

    async def _harmless(self) -> bool | None:
        """Whether to send again is harmless; None while the verifier does not answer."""
        if self._maybe_answer:
            keys = await self._says_it_keeps_keys()
            if keys is not True:
                return keys
            self._maybe_answer = False
            event = self._failures[-1]
            event.details["proxy_status"], event.http_status = event.http_status, None
        if self._keys and not self._unkeyed:
            return True
        stateless = await self._says_it_is_stateless()
        if stateless or self._unkeyed:
            return stateless
        keys = await self._says_it_keeps_keys()
        return keys if keys or stateless is False else None

    async def _says_it_is_stateless(self) -> bool | None:
        if self._stateless is None:
            self._stateless = await self._within(_stateless_verifier(self._client, self._server_name))
        return self._stateless

    async def _says_it_keeps_keys(self) -> bool | None:
        if self._keys is None:
            self._keys = await self._within(_keeps_keys(self._client, self._server_name))
        return self._keys

    async def _within(self, asking: Awaitable[bool | None]) -> bool | None:
        try:
            async with asyncio.timeout_at(self._operation.deadline):
                return await asking
        except TimeoutError:
            return None


def masked_verify_failure(answer: Mapping[str, Any], failure: BaseException, regradable: bool = True) -> dict[str, Any]:
    """What an agent's `/run` returns when its verify call failed: the answer, as a masked zero that nobody may average.

    `answer` is the verify request with the generated response; all of it is in the row. `failure` is what
    `verify_with_transport_retry` raised. `_ng_failure_class` is what recovery goes by: `judge_failed` when the verifier
    replied that it could not grade (5xx, 429), so that the kept answer is verified again; else the failure's own kind,
    `agent_route_failed`. `regradable` False is for a verifier that grades whole batches alone: verifying this answer by
    itself settles nothing, so the row is `agent_route_failed` and terminal.
    """
    event = event_for(failure, boundary="agent")
    status = event.http_status
    if not regradable:
        recovery = AGENT_ROUTE_FAILED
    elif status is not None and (status >= 500 or status == _TOO_MANY_REQUESTS):
        recovery = JUDGE_FAILED
    else:
        recovery = event.kind
    report = failure_report_for(event)
    return {
        **answer,
        "reward": 0.0,
        "mask_sample": True,
        "failure_kind": event.kind,
        "failure_reason": event.reason,
        "_ng_failure_class": recovery,
        "_ng_failure_events": {record["event_id"]: record for record in report["events"]},
        "_ng_failure_id": report["failure_id"],
        "_ng_failure_terminal": not regradable,
    }


def _new_operation_id() -> str:
    return os.urandom(16).hex()

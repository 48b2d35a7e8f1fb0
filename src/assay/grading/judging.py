"""A model that a verifier asks, through the broker: the call itself is injected, since this room knows no client."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from assay.failures import FailureEvent
from assay.failures.kinds import JUDGE_FAILED, JUDGE_UNPARSEABLE
from assay.tasks import strict_json

from .asks import Refused

CALLS_MAX = 200
"""Calls of one verification: they cost money, and a submission that got hold of the socket could make them, too."""
TEXT_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a model replied."""

    text: str
    input_tokens: int = 0
    output_tokens: int = 0


class NoSuchJudge(Exception):
    """A verifier asked for a judge that there is none of. The message says which there are."""


AskJudge = Callable[[str, str, "Mapping[str, Any] | None"], Awaitable[Judgement]]
"""Asks a judge by its name, with a prompt and perhaps a JSON Schema for the reply.

Raises `NoSuchJudge` for a name that stands for none, and `FailureEvent`: of kind `judge_unparseable` for a reply that cannot be
used, of any other, with the endpoint's `http_status` where there is one, when there is none.
"""


class Judging:
    """The judge calls of one verification."""

    def __init__(self, ask: AskJudge | None) -> None:
        """None: there is no judge to be had."""
        self._ask = ask
        self._begun = 0.0
        self._limit_s = float("inf")
        self._calls = 0
        self._judged_s = 0.0
        self._tokens = [0, 0]
        self.failure: FailureEvent | None = None
        """The first call that got no reply: then there is no verdict, whatever the verifier made of it."""

    def begin(self, timeout_s: float) -> None:
        """The verification's clock starts now."""
        self._begun = asyncio.get_running_loop().time()
        self._limit_s = timeout_s

    def usage(self) -> dict[str, float]:
        """What was used; empty when nothing was."""
        if not self._calls:
            return {}
        return {
            "judge_calls": self._calls,
            "judge_s": round(self._judged_s, 6),
            "judge_input_tokens": self._tokens[0],
            "judge_output_tokens": self._tokens[1],
        }

    async def ask(self, judge: str, prompt: bytes, schema: bytes) -> bytes:
        """The judge's reply, in UTF-8. Raises `Refused`."""
        if self._ask is None:
            raise Refused("unsupported", "no judge is to be had: this verification was started without any")
        if self._calls >= CALLS_MAX:
            raise Refused("limit", f"a verification may ask judges {CALLS_MAX} times; ask for more at a time")
        text, form = _text(prompt), _schema(schema)
        self._calls += 1
        began = time.monotonic()
        try:
            async with asyncio.timeout_at(self._begun + self._limit_s) as limit:
                judged = await self._ask(judge, text, form)
        except NoSuchJudge as error:
            raise Refused("unsupported", str(error)) from None
        except FailureEvent as failure:
            raise self._refusal(failure) from failure
        except TimeoutError:
            if not limit.expired():
                raise
            # A judge is slow when it took most of the time itself. One that was asked at the end, by whomever, is not.
            waited = time.monotonic() - began
            if waited >= self._limit_s / 2:
                slow = (
                    f"the judge {judge!r} had not replied after {waited:.1f} s, when the verification's time was over"
                )
                raise self._refusal(FailureEvent(JUDGE_FAILED, slow)) from None
            raise Refused("limit", "the verification's time is over: there was none left for the judge") from None
        finally:
            self._judged_s += time.monotonic() - began
        self._tokens[0] += judged.input_tokens
        self._tokens[1] += judged.output_tokens
        return _said(judged.text)

    def _refusal(self, failure: FailureEvent) -> Refused:
        if failure.kind == JUDGE_UNPARSEABLE:
            # What the submission wrote is in the prompt, so it may have a hand in this: the verifier says what it is worth.
            return Refused("unparseable", failure.reason)
        if self.failure is None:
            self.failure = failure
        return Refused("fault", failure.reason)


def _text(prompt: bytes) -> str:
    try:
        return prompt.decode()
    except UnicodeDecodeError as error:
        raise Refused("malformed", f"the prompt is not UTF-8 text (byte {error.start})") from None


def _said(reply: str) -> bytes:
    if len(reply) > TEXT_MAX:
        raise Refused("unparseable", f"the reply is longer than {TEXT_MAX} characters")
    try:
        return reply.encode()
    except UnicodeEncodeError as error:
        raise Refused("unparseable", f"the reply is not Unicode text (half a character at {error.start})") from None


def _schema(content: bytes) -> Mapping[str, Any] | None:
    if not content:
        return None
    try:
        schema = strict_json(content)
    except ValueError as error:
        raise Refused("malformed", f"the schema {error}") from None
    if not isinstance(schema, dict):
        raise Refused("malformed", f"the schema must be a JSON object, got {json.dumps(schema):.100}")
    return schema

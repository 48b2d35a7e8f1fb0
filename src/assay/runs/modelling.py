"""The agent that is one call of a model: the instruction in, its text out. It has no workspace."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from assay.answers import Identity
from assay.client import JudgeEndpoint, JudgeError, call_judge
from assay.failures import FailureEvent
from assay.failures.kinds import AGENT_REQUEST_FAILED
from assay.runs.left import Left
from assay.runs.performing import instruction_of
from assay.tasks import Task


@dataclass(frozen=True, slots=True)
class ModelAgent:
    """See `Agent`. Asks an OpenAI-compatible endpoint, with the judge call's patience."""

    model: str
    base_url: str
    api_key_env: str | None = None
    timeout_s: float | None = None

    @asynccontextmanager
    async def working(self, task: Task, identity: Identity) -> AsyncIterator[Left]:
        """See `Agent.working`."""
        key = None
        if self.api_key_env is not None:
            key = os.environ.get(self.api_key_env)
            if not key:
                raise _failed(f"the key is taken from ${self.api_key_env}, which is not set here")
        messages = [{"role": "user", "content": instruction_of(task).decode("utf-8", "replace")}]
        began = time.monotonic()
        try:
            endpoint = JudgeEndpoint(self.base_url, self.model, key)
            if self.timeout_s is not None:
                endpoint = replace(endpoint, timeout_s=self.timeout_s)
            reply = await call_judge(endpoint, {"messages": messages})
        except JudgeError as error:
            failure = _failed(error.reason)
            failure.http_status = error.http_status
            failure.earlier = list(error.earlier)
            raise failure from error
        usage = {"input_tokens": reply.input_tokens, "output_tokens": reply.output_tokens}
        content = [{"type": "output_text", "text": reply.text, "annotations": []}]
        message = {"type": "message", "role": "assistant", "status": "completed", "content": content}
        response = {
            "object": "response",
            "model": self.model,
            "output": [message],
            "output_text": reply.text,
            "usage": usage,
        }
        yield Left(None, response, None, {"_assay_agent": {"seconds": round(time.monotonic() - began, 3), **usage}})


def _failed(reason: str) -> FailureEvent:
    return FailureEvent(AGENT_REQUEST_FAILED, reason, boundary="model", stage="agent", operation="model")

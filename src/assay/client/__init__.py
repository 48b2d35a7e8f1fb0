"""The agent's side of HTTP: requests with evidence of what became of them, the verify call, the judge call.

An agent needs nothing of grading: `judges_of`, which does, is imported when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from assay.client.delivery import may_be_delivered
from assay.client.judge_call import JUDGE_CALL_MAX_ATTEMPTS, JudgeEndpoint, JudgeError, JudgeReply, call_judge
from assay.client.operation import idempotency_key
from assay.client.reply import Reply, StatusError
from assay.client.server_client import ServerClient
from assay.client.verify_call import (
    VERIFY_CALL_MAX_ATTEMPTS,
    is_verify_transport_error,
    masked_verify_failure,
    verify_route_failure,
    verify_with_transport_retry,
)

if TYPE_CHECKING:
    from assay.client.judges import judges_of

__all__ = [
    "JUDGE_CALL_MAX_ATTEMPTS",
    "VERIFY_CALL_MAX_ATTEMPTS",
    "JudgeEndpoint",
    "JudgeError",
    "JudgeReply",
    "Reply",
    "ServerClient",
    "StatusError",
    "call_judge",
    "idempotency_key",
    "is_verify_transport_error",
    "judges_of",
    "masked_verify_failure",
    "may_be_delivered",
    "verify_route_failure",
    "verify_with_transport_retry",
]


def __getattr__(name: str) -> Any:
    if name != "judges_of":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from assay.client.judges import judges_of

    return judges_of

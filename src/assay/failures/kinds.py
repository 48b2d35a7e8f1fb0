"""The kinds of failure.

The names without a prefix are shared with other tools of the field, so that rows mix with theirs; ours carry `assay:`.
A name is safe as a metric label: few of them, and none is made from data.
"""

from __future__ import annotations

import logging
import re
from typing import Final

TRANSPORT_UNREACHABLE: Final = "transport_unreachable"
TRANSPORT_PEER_DROP: Final = "transport_peer_drop"
TRANSPORT_TIMEOUT: Final = "transport_timeout"
TRANSPORT_LOCAL_RESOURCE: Final = "transport_local_resource"
AGENT_RUN_ERROR: Final = "agent_run_error"
AGENT_REQUEST_FAILED: Final = "agent_request_failed"
AGENT_TIMEOUT: Final = "agent_timeout"
AGENT_ROUTE_FAILED: Final = "agent_route_failed"
JUDGE_FAILED: Final = "judge_failed"
JUDGE_UNPARSEABLE: Final = "judge_unparseable"
VERIFIER_ERROR: Final = "verifier_error"
PROVIDER_UNAVAILABLE: Final = "provider_unavailable"
PROVIDER_QUOTA_EXHAUSTED: Final = "provider_quota_exhausted"
PROVIDER_OOM_KILLED: Final = "provider_oom_killed"
SESSION_LOST: Final = "session_lost"
SESSION_EXPIRED: Final = "session_expired"
CANCELLED: Final = "cancelled"
SHUTDOWN: Final = "shutdown"
PERSISTENCE_FAILED: Final = "persistence_failed"

MISSING_REWARD: Final = "assay:missing_reward"
INVALID_REWARD: Final = "assay:invalid_reward"
REWARD_KEY_MISSING: Final = "assay:reward_key_missing"
VERDICT_CONFLICT: Final = "assay:verdict_conflict"
VERIFIER_CONTRACT: Final = "assay:verifier_contract"
CANNOT_GRADE: Final = "assay:cannot_grade"
VERIFIER_TIMEOUT: Final = "assay:verifier_timeout"
CPU_LIMIT: Final = "assay:cpu_limit"
MEMORY_LIMIT: Final = "assay:memory_limit"
PROCESS_LIMIT: Final = "assay:process_limit"
OUTPUT_LIMIT: Final = "assay:output_limit"
STORAGE_LIMIT: Final = "assay:storage_limit"
IMAGE_MISSING: Final = "assay:image_missing"
GUARANTEE_UNMET: Final = "assay:guarantee_unmet"
NOT_ADMITTED: Final = "assay:not_admitted"
TASK_INVALID: Final = "assay:task_invalid"
WORKSPACE_INVALID: Final = "assay:workspace_invalid"
WORKSPACE_LIMIT: Final = "assay:workspace_limit"
COLLECT_FAILED: Final = "assay:collect_failed"
HEALTHCHECK_FAILED: Final = "assay:healthcheck_failed"

KINDS: Final = frozenset(
    {
        TRANSPORT_UNREACHABLE,
        TRANSPORT_PEER_DROP,
        TRANSPORT_TIMEOUT,
        TRANSPORT_LOCAL_RESOURCE,
        AGENT_RUN_ERROR,
        AGENT_REQUEST_FAILED,
        AGENT_TIMEOUT,
        AGENT_ROUTE_FAILED,
        JUDGE_FAILED,
        JUDGE_UNPARSEABLE,
        VERIFIER_ERROR,
        PROVIDER_UNAVAILABLE,
        PROVIDER_QUOTA_EXHAUSTED,
        PROVIDER_OOM_KILLED,
        SESSION_LOST,
        SESSION_EXPIRED,
        CANCELLED,
        SHUTDOWN,
        PERSISTENCE_FAILED,
        MISSING_REWARD,
        INVALID_REWARD,
        REWARD_KEY_MISSING,
        VERDICT_CONFLICT,
        VERIFIER_CONTRACT,
        CANNOT_GRADE,
        VERIFIER_TIMEOUT,
        COLLECT_FAILED,
        CPU_LIMIT,
        HEALTHCHECK_FAILED,
        MEMORY_LIMIT,
        PROCESS_LIMIT,
        OUTPUT_LIMIT,
        STORAGE_LIMIT,
        IMAGE_MISSING,
        GUARANTEE_UNMET,
        NOT_ADMITTED,
        TASK_INVALID,
        WORKSPACE_INVALID,
        WORKSPACE_LIMIT,
    }
)
"""Every kind that Assay itself gives. Others are accepted: rows of other tools have more."""

INFRASTRUCTURE: Final = frozenset(
    {
        PROVIDER_UNAVAILABLE,
        PROVIDER_QUOTA_EXHAUSTED,
        PROVIDER_OOM_KILLED,
        PERSISTENCE_FAILED,
        SHUTDOWN,
        CANCELLED,
        NOT_ADMITTED,
    }
)
"""Kinds, beside every `transport_*`, on which a verification alone is tried again by whoever runs it."""

KIND_MAX: Final = 100
"""Longest kind, in characters."""

_GRAMMAR: Final = re.compile(r"[a-z][a-z0-9_]*(:[a-z][a-z0-9_]*)?")
_WARNED_MAX: Final = 1000
_log = logging.getLogger(__name__)
_warned: set[str] = set()


def is_infrastructure(kind: str) -> bool:
    """Whether a failure of this kind may pass by itself, so that the same verification may be tried again."""
    return kind in INFRASTRUCTURE or kind.startswith("transport_")


def check_kind(kind: str) -> str:
    """The kind itself, when it is one by its form; an unknown one is logged once.

    Raises `ValueError` for a name outside the grammar `name` or `prefix:name`, each part `[a-z][a-z0-9_]*`, or longer
    than `KIND_MAX`.
    """
    if kind in KINDS:
        return kind
    if not isinstance(kind, str) or len(kind) > KIND_MAX or _GRAMMAR.fullmatch(kind) is None:
        raise ValueError(
            f"a failure kind is `name` or `prefix:name` in lower-case letters, digits and _, "
            f"at most {KIND_MAX} characters, got {str(kind)[:KIND_MAX]!r}"
        )
    if kind not in _warned and len(_warned) < _WARNED_MAX:
        _warned.add(kind)
        _log.warning("unknown failure kind %s: kept as it is; the known ones are in docs/failures.md", kind)
    return kind

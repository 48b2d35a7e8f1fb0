"""What can go wrong, and who caused it.

One vocabulary for every room. A kind says *what went wrong* and nothing about policy: whether to retry, mask or stop
is decided by whoever holds the occurrence.

    transport_*                     a call between two servers
      transport_unreachable         refused, no route, no such name: never delivered
      transport_peer_drop           dropped after it may have been delivered
      transport_timeout
      transport_local_resource      this machine ran out of sockets, ports or descriptors
    agent_*                         the agent's side
      agent_run_error               the agent's own code failed
      agent_request_failed          its model refused or failed a request
      agent_timeout
      agent_route_failed            a route that the agent called failed, its verify call included
    judge_*                         a model that a verifier asked
      judge_failed                  no reply to be had
      judge_unparseable             a reply, but not one that can be read
    verifier_error                  the verifier raised
    assay:*                         one verification
      assay:missing_reward          it ended and wrote none
      assay:invalid_reward          it wrote one that is not a finite number in range
      assay:reward_key_missing      several metrics, and none of them is named the reward
      assay:verdict_conflict        two verdicts that disagree
      assay:verifier_contract       `verify` is missing, or asks for what there is not
      assay:cannot_grade            the verifier said that it cannot grade this
      assay:verifier_timeout        wall-clock limit
      assay:cpu_limit, assay:memory_limit, assay:process_limit, assay:output_limit
      assay:storage_limit           its log folder was full
      assay:image_missing           the task's image is not here as a folder
      assay:guarantee_unmet         this machine cannot give what the task demands
      assay:not_admitted            no room: nothing ran
      assay:task_invalid            the task cannot be read
      assay:workspace_invalid       the workspace cannot be read
      assay:workspace_limit         the workspace is larger than what is captured
      assay:collect_failed          a hook between the agent and the verifier failed
      assay:healthcheck_failed      what the verifier or a step builds on does not hold
    provider_*                      what runs sandboxes
      provider_unavailable, provider_quota_exhausted
      provider_oom_killed           the host's memory, not the sandbox's limit
    session_lost, session_expired   a server's memory of this rollout
    cancelled, shutdown             somebody stopped it
    persistence_failed              it could not be kept

`FailureEvent` is the exception and its record in one.
"""

from assay.failures.attribution import boundary, event_for
from assay.failures.event import FailureEvent, ReportedError, cause_of
from assay.failures.kinds import INFRASTRUCTURE, KINDS, check_kind, is_infrastructure
from assay.failures.redact import REASON_MAX, redact
from assay.failures.report import (
    HEADER_MAX_BYTES,
    HEADER_NAME,
    decode_header,
    encode_header,
    failure_report_for,
    rebuild_failure,
)
from assay.failures.routes import agent_route_failure, verify_route_failure

__all__ = [
    "HEADER_MAX_BYTES",
    "HEADER_NAME",
    "INFRASTRUCTURE",
    "KINDS",
    "REASON_MAX",
    "FailureEvent",
    "ReportedError",
    "agent_route_failure",
    "boundary",
    "cause_of",
    "check_kind",
    "decode_header",
    "encode_header",
    "event_for",
    "failure_report_for",
    "is_infrastructure",
    "rebuild_failure",
    "redact",
    "verify_route_failure",
]

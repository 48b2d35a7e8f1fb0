"""The shapes of requests and replies, for the OpenAPI document."""

from __future__ import annotations

from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.json_schema import models_json_schema

DIGEST: Final = "^sha256:[0-9a-f]{64}$"
_REF: Final = "#/components/schemas/{model}"


class Snapshot(BaseModel):
    """A workspace that was uploaded with `PUT /snapshots/{digest}`."""

    model_config = ConfigDict(extra="forbid")
    snapshot: str = Field(pattern=DIGEST)


class Archive(BaseModel):
    """A workspace as a tar archive in base64; it may be compressed with gzip, bzip2, xz or zstd."""

    model_config = ConfigDict(extra="forbid")
    archive_b64: str


class VerifyBody(BaseModel):
    """A request to verify. Further fields that do not begin with `_` are the row's own and join the task's data."""

    model_config = ConfigDict(extra="allow")
    task_id: str | None = None
    task_digest: str | None = Field(default=None, pattern=DIGEST)
    responses_create_params: dict[str, Any] | None = None
    response: dict[str, Any] | str | None = None
    workspace: Snapshot | Archive | None = None


class VerifyReply(BaseModel):
    """The request's fields but `workspace`, and these."""

    model_config = ConfigDict(extra="allow")
    reward: float
    """0.0 where there is none: see `mask_sample`."""
    mask_sample: bool
    """Whether the row must be left out: it has a failure, not a reward."""
    failure_kind: str | None
    failure_reason: str | None
    verdict: dict[str, Any]


class Problem(BaseModel):
    """Why a request was not served. Nothing ran for it."""

    detail: str
    field: str | None = None
    """The field or header it is about."""
    kind: str | None = None
    """`assay:not_admitted` with 503."""


class TaskEntry(BaseModel):
    """A task that the server grades."""

    task_id: str
    task_digest: str
    verifier_digest: str
    reverify_mode: Literal["stateless", "unsupported", "unknown"]
    reward_range: list[float] | None


class TaskList(BaseModel):
    """All tasks of the dataset, and those that cannot be used."""

    tasks: list[TaskEntry]
    invalid: list[dict[str, Any]]


class Capabilities(BaseModel):
    """What a client may rely on."""

    idempotency: bool
    max_body_bytes: int
    max_snapshot_bytes: int
    version: str


class SessionBody(BaseModel):
    """The row of a session, or the typed form of it."""

    model_config = ConfigDict(extra="allow")
    resources_session_id: str | None = None


class SessionReply(BaseModel):
    """Empty for a row; for the typed form what a session has here: no tools, no sandbox."""

    resources_session_id: str | None = None
    resources_tools: list[Any] | None = None
    sandbox_access: dict[str, Any] | None = None


class MetricsBody(BaseModel):
    """Replies of `POST /verify`."""

    model_config = ConfigDict(extra="allow")
    verify_responses: list[dict[str, Any]]


class MetricsReply(BaseModel):
    """Means over the graded rows alone."""

    group_level_metrics: list[dict[str, Any]]
    agent_metrics: dict[str, Any]
    key_metrics: dict[str, float]
    graded: int
    masked: dict[str, int]


_MODELS: Final = (
    VerifyBody,
    VerifyReply,
    Problem,
    TaskEntry,
    TaskList,
    Capabilities,
    SessionBody,
    SessionReply,
    MetricsBody,
    MetricsReply,
)


def schemas() -> dict[str, Any]:
    """All models, for `components.schemas`."""
    _, definitions = models_json_schema([(model, "validation") for model in _MODELS], ref_template=_REF)
    found: dict[str, Any] = definitions["$defs"]
    return found


def json_of(model: type[BaseModel]) -> dict[str, Any]:
    """A body of that model."""
    return {"application/json": {"schema": {"$ref": _REF.format(model=model.__name__)}}}


def body_of(model: type[BaseModel]) -> dict[str, Any]:
    """A request body, for `openapi_extra`."""
    return {"requestBody": {"required": True, "content": json_of(model)}}


def in_path(name: str, pattern: str | None = None) -> dict[str, Any]:
    """A parameter in the path, for `openapi_extra`."""
    schema = {"type": "string"} | ({"pattern": pattern} if pattern is not None else {})
    return {"parameters": [{"name": name, "in": "path", "required": True, "schema": schema}]}


def reply_of(model: type[BaseModel]) -> dict[str, Any]:
    """What a reply holds."""
    return {"content": json_of(model)}


Replies = dict[int | str, dict[str, Any]]


def replies(done: dict[str, Any], *statuses: int) -> Replies:
    """The reply of a request that was served, and those that say why one was not."""
    return {200: {"description": "Done", **done}, **problems(*statuses)}


def problems(*statuses: int) -> Replies:
    """Replies that say why not."""
    said = {
        400: "No HTTP that can be read",
        401: "No token, or a wrong one",
        404: "There is none",
        409: "The task on the server's disk is another version",
        413: "Too large",
        422: "Malformed: the field is named",
        503: "Not admitted (`assay:not_admitted`): nothing ran; `Retry-After` says when to come again",
    }
    return {status: {"description": said[status], "content": json_of(Problem)} for status in statuses}


def verify_operation() -> dict[str, Any]:
    """`POST /verify`, which no framework routes."""

    def header(name: str, schema: dict[str, Any], description: str) -> dict[str, Any]:
        return {"name": name, "in": "header", "required": False, "schema": schema, "description": description}

    return {
        "summary": "Verify one answer",
        "description": "A verdict, graded or failed, is 200. Under an `Idempotency-Key` it is run once, and the reply is kept.",
        "operationId": "verify",
        "parameters": [
            header(
                "Idempotency-Key",
                {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$"},
                "One for all attempts of one call",
            ),
            header("X-Assay-Deadline-S", {"type": "number"}, "Seconds from now after which nobody waits for the reply"),
        ],
        **body_of(VerifyBody),
        "responses": {
            str(status): reply for status, reply in replies(reply_of(VerifyReply), 401, 404, 409, 413, 422, 503).items()
        },
    }

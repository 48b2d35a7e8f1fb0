"""A request to verify: read strictly, before anything is done for it."""

from __future__ import annotations

import binascii
import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from assay.tasks import strict_json
from assay.tasks.shown import shown

from .refusal import Refused, malformed

REPLY_FIELDS: Final = ("reward", "mask_sample", "failure_kind", "failure_reason", "verdict")
"""What the reply adds. They are never task data, so that a reply can be sent again as a request."""

_OWN: Final = frozenset({"task_id", "task_digest", "responses_create_params", "response", "workspace", *REPLY_FIELDS})
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")
_compact: Final = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode
_KEY_MAX: Final = 255
_DEPTH_MAX: Final = 200
"""Objects and lists within each other. Every reader on the way to the verifier, the sandbox's Python included, can take these."""


@dataclass(frozen=True, slots=True)
class Workspace:
    """The workspace of a request: exactly one of the two."""

    snapshot: str | None = None
    """The digest under which it was uploaded."""
    archive: bytes | None = None
    """A tar archive, compressed or not."""


@dataclass(frozen=True, slots=True)
class VerifyRequest:
    """What `POST /verify` was asked, as far as it can be checked without looking at a task."""

    body_digest: str
    """SHA-256 of the body's bytes, in hex: whether a key comes again with the same request."""
    echo: str
    """The request's fields without `workspace`, and without those the reply adds: a JSON object."""
    task_id: str | None
    task_digest: str | None
    response: Mapping[str, Any] | str | None
    workspace: Workspace | None
    row: Mapping[str, Any]
    """The row's own fields: what joins the task's data."""


def read_verify(body: bytes) -> VerifyRequest:
    """The request in a body. Raises `Refused` (422), naming the field."""
    try:
        fields = strict_json(body)
    except ValueError as error:
        raise Refused(422, f"the body {error}") from None
    if not isinstance(fields, dict):
        raise Refused(422, f"the body must be a JSON object, got {shown(fields)}")
    _refuse_depth(body, fields)
    named = _text(fields, "task_id")
    named = named if named is not None else _text(fields, "_ng_task_id")
    response = fields.get("response")
    if response is not None and not isinstance(response, dict | str):
        raise malformed("response", f"must be a Responses API object or a text, got {shown(response)}")
    parameters = fields.get("responses_create_params")
    if parameters is not None and not isinstance(parameters, dict):
        raise malformed("responses_create_params", f"must be an object, got {shown(parameters)}")
    row = {name: value for name, value in fields.items() if name not in _OWN and not name.startswith("_")}
    workspace = _workspace(fields.pop("workspace", None))
    for name in REPLY_FIELDS:
        fields.pop(name, None)
    return VerifyRequest(
        body_digest=hashlib.sha256(body).hexdigest(),
        echo=_json_text(fields),
        task_id=named,
        task_digest=_digest(fields, "task_digest"),
        response=response,
        workspace=workspace,
        row=row,
    )


def read_key(value: str | None) -> str | None:
    """The value of `Idempotency-Key`. Raises `Refused` (422)."""
    if value is None:
        return None
    if not 0 < len(value) <= _KEY_MAX or not value.isascii() or not value.isprintable():
        raise malformed("Idempotency-Key", f"must be 1 to {_KEY_MAX} printable ASCII characters")
    return value


def read_deadline(value: str | None) -> float | None:
    """The value of `X-Assay-Deadline-S`, in seconds from now. Raises `Refused` (422)."""
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        seconds = math.nan
    if not math.isfinite(seconds):
        raise malformed("X-Assay-Deadline-S", f"must be seconds from now, a number, got {shown(value)}")
    return seconds


def is_digest(value: str) -> bool:
    """Whether a text is a digest as we write them: `sha256:` and 64 lower-case hex digits."""
    return _DIGEST.fullmatch(value) is not None


def _workspace(value: object) -> Workspace | None:
    if value is None:
        return None
    if not isinstance(value, dict) or len(value) != 1 or not value.keys() <= {"snapshot", "archive_b64"}:
        raise malformed(
            "workspace", f'must be {{"snapshot": "sha256:…"}} or {{"archive_b64": "…"}}, got {shown(value)}'
        )
    if "snapshot" in value:
        return Workspace(snapshot=_digest(value, "snapshot", "workspace."))
    archive = value["archive_b64"]
    if not isinstance(archive, str):
        raise malformed("workspace.archive_b64", f"must be a text in base64, got {shown(archive)}")
    try:
        return Workspace(archive=binascii.a2b_base64(archive.encode("ascii"), strict_mode=True))
    except (ValueError, binascii.Error) as error:
        raise malformed("workspace.archive_b64", f"is not base64 (RFC 4648, no line breaks): {error}") from None


def _text(fields: Mapping[str, Any], name: str) -> str | None:
    value = fields.get(name)
    if value is not None and not isinstance(value, str):
        raise malformed(name, f"must be a text, got {shown(value)}")
    return value


def _digest(fields: Mapping[str, Any], name: str, within: str = "") -> str | None:
    value = fields.get(name)
    if value is None and not within:
        return None
    if not isinstance(value, str) or not is_digest(value):
        raise malformed(f"{within}{name}", f'must be a digest, "sha256:" and 64 hex digits, got {shown(value)}')
    return value


def _refuse_depth(body: bytes, fields: Mapping[str, Any]) -> None:
    if body.count(b"[") + body.count(b"{") <= _DEPTH_MAX:
        return
    level: list[Any] = [fields]
    for _ in range(_DEPTH_MAX):
        level = [
            item
            for value in level
            for item in (value.values() if isinstance(value, dict) else value)
            if isinstance(item, dict | list)
        ]
    if level:
        raise Refused(422, f"the body has more than {_DEPTH_MAX} objects and lists within each other")


def _json_text(fields: Mapping[str, Any]) -> str:
    """As it is echoed. ASCII: a lone surrogate that came as an escape goes as one."""
    try:
        return _compact(fields)
    except ValueError:
        # 1e999 is valid JSON and no finite number here; it could not be sent back.
        raise Refused(422, "the body holds a number that is too large for a float") from None

"""What a request to verify may look like, and what is said of one that may not."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any

import pytest

from assay.server.refusal import Refused
from assay.server.request import Workspace, read_deadline, read_key, read_verify

DIGEST = "sha256:" + "a" * 64


def read(**fields: Any) -> Any:
    return read_verify(json.dumps(fields).encode())


def test_what_is_the_rows_own() -> None:
    body = json.dumps(
        {
            "task_id": "t",
            "responses_create_params": {"input": "2+2?"},
            "response": {"output": []},
            "expected_answer": "4",
            "_ng_task_index": 7,
            "workspace": {"snapshot": DIGEST},
            "reward": 0.5,
            "mask_sample": True,
            "failure_kind": "x",
            "failure_reason": "y",
            "verdict": {},
        }
    ).encode()
    request = read_verify(body)
    assert request.row == {"expected_answer": "4"}
    assert request.workspace == Workspace(snapshot=DIGEST)
    assert request.body_digest == hashlib.sha256(body).hexdigest()
    assert json.loads(request.echo).keys() == {
        *("task_id", "responses_create_params", "response", "expected_answer", "_ng_task_index"),
    }


@pytest.mark.parametrize(
    ("fields", "task_id"),
    [
        ({"task_id": "a", "_ng_task_id": "b"}, "a"),
        ({"_ng_task_id": "b"}, "b"),
        ({"task_id": None, "_ng_task_id": "b"}, "b"),
        ({}, None),
    ],
)
def test_which_task(fields: dict[str, Any], task_id: str | None) -> None:
    assert read(**fields).task_id == task_id


def test_an_archive_is_decoded() -> None:
    assert read(workspace={"archive_b64": base64.b64encode(b"tar").decode()}).workspace == Workspace(archive=b"tar")


@pytest.mark.parametrize("response", [None, "four", {"output_text": "four"}])
def test_a_response_is_an_object_or_a_text(response: object) -> None:
    assert read(response=response).response == response


def nested(levels: int) -> bytes:
    return b'{"a":' * levels + b"1" + b"}" * levels


@pytest.mark.parametrize(
    ("body", "field", "said"),
    [
        (b"", None, "not valid JSON"),
        (b"{", None, "not valid JSON"),
        (b"\xff{}", None, "not UTF-8"),
        (b"[]", None, "must be a JSON object"),
        (b'"x"', None, "must be a JSON object"),
        (b'{"a": NaN}', None, "NaN"),
        (b'{"a": 1e999}', None, "too large"),
        (b'{"a": 1, "a": 2}', None, "twice"),
        (b'{"a": ' + b"9" * 5000 + b"}", None, "digits"),
        (nested(201), None, "within each other"),
        (nested(100_000), None, "nested too deeply"),
        (b'{"task_id": 3}', "task_id", "must be a text, got 3"),
        (b'{"_ng_task_id": []}', "_ng_task_id", "must be a text"),
        (b'{"task_digest": "abc"}', "task_digest", "must be a digest"),
        (b'{"task_digest": 4}', "task_digest", "must be a digest"),
        (b'{"response": 4}', "response", "Responses API object or a text"),
        (b'{"response": []}', "response", "Responses API object or a text"),
        (b'{"responses_create_params": "x"}', "responses_create_params", "must be an object"),
        (b'{"workspace": "/etc"}', "workspace", "archive_b64"),
        (b'{"workspace": {}}', "workspace", "archive_b64"),
        (b'{"workspace": {"path": "/etc"}}', "workspace", "archive_b64"),
        (b'{"workspace": {"snapshot": "../../etc"}}', "workspace.snapshot", "must be a digest"),
        (b'{"workspace": {"snapshot": null}}', "workspace.snapshot", "must be a digest"),
        (b'{"workspace": {"archive_b64": 7}}', "workspace.archive_b64", "base64"),
        (b'{"workspace": {"archive_b64": "a b"}}', "workspace.archive_b64", "base64"),
        ('{"workspace": {"archive_b64": "é"}}'.encode(), "workspace.archive_b64", "base64"),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_malformed(body: bytes, field: str | None, said: str) -> None:
    with pytest.raises(Refused) as refused:
        read_verify(body)
    assert (refused.value.status, refused.value.field) == (422, field)
    assert said in refused.value.detail


def test_as_deep_as_allowed() -> None:
    assert json.loads(read_verify(nested(200)).echo) == json.loads(nested(200))


def test_a_lone_surrogate_is_echoed_as_it_came() -> None:
    assert "\\ud800" in read_verify(b'{"a": "\\ud800"}').echo


@pytest.mark.parametrize(("value", "seconds"), [(None, None), ("5", 5.0), ("0.25", 0.25), ("-1", -1.0)])
def test_a_deadline(value: str | None, seconds: float | None) -> None:
    assert read_deadline(value) == seconds


@pytest.mark.parametrize("value", ["", "soon", "nan", "inf", "1e999"])
def test_no_deadline(value: str) -> None:
    with pytest.raises(Refused, match="X-Assay-Deadline-S"):
        read_deadline(value)


@pytest.mark.parametrize("value", ["", "x" * 256, "a\tb", "caf\xe9"])
def test_no_key(value: str) -> None:
    with pytest.raises(Refused, match="Idempotency-Key"):
        read_key(value)


@pytest.mark.parametrize("value", [None, "x", "01J" * 80])
def test_a_key(value: str | None) -> None:
    assert read_key(value) == value

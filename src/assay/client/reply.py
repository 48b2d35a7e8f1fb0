"""What a server replied."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from aiohttp import ClientPayloadError

from assay.client.delivery import mark_delivery
from assay.failures import HEADER_NAME, decode_header, rebuild_failure

_SHOWN: int = 300
"""Characters of a reply's body that an error shows."""


class StatusError(Exception):
    """The server replied with a status that is no success. It is an answer: nobody tries again on it by himself."""

    def __init__(self, status: int, headers: Mapping[str, str], message: str) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply that arrived."""

    status: int
    headers: Mapping[str, str]
    """Looked up without regard to case."""
    body: bytes = field(repr=False)
    """Decoded from what content coding it had. Of a reply that is no success: as much of it as came."""

    @property
    def ok(self) -> bool:
        """Whether the status is 2xx."""
        return 200 <= self.status < 300

    def json(self) -> Any:
        """The body, parsed.

        Raises `ClientPayloadError` for a 2xx body that does not parse and had nothing to show where it ends (neither a
        length nor chunks, or a length of its coded form): it was cut. Raises `ValueError` for any other that is no JSON.
        """
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError) as error:
            if self.ok and _may_be_cut(self.headers):
                lost = ClientPayloadError(f"the reply was cut after {len(self.body)} bytes: {error}")
                mark_delivery(lost, True)
                raise lost from error
            raise ValueError(f"the reply is no JSON: {error}: {self._shown()}") from error

    def raise_for_status(self) -> None:
        """Raises `StatusError` unless the status is 2xx, from the failure that the server reports, when it reports one."""
        if self.ok:
            return
        header = self.headers.get(HEADER_NAME)
        report = None if header is None else decode_header(header)
        cause = None if report is None else rebuild_failure(report)
        raise StatusError(self.status, self.headers, f"HTTP {self.status}: {self._shown()}") from cause

    def _shown(self) -> str:
        return self.body[: 4 * _SHOWN].decode("utf-8", "replace")[:_SHOWN]


def refuse_cut(reply: Reply) -> None:
    """Raises `ClientPayloadError` for a 2xx reply that should be JSON and was cut where no length could tell."""
    kind = reply.headers.get("Content-Type", "application/json").partition(";")[0].strip().lower()
    if reply.ok and reply.status != 204 and _may_be_cut(reply.headers) and kind.endswith(("/json", "+json")):
        reply.json()


def _may_be_cut(headers: Mapping[str, str]) -> bool:
    if headers.get("Content-Encoding", "identity").lower() != "identity":
        return True
    return "Content-Length" not in headers and "chunked" not in headers.get("Transfer-Encoding", "").lower()

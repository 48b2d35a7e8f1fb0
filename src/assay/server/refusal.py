"""Why a request was not served: nothing ran, and no idempotency key was used up."""

from __future__ import annotations

from typing import Any

from assay.failures import HEADER_NAME, FailureEvent, encode_header, failure_report_for
from assay.failures.kinds import NOT_ADMITTED


class Refused(Exception):
    """A reply of 4xx, or 503 `assay:not_admitted`: a promise that nothing ran for this request."""

    def __init__(self, status: int, detail: str, *, field: str | None = None) -> None:
        """`detail` is a sentence that says what to send instead; `field` is the field or header it is about."""
        super().__init__(status, detail, field)
        self.status = status
        self.detail = detail
        self.field = field

    def body(self) -> dict[str, Any]:
        """The reply's JSON object."""
        return {"detail": self.detail} if self.field is None else {"detail": self.detail, "field": self.field}

    def headers(self) -> dict[str, str]:
        """The reply's own headers."""
        return {"WWW-Authenticate": 'Bearer realm="assay"'} if self.status == 401 else {}


class NotAdmitted(Refused):
    """503 with `Retry-After` and kind `assay:not_admitted`: no room now."""

    def __init__(self, detail: str, *, retry_after_s: int = 1) -> None:
        """`retry_after_s` is a guess at when there is room."""
        super().__init__(503, detail)
        self.retry_after_s = retry_after_s

    def body(self) -> dict[str, Any]:
        """See `Refused.body`."""
        return {"detail": self.detail, "kind": NOT_ADMITTED}

    def headers(self) -> dict[str, str]:
        """See `Refused.headers`."""
        event = FailureEvent(
            NOT_ADMITTED, self.detail, boundary="resources_server", stage="admission", operation="verify"
        )
        return {"Retry-After": str(self.retry_after_s), HEADER_NAME: encode_header(failure_report_for(event))}


def malformed(field: str, problem: str) -> Refused:
    """422: the field or header, and a sentence about it that begins with its name."""
    return Refused(422, f"{field}: {problem}", field=field)

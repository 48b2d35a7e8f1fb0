"""What an error says about its request: was it lost in transport, and may the server have got it.

The class of an error is not enough (a `ClientOSError` may be a refused connection, or one cut after the verifier ran), so
`ServerClient` marks what it raises with the evidence it has: whether the head of the request was ever handed to the
connection. For errors of other clients the class decides.

    surely not delivered        ClientConnectorError (DNS, refused, certificate, TLS), ConnectionTimeoutError
    may have been delivered     everything else
"""

from __future__ import annotations

import ssl
from http import HTTPStatus
from typing import Final

from aiohttp import (
    ClientConnectionError,
    ClientConnectorError,
    ClientPayloadError,
    ClientResponseError,
    ClientSSLError,
    ConnectionTimeoutError,
    ServerFingerprintMismatch,
)
from aiohttp.http_exceptions import HttpProcessingError

TRANSPORT_ERRORS: Final = (ClientPayloadError, ClientConnectionError, ConnectionError, TimeoutError)
"""A reply that was lost, or a request that never arrived."""

_NEVER_MENDED: Final = (ClientSSLError, ServerFingerprintMismatch, ssl.SSLError)
"""Among those: what a second attempt meets again."""

_NEVER_DELIVERED: Final = (ClientConnectorError, ConnectionTimeoutError)

SIGNATURE: Final = "X-Assay-Verifier"
"""The header that a verifier server of Assay's puts on every reply."""

_OF_PROXIES: Final = frozenset({HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT})

_MARK: Final = "assay_delivered"


def mark_delivery(error: BaseException, delivered: bool) -> None:
    """Record on an error whether its request may have been delivered."""
    setattr(error, _MARK, delivered)


def may_be_delivered(error: BaseException) -> bool:
    """Whether the server may have got the request that ended with this error; False only when surely not."""
    marked = getattr(error, _MARK, None)
    return marked if isinstance(marked, bool) else not isinstance(error, _NEVER_DELIVERED)


def is_no_http(error: BaseException) -> bool:
    """Whether the reply was no HTTP: aiohttp gives such an error a status that no server sent."""
    return isinstance(error, ClientResponseError) and isinstance(error.__cause__, HttpProcessingError)


def is_lost_in_transport(error: BaseException) -> bool:
    """Whether there was no reply, and a second attempt might get one."""
    if isinstance(error, _NEVER_MENDED):
        return False
    return isinstance(error, TRANSPORT_ERRORS) or is_no_http(error)


def unsigned_status(error: BaseException) -> int | None:
    """The status of a 502, 503 or 504 without the verifier's signature, which a proxy may have made; else None."""
    status, headers = getattr(error, "status", None), getattr(error, "headers", None)
    if status not in _OF_PROXIES or headers is None:
        return None
    return None if any(name.lower() == SIGNATURE.lower() for name in headers) else int(status)

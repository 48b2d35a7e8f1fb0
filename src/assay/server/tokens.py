"""Who a client is: its token, else its address."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence

from .refusal import Refused


class Tokens:
    """The tokens that the server takes; none of them: it takes everybody."""

    def __init__(self, tokens: Sequence[str] = ()) -> None:
        """Each token is a client of its own, as far as keys and fairness go."""
        # Names that can be kept and shown; the tokens themselves are not.
        self._known = [(token.encode(), f"token:{hashlib.sha256(token.encode()).hexdigest()[:16]}") for token in tokens]

    @property
    def needed(self) -> bool:
        """Whether a request must bring one."""
        return bool(self._known)

    def client_of(self, authorization: bytes | None, address: str | None) -> str:
        """The client's name. Raises `Refused` (401) for no token or a wrong one; each is compared in constant time."""
        if not self._known:
            return f"address:{address}"
        scheme, _, given = (authorization or b"").partition(b" ")
        found = None
        for token, name in self._known:
            if hmac.compare_digest(token, given.strip()):
                found = name
        if found is None or scheme.lower() != b"bearer":
            raise Refused(401, "send the server's token: Authorization: Bearer TOKEN", field="Authorization")
        return found

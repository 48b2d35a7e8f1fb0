"""What the routes of one server share."""

from __future__ import annotations

from dataclasses import dataclass

from .bodies import Held
from .catalogue import Catalogue
from .keys import KeyStore
from .limits import Limits
from .metrics import Metrics
from .tokens import Tokens
from .uploads import Uploads
from .verifications import Verifications


@dataclass(frozen=True, slots=True)
class Service:
    """One server's parts. Made by `running.opened_service`."""

    catalogue: Catalogue
    verifications: Verifications
    keys: KeyStore
    uploads: Uploads
    metrics: Metrics
    limits: Limits
    tokens: Tokens
    held: Held
    version: str

"""Where a test keeps rows: what `open_database` and `open_store` are given."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Where:
    place: str
    namespace: str

"""How large a workspace may be, and what ends a copy before its end."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Caps:
    """How large a workspace may be."""

    bytes: int = 20 * 1024**3
    """Apparent size of all files and link targets: a sparse file counts in full, a hard link once per name."""
    entries: int = 2_000_000
    """Files, folders and links, those included that are dropped."""
    depth: int = 1024
    """Names in a path."""
    path_bytes: int = 4 * 1024**3
    """All paths of the manifest together: at full depth and with every entry they would be half a terabyte."""


class SourceError(Exception):
    """Something in the source cannot be read."""

    def __init__(self, path: str, error: OSError) -> None:
        """`path` is relative to the source, fit for showing."""
        super().__init__(path, error)
        self.path = path
        self.error = error


class TargetError(Exception):
    """The copy cannot be written."""

    def __init__(self, path: str, error: OSError) -> None:
        """`path` is relative to the target, fit for showing."""
        super().__init__(path, error)
        self.path = path
        self.error = error


class CapHit(Exception):
    """The source is larger than a cap allows."""

    def __init__(self, cap: str, limit: int, path: str) -> None:
        """`cap` is the field of `Caps`, `path` where the walk was."""
        super().__init__(cap, limit, path)
        self.cap = cap
        self.limit = limit
        self.path = path


class Stopped(Exception):
    """The `stop` event was set."""

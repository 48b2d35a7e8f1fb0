"""One command at a time writes a run that is kept in a file: an advisory lock, and a note of who holds it."""

from __future__ import annotations

import fcntl
import json
import os
import time
from pathlib import Path

from assay.answers.faults import StoreUnusable


class StoreHeld(StoreUnusable):
    """Another command writes to it."""


class Hold:
    """The right to write to what lies at a path, until it is released or this process ends, however it ends."""

    def __init__(self, path: Path, who: str) -> None:
        """`who` is what others are told: the command. Raises `StoreHeld`, `StoreUnusable`."""
        self._path = path.with_name(path.name + ".lock")
        try:
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise StoreUnusable(f"{self._path}: cannot be made: {error.strerror}") from error
        try:
            # The lock is the descriptor's; what the file says is only for people.
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            told = self._told()
            os.close(self._descriptor)
            raise StoreHeld(f"{path}: {told} writes to it; wait for it to end, or end it") from None
        except OSError as error:
            os.close(self._descriptor)
            raise StoreUnusable(
                f"{self._path}: this filesystem has no locks ({error.strerror}); keep the run on a local disk"
            ) from error
        note = json.dumps({"who": who, "pid": os.getpid(), "since": time.strftime("%Y-%m-%d %H:%M:%S")})
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, note.encode(), 0)

    def release(self) -> None:
        """Let others write. Harmless when repeated."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _told(self) -> str:
        try:
            note = json.loads(os.pread(self._descriptor, 4096, 0))
            return f"`{note['who']}` (process {note['pid']}, since {note['since']})"
        except (OSError, ValueError, KeyError, TypeError):
            return "another command"

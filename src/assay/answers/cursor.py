"""Moving about in a tree of our own by descriptors, however deep it is."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
Leaving = Callable[[int, bytes], None]
"""Told the descriptor and the path of a folder that is left upwards, while it is still open."""


class Cursor:
    """The folder one is in, below a root that nobody else writes to. `close` it.

    It goes from folder to folder by the way between them, so that a walk in the order of paths costs no more than its
    entries, and no path is ever too long.
    """

    def __init__(self, root: int, leaving: Leaving = lambda *_: None) -> None:
        """`root` is an open folder and stays the caller's."""
        self.descriptor = os.open(b".", _FOLDER, dir_fd=root)
        self._names: list[bytes] = []
        self._leaving = leaving

    def go(self, names: list[bytes]) -> int:
        """Be in the folder with these names below the root; its descriptor is open until the next move.

        Raises `OSError` when it is not there, or is no folder.
        """
        shared = 0
        for ours, theirs in zip(self._names, names, strict=False):
            if ours != theirs:
                break
            shared += 1
        for _ in range(len(self._names) - shared):
            self._up()
        for name in names[shared:]:
            below = os.open(name, _FOLDER, dir_fd=self.descriptor)
            os.close(self.descriptor)
            self.descriptor = below
            self._names.append(name)
        return self.descriptor

    def finish(self) -> None:
        """Leave every folder, the root too."""
        self.go([])
        self._leaving(self.descriptor, b"")

    def close(self) -> None:
        """Close what is open, and tell nobody."""
        os.close(self.descriptor)

    def _up(self) -> None:
        above = os.open(b"..", _FOLDER, dir_fd=self.descriptor)
        self._leaving(self.descriptor, b"/".join(self._names))
        os.close(self.descriptor)
        self.descriptor = above
        self._names.pop()

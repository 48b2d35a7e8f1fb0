"""Workspaces that are kept unpacked, within a number of bytes: the least recently used go first.

An entry is a folder `HEX` with `workspace/` and `size` in it. It comes into its place in one step, whole. Who uses one
holds a shared lock on it; one that is locked is never removed. Everything here can be deleted; only time is lost.
"""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from assay.answers.depots import check_digest
from assay.workspaces import remove_tree, scratch_folder

_PER_ENTRY: Final = 4096
"""Bytes that a file, folder or link takes beside its content."""
_SHARE: Final = 20
"""A twentieth of the room may come in between two looks at what is there."""


class UnpackedWorkspaces:
    """The folder of unpacked workspaces. Safe for many threads and processes."""

    def __init__(self, folder: Path, most_bytes: int) -> None:
        """`folder` is made when the first workspace comes."""
        self._folder = folder
        self._most = most_bytes
        self._lock = threading.Lock()
        # Looking at every entry for each that comes in would cost the more, the more there are.
        self._unseen = most_bytes

    @contextmanager
    def room(self) -> Iterator[Path]:
        """An empty folder of one's own to make a workspace in, on the same filesystem; gone at the end of the block."""
        self._folder.mkdir(parents=True, exist_ok=True)
        with scratch_folder("unpacked", place=self._folder) as scratch:
            yield scratch

    def add(self, digest: str, workspace: Path, size: int, entries: int) -> None:
        """Take a finished folder over, which lies in a `room`; older ones make place for it."""
        entry = workspace.parent / f"entry-{workspace.name}"
        entry.mkdir(0o700)
        size += entries * _PER_ENTRY
        (entry / "size").write_text(str(size))
        workspace.rename(entry / "workspace")
        place = self._folder / check_digest(digest)
        try:
            entry.rename(place)
        except OSError as error:
            # Somebody else was first. That may be gone again by now: whoever needs it unpacks it again.
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        with self._lock:
            self._unseen += size
            if self._unseen < self._most // _SHARE:
                return
            self._unseen = 0
        self._make_place(place)

    @contextmanager
    def held(self, digest: str) -> Iterator[Path | None]:
        """The workspace, kept from being removed in this block; None when it is not here."""
        entry = self._folder / check_digest(digest)
        try:
            descriptor = os.open(entry, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            yield None
            return
        try:
            if _is_being_removed(descriptor) or not _is(entry, descriptor):
                yield None
                return
            with suppress(OSError):
                os.utime(descriptor)
            yield entry / "workspace"
        finally:
            os.close(descriptor)

    def _make_place(self, newest: Path) -> None:
        entries = sorted(self._entries())
        total = sum(size for _, size, _ in entries)
        # What comes in before the next look has room, too.
        enough = self._most - self._most // _SHARE
        for _, size, entry in entries:
            if total <= enough:
                return
            # The newest stays, however large: whoever made it is about to use it.
            if entry != newest and self._remove(entry):
                total -= size

    def _entries(self) -> Iterator[tuple[int, int, Path]]:
        """When each was last used, how large it is, where it is."""
        for entry in self._folder.iterdir():
            if len(entry.name) == 64:
                with suppress(OSError, ValueError):
                    yield entry.stat().st_mtime_ns, int((entry / "size").read_text()), entry

    def _remove(self, entry: Path) -> bool:
        try:
            descriptor = os.open(entry, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not _is(entry, descriptor):
                return False
            with scratch_folder("evicted", place=self._folder) as scratch:
                # In one step: nobody finds half a workspace.
                entry.rename(scratch / "entry")
                remove_tree(scratch / "entry")
        except OSError:
            return False
        finally:
            os.close(descriptor)
        return True


def _is_being_removed(descriptor: int) -> bool:
    """Whether somebody removes it now; else it is kept from being removed while the descriptor is open."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        # A filesystem without locks: nobody else should remove what is in use.
        return False
    return False


def _is(entry: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(entry.stat(), os.fstat(descriptor))
    except OSError:
        return False

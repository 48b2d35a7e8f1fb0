"""A workspace out of an archive in canonical form (see `packing`): made exactly as it was captured, and named as it is read.

The archive need not be trusted. Entries are made through descriptors below a folder of ours, in an order that must be the
manifest's, in folders that this very archive made; nothing is followed, nothing replaced.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from assay.answers.cursor import Cursor
from assay.workspaces.archive import CHUNK, ArchiveInvalid, Meter, Source, drain
from assay.workspaces.caps import Caps, Stopped, TargetError
from assay.workspaces.capture import KEPT_MODE
from assay.workspaces.copying import manifest_record
from assay.workspaces.opener import opened
from assay.workspaces.tar import Entry, Kind, TarReader

PATH_MAX: Final = 512 * 1024
"""Bytes in a path: what a capture at full depth can have."""

_NEW_FILE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
# What a name or a link's text in an archive can make the kernel say, whatever the machine.
_THE_ARCHIVES_FAULT: Final = frozenset({errno.ENAMETOOLONG, errno.EILSEQ, errno.EINVAL})
_KINDS: Final = {Kind.FILE: b"f", Kind.FOLDER: b"d", Kind.SYMLINK: b"l"}
_ZEROS: Final = bytes(CHUNK)


class NotCanonical(ArchiveInvalid):
    """An archive that may be good, but is not in canonical form."""


@dataclass(frozen=True, slots=True)
class Restored:
    """What was in an archive."""

    digest: str
    """`sha256:…`, that of `capture`."""
    entries: int
    bytes: int
    """Apparent size of files and link targets."""


def restore(source: Source, into: Path, caps: Caps, stop: threading.Event | None = None) -> Restored:
    """Make the workspace in a decompressed canonical archive, in the empty folder `into`.

    Modes are those of a capture: without setuid and setgid bits. Raises `NotCanonical`, `ArchiveInvalid` (`ArchiveTooLarge`
    over a cap), `TargetError` when it cannot be written, `Stopped`; what is in the folder is then of no use.
    """
    with opened(into) as root:
        restoring = _Restoring(root, caps, stop)
        try:
            reader = TarReader(source, path_max=PATH_MAX)
            for entry in reader:
                restoring.add(reader, entry)
            drain(source)
            return restoring.finish()
        finally:
            restoring.close()


class _Restoring:
    def __init__(self, root: int, caps: Caps, stop: threading.Event | None) -> None:
        self._meter = Meter(caps)
        self._stop = stop
        self._manifest = hashlib.sha256()
        self._last = b""
        self._modes: dict[bytes, dict[bytes, int]] = {}
        """Of folders that their owner may not write to, by the folder that they are in: set once that is left."""
        self._cursor = Cursor(root, self._set_modes)

    def close(self) -> None:
        self._cursor.close()

    def finish(self) -> Restored:
        try:
            self._cursor.finish()
            os.fchmod(self._cursor.descriptor, 0o755)
        except OSError as error:
            raise TargetError(".", error) from error
        return Restored(f"sha256:{self._manifest.hexdigest()}", self._meter.entries, self._meter.bytes)

    def add(self, reader: TarReader, entry: Entry) -> None:
        if self._stop is not None and self._stop.is_set():
            raise Stopped
        if entry.kind not in _KINDS:
            raise NotCanonical(f"{entry.shown}: a {entry.kind} in an archive of a workspace")
        path = entry.path
        names = path.split(b"/")
        if path <= self._last or any(name in (b"", b".", b"..") for name in names):
            raise NotCanonical(f"{entry.shown}: not in the order of paths, or not a plain relative path")
        if len(names) > self._meter.caps.depth:
            raise NotCanonical(f"{entry.shown}: too deep")
        self._last = path
        self._meter.add_entry(path, entry.shown)
        *parents, name = names
        try:
            parent = self._cursor.go(parents)
        except OSError as error:
            raise NotCanonical(f"{entry.shown}: the folder it is in is not there") from error
        try:
            content = self._make(parent, name, reader, entry)
        except OSError as error:
            if error.errno in _THE_ARCHIVES_FAULT:
                raise ArchiveInvalid(f"{entry.shown}: {error.strerror}") from error
            raise TargetError(entry.shown, error) from error
        self._manifest.update(manifest_record(_KINDS[entry.kind], entry.mode, path, content))

    def _make(self, parent: int, name: bytes, reader: TarReader, entry: Entry) -> bytes:
        """Make one entry; the digest of its content, in hex."""
        if entry.kind is Kind.FOLDER:
            mode = entry.mode & KEPT_MODE
            os.mkdir(name, 0o700, dir_fd=parent)
            os.chmod(name, mode | stat.S_IRWXU, dir_fd=parent)
            if mode & stat.S_IRWXU != stat.S_IRWXU:
                self._modes.setdefault(entry.path.rpartition(b"/")[0], {})[name] = mode
            return b""
        if entry.kind is Kind.SYMLINK:
            self._meter.add_bytes(len(entry.link), entry.shown)
            os.symlink(entry.link, name, dir_fd=parent)
            return hashlib.sha256(entry.link).hexdigest().encode()
        self._meter.add_bytes(entry.size, entry.shown)
        target = os.open(name, _NEW_FILE, 0o600, dir_fd=parent)
        try:
            content = hashlib.sha256()
            if entry.regions is None:
                while data := reader.read(CHUNK):
                    _write(target, data)
                    content.update(data)
            else:
                self._make_sparse(target, reader, entry, content)
            os.fchmod(target, entry.mode & KEPT_MODE)
            os.utime(target, ns=(entry.mtime_ns, entry.mtime_ns))
        finally:
            os.close(target)
        return content.hexdigest().encode()

    def _make_sparse(self, target: int, reader: TarReader, entry: Entry, content: hashlib._Hash) -> None:
        done = 0
        for region in entry.regions or ():
            _hash_zeros(content, region.offset - done)
            os.lseek(target, region.offset, os.SEEK_SET)
            left = region.size
            while left and (data := reader.read(min(left, CHUNK))):
                _write(target, data)
                content.update(data)
                left -= len(data)
            done = region.offset + region.size
        _hash_zeros(content, entry.size - done)
        os.ftruncate(target, entry.size)

    def _set_modes(self, descriptor: int, path: bytes) -> None:
        for name, mode in self._modes.pop(path, {}).items():
            os.chmod(name, mode, dir_fd=descriptor)


def _hash_zeros(content: hashlib._Hash, count: int) -> None:
    while count > 0:
        content.update(_ZEROS if count >= len(_ZEROS) else bytes(count))
        count -= len(_ZEROS)


def _write(target: int, data: bytes) -> None:
    written = os.write(target, data)
    while written < len(data):
        written += os.write(target, data[written:])

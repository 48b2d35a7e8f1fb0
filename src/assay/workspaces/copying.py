"""Copying a folder through descriptors, whatever is in it, and naming its content.

One walk serves captures of untrusted workspaces and copies of our own folders. It goes in the order of raw path bytes,
so that the manifest is hashed as it comes and nothing grows with the number of entries; it keeps two descriptors open,
however deep the tree; it returns to a parent through `..` and checks that it is still the same folder.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from typing import BinaryIO, Final

from assay.workspaces.caps import CapHit, Caps, SourceError, Stopped, TargetError
from assay.workspaces.listing import Found
from assay.workspaces.opener import open_path, reopen, show, type_name

_CHUNK: Final = 1024 * 1024
_ZEROS: Final = bytes(_CHUNK)
_SPARSE_FROM: Final = 64 * 1024
"""Smaller files are read whole: looking for holes would cost more than it saves."""

_DROPPED_MAX: Final = 1000
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(slots=True)
class Copied:
    """What one walk found."""

    entries: int = 0
    """In the manifest."""
    bytes: int = 0
    """Apparent size of all files and link targets."""
    dropped: list[Found] = field(default_factory=list)
    dropped_count: int = 0
    seen: int = 0
    """Entries, dropped ones included."""
    path_bytes: int = 0


@dataclass(slots=True)
class _Level:
    """A folder on the way down."""

    name: bytes
    mode: int
    identity: tuple[int, int]
    """Of the source folder."""
    prefix: int
    """Length of its path with the slash."""
    plan: list[bytes]
    """What is still to be done, the next one last: `name` is an entry, `name/` the descent into one."""
    modes: dict[bytes, int] = field(default_factory=dict)
    """Of the subfolders that are still to be descended into."""


def manifest_record(kind: bytes, mode: int, path: bytes, content: bytes) -> bytes:
    """One record of the canonical manifest (see `capture`); `content` is a digest in hex, empty for a folder."""
    return b"%b %04o %d %b %b\n" % (kind, mode & 0o7777, len(path), path, content)


class Walk:
    """One copy of the folder open at `source` into the empty folder open at `target`."""

    def __init__(
        self,
        source: int,
        target: int,
        *,
        caps: Caps,
        mode_mask: int,
        stop: threading.Event | None = None,
        records: BinaryIO | None = None,
    ) -> None:
        """`mode_mask` says which mode bits the copy keeps on disk; the manifest has them all. `records` gets its records."""
        self.source = os.dup(source)
        self.target = os.dup(target)
        self.caps = caps
        self.mode_mask = mode_mask
        self.stopped: Callable[[], bool] = stop.is_set if stop is not None else bool
        self.manifest = hashlib.sha256()
        self.records = records
        self.path = bytearray()
        self.copied = Copied()
        self.levels: list[_Level] = []

    def run(self) -> Copied:
        """Copy everything. Raises `SourceError`, `TargetError`, `CapHit` or `Stopped`; the copy is then incomplete."""
        try:
            self._list_source(b"", 0)
            while True:
                level = self.levels[-1]
                if not level.plan:
                    if len(self.levels) == 1:
                        return self.copied
                    self._leave()
                    continue
                if self.stopped():
                    raise Stopped
                step = level.plan.pop()
                if step.endswith(b"/"):
                    self._enter(step[:-1])
                else:
                    self._copy_entry(step)
        finally:
            os.close(self.source)
            os.close(self.target)

    def _list_source(self, name: bytes, mode: int) -> None:
        """Begin the level of the folder that `self.source` is."""
        room = self.caps.entries - self.copied.seen
        names: list[bytes] = []
        try:
            status = os.fstat(self.source)
            try:
                readable = os.open(b".", _FOLDER, dir_fd=self.source)
            except PermissionError:
                if not _closed_by_its_owner(status) or not self.levels:
                    raise
                self._drop(b".", "unreadable", 0)
            else:
                os.close(self.source)
                self.source = readable
                with os.scandir(readable) as entries:
                    names = [os.fsencode(entry.name) for entry in islice(entries, room + 1)]
        except OSError as error:
            raise SourceError(show(bytes(self.path).rstrip(b"/")) or ".", error) from error
        if len(names) > room:
            raise CapHit("entries", self.caps.entries, self._shown(b""))
        names.sort(reverse=True)
        if names and len(self.levels) >= self.caps.depth:
            raise CapHit("depth", self.caps.depth, self._shown(names[-1]))
        self.copied.seen += len(names)
        self.levels.append(_Level(name, mode, (status.st_dev, status.st_ino), len(self.path), names))

    def _enter(self, name: bytes) -> None:
        mode = self.levels[-1].modes.pop(name)
        try:
            below = open_path(self.source, name)
        except FileNotFoundError:
            return
        except OSError as error:
            raise SourceError(self._shown(name), error) from error
        if not stat.S_ISDIR(os.fstat(below).st_mode):
            # Replaced since it was seen: its copy stays an empty folder.
            os.close(below)
            return
        os.close(self.source)
        self.source = below
        try:
            target = os.open(name, _FOLDER, dir_fd=self.target)
        except OSError as error:
            raise TargetError(self._shown(name), error) from error
        os.close(self.target)
        self.target = target
        self.path += name + b"/"
        self._list_source(name, mode)

    def _leave(self) -> None:
        level = self.levels.pop()
        parent = self.levels[-1]
        try:
            os.fchmod(self.target, level.mode & self.mode_mask)
            above = os.open(b"..", _FOLDER, dir_fd=self.target)
        except OSError as error:
            raise TargetError(self._shown(b""), error) from error
        os.close(self.target)
        self.target = above
        try:
            above = os.open(b"..", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self.source)
        except OSError as error:
            raise SourceError(self._shown(b""), error) from error
        os.close(self.source)
        self.source = above
        status = os.fstat(above)
        del self.path[parent.prefix :]
        if (status.st_dev, status.st_ino) != parent.identity:
            moved = OSError(errno.EBUSY, "it was moved while it was copied")
            raise SourceError(self._shown(level.name), moved)

    def _copy_entry(self, name: bytes) -> None:
        try:
            found = open_path(self.source, name)
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno == errno.EXDEV:
                self._drop(name, "mount", 0)
                return
            raise SourceError(self._shown(name), error) from error
        try:
            status = os.fstat(found)
            kind = status.st_mode & 0o170000
            if kind == stat.S_IFREG:
                source = self._open_file(found, status, name)
                if source is not None:
                    self._record(b"f", status.st_mode, name, self._copy_file(source, status, name))
            elif kind == stat.S_IFDIR:
                self._record(b"d", status.st_mode, name, b"")
                self._make_folder(name, status.st_mode)
            elif kind == stat.S_IFLNK:
                self._record(b"l", status.st_mode, name, self._copy_link(found, name))
            else:
                self._drop(name, type_name(status.st_mode), status.st_size)
        finally:
            os.close(found)

    def _record(self, kind: bytes, mode: int, name: bytes, digest: bytes) -> None:
        copied = self.copied
        copied.entries += 1
        length = len(self.path) + len(name)
        copied.path_bytes += length
        if copied.path_bytes > self.caps.path_bytes:
            raise CapHit("path_bytes", self.caps.path_bytes, self._shown(name))
        record = manifest_record(kind, mode, bytes(self.path) + name, digest)
        self.manifest.update(record)
        if self.records is not None:
            try:
                self.records.write(record)
            except OSError as error:
                raise TargetError(self._shown(name), error) from error

    def _drop(self, name: bytes, kind: str, size: int) -> None:
        self.copied.dropped_count += 1
        if len(self.copied.dropped) < _DROPPED_MAX:
            self.copied.dropped.append(Found(self._shown(name), kind, size))

    def _make_folder(self, name: bytes, mode: int) -> None:
        try:
            os.mkdir(name, 0o700, dir_fd=self.target)
        except OSError as error:
            raise TargetError(self._shown(name), error) from error
        level = self.levels[-1]
        level.modes[name] = mode
        descent = name + b"/"
        plan = level.plan
        # What sorts between `name` and `name/` (`name-1`, say) comes before the descent: paths are in raw byte order.
        low, high = 0, len(plan)
        if plan and plan[-1] < descent:
            while low < high:
                middle = (low + high) // 2
                if plan[middle] > descent:
                    low = middle + 1
                else:
                    high = middle
        else:
            low = high
        plan.insert(low, descent)

    def _copy_link(self, found: int, name: bytes) -> bytes:
        try:
            text = os.readlink(b"", dir_fd=found)
        except OSError as error:
            raise SourceError(self._shown(name), error) from error
        self._count(len(text), name)
        try:
            os.symlink(text, name, dir_fd=self.target)
        except OSError as error:
            raise TargetError(self._shown(name), error) from error
        return hashlib.sha256(text).hexdigest().encode()

    def _count(self, size: int, name: bytes) -> None:
        self.copied.bytes += size
        if self.copied.bytes > self.caps.bytes:
            raise CapHit("bytes", self.caps.bytes, self._shown(name))

    def _open_file(self, found: int, status: os.stat_result, name: bytes) -> int | None:
        """The file for reading; None for one that whoever made it keeps us from, which is dropped: that masks nothing."""
        try:
            return reopen(found, os.O_RDONLY)
        except BlockingIOError:
            self._drop(name, "leased", status.st_size)
        except PermissionError as error:
            if not _closed_by_its_owner(status):
                raise SourceError(self._shown(name), error) from error
            self._drop(name, "unreadable", status.st_size)
        except OSError as error:
            raise SourceError(self._shown(name), error) from error
        return None

    def _copy_file(self, source: int, status: os.stat_result, name: bytes) -> bytes:
        # The size now bounds what is read: a file that still grows is cut there.
        size = status.st_size
        try:
            self._count(size, name)
        except CapHit:
            os.close(source)
            raise
        try:
            target = os.open(name, _NEW_FILE, 0o600, dir_fd=self.target)
        except OSError as error:
            os.close(source)
            raise TargetError(self._shown(name), error) from error
        try:
            content = hashlib.sha256()
            try:
                read = self._copy_content(source, target, size, status.st_blocks * 512 < size, content)
            except _WriteError as error:
                raise TargetError(self._shown(name), error.error) from error
            except OSError as error:
                raise SourceError(self._shown(name), error) from error
            self.copied.bytes -= size - read
            try:
                os.fchmod(target, status.st_mode & self.mode_mask)
                os.utime(target, ns=(status.st_mtime_ns, status.st_mtime_ns))
            except OSError as error:
                raise TargetError(self._shown(name), error) from error
        finally:
            os.close(source)
            os.close(target)
        return content.hexdigest().encode()

    def _copy_content(self, source: int, target: int, size: int, holes: bool, content: hashlib._Hash) -> int:
        """Copy and hash at most `size` bytes; how many there were."""
        done = 0
        if not holes or size < _SPARSE_FROM:
            return self._copy_data(source, target, size, content)
        while done < size:
            data = _seek(source, done, os.SEEK_DATA, size)
            self._hash_zeros(data - done, content)
            done = data
            end = _seek(source, data, os.SEEK_HOLE, size)
            os.lseek(source, data, os.SEEK_SET)
            os.lseek(target, data, os.SEEK_SET)
            read = self._copy_data(source, target, end - data, content)
            done += read
            if read < end - data:
                break
        try:
            os.ftruncate(target, done)
        except OSError as error:
            raise _WriteError(error) from error
        return done

    def _copy_data(self, source: int, target: int, size: int, content: hashlib._Hash) -> int:
        done = 0
        while done < size:
            chunk = os.read(source, min(size - done, _CHUNK))
            if not chunk:
                break
            content.update(chunk)
            done += len(chunk)
            _write(target, chunk)
            if self.stopped():
                raise Stopped
        return done

    def _hash_zeros(self, count: int, content: hashlib._Hash) -> None:
        while count > 0:
            content.update(_ZEROS if count >= _CHUNK else bytes(count))
            count -= _CHUNK
            if self.stopped():
                raise Stopped

    def _shown(self, name: bytes) -> str:
        return show(bytes(self.path) + name)


def _closed_by_its_owner(status: os.stat_result) -> bool:
    """Whether an entry cannot be read though it is this user's own: by its mode, which its maker chose."""
    return status.st_uid == os.geteuid()


class _WriteError(Exception):
    def __init__(self, error: OSError) -> None:
        super().__init__(error)
        self.error = error


def _write(target: int, chunk: bytes) -> None:
    try:
        written = os.write(target, chunk)
        while written < len(chunk):
            written += os.write(target, chunk[written:])
    except OSError as error:
        raise _WriteError(error) from error


def _seek(descriptor: int, offset: int, what: int, size: int) -> int:
    """Where data, or a hole, begins at or after `offset`; `size` when there is none."""
    try:
        return min(os.lseek(descriptor, offset, what), size)
    except OSError as error:
        if error.errno == errno.ENXIO:
            return size
        if error.errno == errno.EINVAL:
            # A filesystem that knows no holes: all of it is data.
            return offset if what == os.SEEK_DATA else size
        raise

"""Unpacking an archive that is not trusted into a folder of ours.

Every entry is made beneath the folder through descriptors. Names are confined to it: an absolute one begins at the
folder, `..` stops there, and a link on the way (`/lib` to `usr/lib`, which layers of images write through) is followed
inside it as if it were `/`. Links are kept as text. Nothing that exists is ever written to: it is removed, and made anew.
Owners, extended attributes, setuid, setgid and sticky bits are left out; devices and FIFOs are dropped and listed.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from assay.workspaces.archive import CHUNK, ArchiveInvalid, ArchiveTooLarge, Meter, Source, drain
from assay.workspaces.caps import TargetError
from assay.workspaces.inside import Inside, NotInside, make_folder, parts_of, set_mode
from assay.workspaces.listing import Found
from assay.workspaces.opener import opened, show
from assay.workspaces.tar import Entry, Kind, TarReader
from assay.workspaces.tree import remove_at

_Made = TypeVar("_Made")
ModeOf = Callable[[Kind, int], int]
"""The mode that a file or folder gets, from what it is and the twelve bits in the archive."""

_NEW_FILE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_DROPPED_MAX: Final = 1000
# What a name or a link's text in an archive can make the kernel say, whatever the machine.
_THE_ARCHIVES_FAULT: Final = frozenset({errno.ENAMETOOLONG, errno.EILSEQ, errno.EINVAL})
_NO_LINK: Final = frozenset({errno.EMLINK, errno.EPERM, errno.EOPNOTSUPP, errno.EXDEV})


class Unpacker:
    """Makes entries in one folder, of one archive or of several on top of each other. `close` it."""

    def __init__(self, root: int, meter: Meter, mode_of: ModeOf) -> None:
        """`root` is an open folder that nobody else writes to; it stays the caller's.

        What `mode_of` gives is kept without setuid, setgid and sticky bits, and the owner can always read and write (in a
        folder: pass, too).
        """
        self.dropped: list[Found] = []
        self.dropped_count = 0
        self.meter = meter
        self._mode_of = mode_of
        self._stale = False
        self._inside = Inside(root, depth=meter.caps.depth, making=lambda path: meter.add_entry(path, show(path)))

    def close(self) -> None:
        """Close what is open. Harmless when repeated."""
        self._inside.close()

    def add(self, reader: TarReader, entry: Entry) -> None:
        """Make the entry that `reader` has just given.

        Raises `ArchiveInvalid` (`ArchiveTooLarge` over a cap) when the archive is to blame, `TargetError` when it cannot
        be written.
        """
        parts = parts_of(entry.path)
        self.meter.add_entry(entry.path, entry.shown)
        if len(parts) > self.meter.caps.depth:
            raise ArchiveTooLarge("depth", self.meter.caps.depth, entry.shown)
        if not parts:
            if entry.kind is not Kind.FOLDER:
                raise ArchiveInvalid(f"{entry.shown}: a {entry.kind} in the place of the root folder")
            return
        try:
            if entry.kind is Kind.HARD_LINK:
                self._hard_link(parts, entry)
            else:
                self._make(self._inside.folder(parts[:-1], make=True), parts[-1], reader, entry)
        except NotInside as error:
            raise ArchiveInvalid(f"{entry.shown}: {error}") from None
        except OSError as error:
            if error.errno in _THE_ARCHIVES_FAULT:
                raise ArchiveInvalid(f"{entry.shown}: {error.strerror}") from error
            raise TargetError(entry.shown, error) from error
        finally:
            if self._stale:
                self._inside.close()
                self._stale = False

    def hide(self, parts: list[bytes]) -> None:
        """Remove what an earlier archive made at a path: a whiteout. Nothing there is as good as removed."""
        try:
            remove_at(self._inside.folder(parts[:-1], make=False), parts[-1])
        except (FileNotFoundError, NotInside):
            return
        except OSError as error:
            raise TargetError(show(b"/".join(parts)), error) from error
        finally:
            self._inside.close()

    def hide_all(self, parts: list[bytes]) -> None:
        """Empty a folder that an earlier archive made: an opaque whiteout."""
        try:
            folder = self._inside.folder(parts, make=False)
            readable = os.open(b".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
            try:
                with os.scandir(readable) as found:
                    names = [os.fsencode(entry.name) for entry in found]
                for name in names:
                    remove_at(readable, name)
            finally:
                os.close(readable)
        except (FileNotFoundError, NotInside):
            return
        except OSError as error:
            raise TargetError(show(b"/".join(parts)), error) from error
        finally:
            self._inside.close()

    def _make(self, parent: int, name: bytes, reader: TarReader, entry: Entry) -> None:
        match entry.kind:
            case Kind.FILE:
                self._file(parent, name, reader, entry)
            case Kind.FOLDER:
                self._folder(parent, name, self._mode_of(Kind.FOLDER, entry.mode) & 0o777 | stat.S_IRWXU)
            case Kind.SYMLINK:
                self._fresh(parent, name, lambda: os.symlink(entry.link, name, dir_fd=parent))
            case _:
                self._clear(parent, name)
                self.dropped_count += 1
                if len(self.dropped) < _DROPPED_MAX:
                    self.dropped.append(Found(entry.shown, entry.kind.value, 0))

    def _fresh(self, parent: int, name: bytes, make: Callable[[], _Made]) -> _Made:
        """Make something where nothing is, or where something was."""
        try:
            return make()
        except FileExistsError:
            self._clear(parent, name)
            return make()

    def _clear(self, parent: int, name: bytes) -> None:
        remove_at(parent, name)
        # The folder last asked for may have been reached through it.
        self._stale = True

    def _folder(self, parent: int, name: bytes, mode: int) -> None:
        try:
            make_folder(parent, name, mode)
        except FileExistsError:
            # A folder stays, with what is in it; anything else, a link to a folder too, gives way.
            if stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
                set_mode(parent, name, mode)
                return
            self._clear(parent, name)
            make_folder(parent, name, mode)

    def _file(self, parent: int, name: bytes, reader: TarReader, entry: Entry) -> None:
        target = self._fresh(parent, name, lambda: os.open(name, _NEW_FILE, 0o600, dir_fd=parent))
        try:
            if entry.regions is None:
                while data := reader.read(CHUNK):
                    _write(target, data)
            else:
                self._sparse(target, reader, entry)
            os.fchmod(target, self._mode_of(Kind.FILE, entry.mode) & 0o777 | stat.S_IRUSR | stat.S_IWUSR)
            os.utime(target, ns=(entry.mtime_ns, entry.mtime_ns))
        finally:
            os.close(target)

    def _sparse(self, target: int, reader: TarReader, entry: Entry) -> None:
        regions = entry.regions or ()
        self.meter.add_bytes(entry.size - sum(region.size for region in regions), entry.shown)
        for region in regions:
            os.lseek(target, region.offset, os.SEEK_SET)
            left = region.size
            while left and (data := reader.read(min(left, CHUNK))):
                _write(target, data)
                left -= len(data)
        os.ftruncate(target, entry.size)

    def _hard_link(self, parts: list[bytes], entry: Entry) -> None:
        """A second name for what an earlier entry made; a copy where the filesystem has no more."""
        target = parts_of(entry.link)
        leads = f"{entry.shown}: a hard link to {show(entry.link)}"
        if not target:
            raise ArchiveInvalid(f"{leads}, which is a folder")
        try:
            source = os.dup(self._inside.folder(target[:-1], make=False))
        except FileNotFoundError:
            raise ArchiveInvalid(f"{leads}, which is not there") from None
        try:
            try:
                status = os.stat(target[-1], dir_fd=source, follow_symlinks=False)
            except FileNotFoundError:
                raise ArchiveInvalid(f"{leads}, which is not there") from None
            if stat.S_ISDIR(status.st_mode):
                raise ArchiveInvalid(f"{leads}, which is a folder")
            parent = self._inside.folder(parts[:-1], make=True)
            if _same(parent, parts[-1], status):
                return
            try:
                self._fresh(parent, parts[-1], lambda: _link(source, target[-1], parent, parts[-1]))
            except FileNotFoundError:
                raise ArchiveInvalid(f"{leads}, which lies in what it replaces") from None
            except OSError as error:
                if error.errno not in _NO_LINK:
                    raise
                self._copy(source, target[-1], status, parent, parts[-1], entry)
        finally:
            os.close(source)

    def _copy(self, source: int, target: bytes, status: os.stat_result, parent: int, name: bytes, entry: Entry) -> None:
        if stat.S_ISLNK(status.st_mode):
            text = os.readlink(target, dir_fd=source)
            self._fresh(parent, name, lambda: os.symlink(text, name, dir_fd=parent))
            return
        self.meter.add_bytes(status.st_size, entry.shown)
        original = os.open(target, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=source)
        try:
            made = self._fresh(parent, name, lambda: os.open(name, _NEW_FILE, 0o600, dir_fd=parent))
            try:
                while data := os.read(original, CHUNK):
                    _write(made, data)
                os.fchmod(made, stat.S_IMODE(status.st_mode))
                os.utime(made, ns=(status.st_mtime_ns, status.st_mtime_ns))
            finally:
                os.close(made)
        finally:
            os.close(original)


def unpack(
    source: Source, into: Path, *, meter: Meter, mode_of: ModeOf, tell: Callable[[Meter], None] = lambda _: None
) -> Unpacker:
    """Unpack a whole archive, decompressed already, into an empty folder; the unpacker says what was dropped.

    `tell` is called after each entry. Raises `ArchiveInvalid`, `ArchiveTooLarge` and `TargetError`; nothing that was
    unpacked is then left in the folder.
    """
    with opened(into) as root:
        unpacker = Unpacker(root, meter, mode_of)
        try:
            reader = TarReader(source)
            for entry in reader:
                unpacker.add(reader, entry)
                tell(meter)
            drain(source)
        except BaseException:
            unpacker.close()
            unpacker.hide_all([])
            raise
        finally:
            unpacker.close()
    return unpacker


def _link(source: int, target: bytes, parent: int, name: bytes) -> None:
    os.link(target, name, src_dir_fd=source, dst_dir_fd=parent, follow_symlinks=False)


def _same(parent: int, name: bytes, status: os.stat_result) -> bool:
    try:
        return os.path.samestat(os.stat(name, dir_fd=parent, follow_symlinks=False), status)
    except FileNotFoundError:
        return False


def _write(target: int, data: bytes) -> None:
    written = os.write(target, data)
    while written < len(data):
        written += os.write(target, data[written:])

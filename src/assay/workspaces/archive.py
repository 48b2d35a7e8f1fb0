"""Reading an archive file that is not trusted: its bytes in order, decompressed, counted and never more than allowed.

gzip, bzip2, xz and Zstandard are recognised by how they begin; anything else is taken as it is. A source hands out at most
as many bytes as it was asked for, however small the compressed data that they come from.
"""

from __future__ import annotations

import bz2
import hashlib
import lzma
import os
import zlib
from collections.abc import Callable
from typing import Final, Protocol

from assay.workspaces.caps import Caps

CHUNK: Final = 256 * 1024
_COMPRESSED_CHUNK: Final = 64 * 1024
_WINDOW_MAX: Final = 128 * 1024**2
"""Bytes that a decompressor may need for its own work. What `zstd` and `xz -9` need without special options."""

GZIP: Final = b"\x1f\x8b"
_BZIP2: Final = b"BZh"
_XZ: Final = b"\xfd7zXZ\0"
_ZSTD: Final = b"\x28\xb5\x2f\xfd"
_ZSTD_SKIPPABLE: Final = b"\x2a\x4d\x18"
MAGIC_MAX: Final = 6


class ArchiveInvalid(Exception):
    """An archive that is not used: damaged, cut short, hostile, or of a form that is not understood.

    The message is a sentence for a person, and says where in the archive.
    """


class ArchiveTooLarge(ArchiveInvalid):
    """An archive that holds more than a cap allows."""

    def __init__(self, cap: str, limit: int, where: str) -> None:
        """`cap` is the field of `Caps`; `where` says what was being read."""
        names = {"entries": "entries", "depth": "names in one path", "path_bytes": "bytes of paths"}
        super().__init__(f"{where}: the archive holds more than {limit:,} {names.get(cap, 'bytes')}")
        self.cap = cap
        self.limit = limit


class Source(Protocol):
    """Bytes in order."""

    def read(self, size: int) -> bytes:
        """At most `size` bytes; none only at the end. Raises `ArchiveInvalid`."""
        ...

    def skip(self, size: int) -> int:
        """Pass over at most `size` bytes; how many there were."""
        ...


class Meter:
    """What has been read of one archive, or of all layers of one image, against its caps."""

    def __init__(self, caps: Caps) -> None:
        """Starts at nothing."""
        self.caps = caps
        self.bytes = 0
        """Decompressed, headers included; what a sparse file or a copy adds beyond that."""
        self.entries = 0
        self.path_bytes = 0

    def add_bytes(self, count: int, where: str) -> None:
        """Count bytes. Raises `ArchiveTooLarge`."""
        self.bytes += count
        if self.bytes > self.caps.bytes:
            raise ArchiveTooLarge("bytes", self.caps.bytes, where)

    def add_entry(self, path: bytes, shown: str) -> None:
        """Count an entry and its path. Raises `ArchiveTooLarge`."""
        self.entries += 1
        self.path_bytes += len(path)
        if self.entries > self.caps.entries:
            raise ArchiveTooLarge("entries", self.caps.entries, shown)
        if self.path_bytes > self.caps.path_bytes:
            raise ArchiveTooLarge("path_bytes", self.caps.path_bytes, shown)


class FileSlice:
    """A part of an open regular file. Its descriptor's own offset is neither used nor moved."""

    def __init__(self, descriptor: int, offset: int, size: int) -> None:
        """`size` bytes from `offset`; a file that is shorter ends earlier."""
        self._descriptor = descriptor
        self.position = offset
        self._end = offset + size

    def read(self, size: int) -> bytes:
        """See `Source.read`."""
        try:
            data = os.pread(self._descriptor, min(size, self._end - self.position), self.position)
        except OSError as error:
            raise ArchiveInvalid(f"the archive cannot be read: {error.strerror}") from error
        self.position += len(data)
        return data

    def skip(self, size: int) -> int:
        """See `Source.skip`."""
        there = min(self._end, os.fstat(self._descriptor).st_size)
        skipped = max(0, min(size, there - self.position))
        self.position += skipped
        return skipped


class PipeSource:
    """What comes out of a descriptor that can only be read once: a pipe."""

    def __init__(self, descriptor: int) -> None:
        """The caller closes the descriptor."""
        self._descriptor = descriptor

    def read(self, size: int) -> bytes:
        """See `Source.read`."""
        try:
            return os.read(self._descriptor, size)
        except OSError as error:
            raise ArchiveInvalid(f"the archive cannot be read: {error.strerror}") from error

    def skip(self, size: int) -> int:
        """See `Source.skip`."""
        return skip_by_reading(self, size)


class Begun:
    """A source whose first bytes were looked at already."""

    def __init__(self, first: bytes, rest: Source) -> None:
        """`first` comes before what `rest` has."""
        self._first = first
        self._rest = rest

    def read(self, size: int) -> bytes:
        """See `Source.read`."""
        if not self._first:
            return self._rest.read(size)
        data, self._first = self._first[:size], self._first[size:]
        return data

    def skip(self, size: int) -> int:
        """See `Source.skip`."""
        data = self.read(min(size, len(self._first))) if self._first else b""
        return len(data) + (self._rest.skip(size - len(data)) if size > len(data) else 0)


class Hashed:
    """A source that names what was read of it."""

    def __init__(self, source: Source, algorithm: str = "sha256") -> None:
        """`algorithm` is one of `hashlib`'s."""
        self._source = source
        self._hash = hashlib.new(algorithm)
        self.size = 0

    def read(self, size: int) -> bytes:
        """See `Source.read`."""
        data = self._source.read(size)
        self._hash.update(data)
        self.size += len(data)
        return data

    def skip(self, size: int) -> int:
        """See `Source.skip`."""
        return skip_by_reading(self, size)

    def hexdigest(self) -> str:
        """Of all bytes so far."""
        return self._hash.hexdigest()


class Metered:
    """A source whose bytes count against a cap."""

    def __init__(self, source: Source, meter: Meter, where: str) -> None:
        """`where` names the archive in the error."""
        self._source = source
        self._meter = meter
        self._where = where

    def read(self, size: int) -> bytes:
        """See `Source.read`."""
        data = self._source.read(size)
        self._meter.add_bytes(len(data), self._where)
        return data

    def skip(self, size: int) -> int:
        """See `Source.skip`."""
        skipped = self._source.skip(size)
        self._meter.add_bytes(skipped, self._where)
        return skipped


def skip_by_reading(source: Source, size: int) -> int:
    """`Source.skip` where there is nothing better."""
    left = size
    while left > 0 and (data := source.read(min(left, CHUNK))):
        left -= len(data)
    return size - left


def drain(source: Source) -> None:
    """Read to the end: a checksum or a digest covers what comes after the last entry, too."""
    while source.read(CHUNK):
        pass


def read_exactly(source: Source, size: int) -> bytes:
    """`size` bytes, or fewer at the end of the source."""
    data = source.read(size)
    if len(data) == size or not data:
        return data
    parts = [data]
    have = len(data)
    while have < size and (data := source.read(size - have)):
        parts.append(data)
        have += len(data)
    return b"".join(parts)


def is_compressed(first: bytes) -> bool:
    """Whether an archive that begins so is compressed. `MAGIC_MAX` bytes decide."""
    return first.startswith((GZIP, _BZIP2, _XZ, _ZSTD)) or _is_skippable(first)


def decompressed(source: Source, where: str) -> Source:
    """What the source holds once it is decompressed; a source that is not compressed as it is.

    `where` names it in errors. Reading raises `ArchiveInvalid` for damaged data, and for data that ends too early where
    the format can tell.
    """
    first = read_exactly(source, MAGIC_MAX)
    whole = Begun(first, source)
    if first.startswith(GZIP):
        return _Members(whole, _GzipMember, "gzip", where)
    if first.startswith(_BZIP2):
        return _Members(whole, bz2.BZ2Decompressor, "bzip2", where)
    if first.startswith(_XZ):
        return _Members(whole, lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, _WINDOW_MAX), "xz", where)
    if first.startswith(_ZSTD) or _is_skippable(first):
        return _Zstandard(whole, where)
    return whole


def _is_skippable(first: bytes) -> bool:
    return first[1:4] == _ZSTD_SKIPPABLE and first[:1] in {bytes((0x50 + n,)) for n in range(16)}


class _Member(Protocol):
    """One compressed stream of what may be several, one after the other."""

    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


class _GzipMember:
    """zlib's decompressor with the manners of the other two."""

    def __init__(self) -> None:
        self._zlib = zlib.decompressobj(16 + zlib.MAX_WBITS)
        self._tail = b""
        self.needs_input = True

    @property
    def eof(self) -> bool:
        return self._zlib.eof

    @property
    def unused_data(self) -> bytes:
        return self._zlib.unused_data

    def decompress(self, data: bytes, max_length: int, /) -> bytes:
        out = self._zlib.decompress(self._tail + data if self._tail else data, max_length)
        self._tail = self._zlib.unconsumed_tail
        self.needs_input = not self._zlib.eof and not self._tail and len(out) < max_length
        return out


class _Members:
    """Compressed streams one after the other, with zeros allowed after the last (a tape's padding, `xz`'s own)."""

    def __init__(self, source: Source, make: Callable[[], _Member], name: str, where: str) -> None:
        self._source = source
        self._make = make
        self._name = name
        self._where = where
        self._member: _Member | None = make()

    def read(self, size: int) -> bytes:
        while self._member is not None and size > 0:
            data = b""
            if self._member.eof:
                self._next(self._member.unused_data)
                continue
            if self._member.needs_input:
                data = self._source.read(_COMPRESSED_CHUNK)
                if not data:
                    raise ArchiveInvalid(f"{self._where}: the {self._name} data is cut short")
            if out := self._decompress(data, size):
                return out
        return b""

    def skip(self, size: int) -> int:
        return skip_by_reading(self, size)

    def _decompress(self, data: bytes, size: int) -> bytes:
        assert self._member is not None  # noqa: S101 - the caller has looked
        try:
            return self._member.decompress(data, size)
        except (zlib.error, lzma.LZMAError, OSError, EOFError, ValueError) as error:
            raise ArchiveInvalid(f"{self._where}: the {self._name} data is damaged: {error}") from error

    def _next(self, left: bytes) -> None:
        """Begin the member that follows, or be at the end."""
        left = left.lstrip(b"\0")
        while not left:
            data = self._source.read(_COMPRESSED_CHUNK)
            if not data:
                self._member = None
                return
            left = data.lstrip(b"\0")
        self._source = Begun(left, self._source)
        self._member = self._make()


class _Zstandard:
    """Zstandard frames one after the other. A cut within the last frame shows as an early end."""

    def __init__(self, source: Source, where: str) -> None:
        # Loaded for archives that need it: no other command has a use for it.
        import zstandard

        self._where = where
        self._error = zstandard.ZstdError
        decompressor = zstandard.ZstdDecompressor(max_window_size=_WINDOW_MAX)
        self._reader = decompressor.stream_reader(
            source,  # type: ignore[arg-type] # nothing but `read` is called
            read_size=_COMPRESSED_CHUNK,
            read_across_frames=True,
        )

    def read(self, size: int) -> bytes:
        try:
            return self._reader.read(size)
        except self._error as error:
            raise ArchiveInvalid(f"{self._where}: the zstd data is damaged: {error}") from error

    def skip(self, size: int) -> int:
        return skip_by_reading(self, size)

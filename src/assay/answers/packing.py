"""A captured workspace as a tar archive: every entry of its manifest, in the manifest's order, modes as they were.

Which makes the archive's form canonical, so that its digest can be checked while it is read, and nothing of it but its
times can differ between two archives of one content. Holes of sparse files stay holes (GNU's form 1.0).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from typing import BinaryIO, Final, NamedTuple

from assay.answers.cursor import Cursor
from assay.workspaces.opener import show

Write = Callable[[bytes], object]

BLOCK: Final = 512
_CHUNK: Final = 1024 * 1024
_OCTAL_MAX: Final = 8**11 - 1
_SPARSE_FROM: Final = 64 * 1024
_REGIONS_MAX: Final = 50_000
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
_TYPES: Final = {b"f": b"0", b"d": b"5", b"l": b"2"}


class PackError(Exception):
    """The captured workspace cannot be read back: the host's disk, or somebody who changed it."""

    def __init__(self, path: bytes, error: OSError) -> None:
        """`path` is where in the workspace."""
        super().__init__(f"{show(path)}: {error.strerror}")
        self.error = error


class Record(NamedTuple):
    """An entry of a manifest."""

    kind: bytes
    """`f`, `d` or `l`."""
    mode: int
    path: bytes


def read_records(manifest: BinaryIO) -> Iterator[Record]:
    """The entries of a manifest that `capture` wrote, without their contents' digests."""
    while head := manifest.read(7):
        length = b""
        while (digit := manifest.read(1)) != b" ":
            length += digit
        yield Record(head[:1], int(head[2:6], 8), manifest.read(int(length)))
        manifest.readline()


def pack(folder: int, manifest: BinaryIO, write: Write) -> None:
    """Write the captured workspace open at `folder`, whose manifest is given, as a tar archive.

    Raises `PackError` when it cannot be read; what `write` raises goes through.
    """
    cursor = Cursor(folder)
    try:
        for record in read_records(manifest):
            *parents, name = record.path.split(b"/")
            try:
                parent = cursor.go(parents)
                if record.kind == b"f":
                    source = os.open(name, _FILE, dir_fd=parent)
                else:
                    link = os.readlink(name, dir_fd=parent) if record.kind == b"l" else b""
                    write(_headers(record, link=link))
                    continue
            except OSError as error:
                raise PackError(record.path, error) from error
            try:
                _pack_file(record, source, write)
            finally:
                os.close(source)
    finally:
        cursor.close()
    write(bytes(2 * BLOCK))


def _pack_file(record: Record, source: int, write: Write) -> None:
    status = os.fstat(source)
    size = status.st_size
    if status.st_blocks * BLOCK < size and size >= _SPARSE_FROM:
        regions = list(_regions(source, size))
        text = b"%d\n" % len(regions) + b"".join(b"%d\n%d\n" % region for region in regions)
        table = text + bytes(-len(text) % BLOCK)
        stored = len(table) + sum(length for _, length in regions)
        write(_headers(record, stored, status.st_mtime_ns, sparse=size) + table)
    else:
        regions, stored = [(0, size)], size
        write(_headers(record, size, status.st_mtime_ns))
    for offset, length in regions:
        done = 0
        while done < length:
            try:
                data = os.pread(source, min(length - done, _CHUNK), offset + done)
            except OSError as error:
                raise PackError(record.path, error) from error
            if not data:
                raise PackError(record.path, OSError(errno.EIO, "it became shorter since it was captured"))
            write(data)
            done += len(data)
    if stored % BLOCK:
        write(bytes(-stored % BLOCK))


def _regions(source: int, size: int) -> Iterator[tuple[int, int]]:
    """Where the file has data; the last one takes in what is beyond the most that a reader takes.

    A hole at the end is followed by a region of no bytes: GNU tar takes the end of the last one for the end of the file.
    """
    position = 0
    for number in range(_REGIONS_MAX):
        try:
            begin = os.lseek(source, position, os.SEEK_DATA)
            end = os.lseek(source, begin, os.SEEK_HOLE)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            yield size, 0
            return
        position = end if number < _REGIONS_MAX - 1 else size
        yield begin, min(position, size) - begin


def _headers(
    record: Record, size: int = 0, mtime_ns: int = 0, *, link: bytes = b"", sparse: int | None = None
) -> bytes:
    """The header of an entry, and before it an extended one for what does not fit into it."""
    more: list[tuple[bytes, bytes]] = []
    path = record.path
    if not path.isascii() or not link.isascii():
        more.append((b"hdrcharset", b"BINARY"))
    if sparse is not None:
        more += [(b"GNU.sparse.major", b"1"), (b"GNU.sparse.minor", b"0"), (b"GNU.sparse.name", path)]
        more.append((b"GNU.sparse.realsize", b"%d" % sparse))
        path = b"GNUSparseFile.0/" + path.rpartition(b"/")[2]
    elif len(path) > 100:
        more.append((b"path", path))
    if len(link) > 100:
        more.append((b"linkpath", link))
    if size > _OCTAL_MAX:
        more.append((b"size", b"%d" % size))
    seconds, rest = divmod(max(mtime_ns, 0), 10**9)
    if rest or seconds > _OCTAL_MAX:
        more.append((b"mtime", b"%d.%09d" % (seconds, rest)))
    header = _header(path, _TYPES[record.kind], record.mode, size, seconds, link)
    if not more:
        return header
    data = b"".join(_record(key, value) for key, value in more)
    return _header(b"@extended", b"x", 0o644, len(data), 0, b"") + data + bytes(-len(data) % BLOCK) + header


def _header(path: bytes, kind: bytes, mode: int, size: int, mtime: int, link: bytes) -> bytes:
    fields: Sequence[bytes] = (
        path[:100].ljust(100, b"\0"),
        b"%07o\0" % mode,
        b"0000000\0" * 2,
        b"%011o\0" % min(size, _OCTAL_MAX),
        b"%011o\0" % min(mtime, _OCTAL_MAX),
        b" " * 8,
        kind,
        link[:100].ljust(100, b"\0"),
        b"ustar\x0000",
    )
    block = b"".join(fields).ljust(BLOCK, b"\0")
    return block[:148] + b"%06o\0 " % sum(block) + block[156:]


def _record(key: bytes, value: bytes) -> bytes:
    """`LENGTH KEYWORD=VALUE`, the length its own digits included."""
    rest = len(key) + len(value) + 3
    length = rest + len(str(rest))
    length = rest + len(str(length))
    return b"%d %b=%b\n" % (length, key, value)

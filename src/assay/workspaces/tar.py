"""The headers of a tar archive that is not trusted: POSIX (`pax`), GNU and the old forms, from a stream.

Python's own reader is not used: it takes headers of any size into memory, and guesses where a field makes no sense. Here
every field is checked, every length is bounded, and what is not understood is `ArchiveInvalid`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from assay.workspaces.archive import ArchiveInvalid, Source, read_exactly
from assay.workspaces.opener import show
from assay.workspaces.sparse import Region, SparseForm, read_gnu_regions, regions_of

BLOCK: Final = 512
PATH_MAX: Final = 4096
"""Bytes in a path or in a link's text: the kernel takes no more."""

_EXTENDED_MAX: Final = 1024 * 1024
"""Bytes of one extended header. Extended attributes of 64 KiB fit; 8 GB, which a header can claim, do not."""

_SIZE_MAX: Final = 2**62
_MTIME_MAX_S: Final = 2**33
_ZEROS: Final = bytes(BLOCK)


class Kind(StrEnum):
    """What an entry is."""

    FILE = "file"
    FOLDER = "folder"
    SYMLINK = "symlink"
    HARD_LINK = "hard_link"
    DEVICE = "device"
    FIFO = "fifo"


_KINDS: Final = {
    b"0": Kind.FILE,
    b"\0": Kind.FILE,
    b"7": Kind.FILE,  # contiguous, where that means something
    b"S": Kind.FILE,  # GNU sparse
    b"1": Kind.HARD_LINK,
    b"2": Kind.SYMLINK,
    b"3": Kind.DEVICE,
    b"4": Kind.DEVICE,
    b"5": Kind.FOLDER,
    b"D": Kind.FOLDER,  # GNU incremental: its data is a listing
    b"6": Kind.FIFO,
}
_WITH_DATA: Final = frozenset({b"0", b"\0", b"7", b"S", b"D"})
_LONG_NAME: Final = b"L"
_LONG_LINK: Final = b"K"
_EXTENDED: Final = frozenset({b"x", b"X"})
_GLOBAL: Final = b"g"
_VOLUME: Final = b"V"
_NEVER_GLOBAL: Final = ("path", "linkpath", "size", "GNU.sparse")


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of an archive, as its headers describe it. Nothing in it is to be trusted."""

    path: bytes
    """As written: absolute, with `..`, with doubled slashes, whatever. At least one byte, no NUL."""
    kind: Kind
    mode: int
    """All twelve bits."""
    size: int = 0
    """Apparent size of a file."""
    link: bytes = b""
    """A symlink's text, or the path of what a hard link leads to. Not empty for these two."""
    mtime_ns: int = 0
    regions: tuple[Region, ...] | None = None
    """Where a sparse file has data, in order; None for a file that is all data."""

    @property
    def shown(self) -> str:
        """The path, fit for showing."""
        return show(self.path)


class TarReader:
    """The entries of one archive, in order; the data of each is to be read before the next is asked for, or is skipped."""

    def __init__(self, source: Source, *, path_max: int = PATH_MAX) -> None:
        """`source` is decompressed already. `path_max`: bytes in a path, where longer ones can be made piece by piece."""
        self._source = source
        self._path_max = path_max
        self._left = 0
        """Bytes of the current entry's data that were not read."""
        self._padding = 0
        self._last = "at its beginning"

    def __iter__(self) -> Iterator[Entry]:
        """All entries. Raises `ArchiveInvalid`, also when the archive ends without an end marker."""
        while (entry := self.next()) is not None:
            yield entry

    def next(self) -> Entry | None:
        """The next entry, or None at the end of the archive (the source may hold more)."""
        self._skip_data()
        named = _Named()
        while True:
            header = self._header()
            if header is None:
                if named != _Named():
                    raise self._invalid("an extended header describes no entry")
                return None
            kind = header.kind
            if kind == _LONG_NAME:
                named = replace(named, path=self._long(header, "name"))
            elif kind == _LONG_LINK:
                named = replace(named, link=self._long(header, "link"))
            elif kind in _EXTENDED:
                named = replace(named, records=_records(self._extension(header), self._last))
            elif kind == _GLOBAL:
                self._refuse_global(_records(self._extension(header), self._last))
            elif kind == _VOLUME:
                self._begin_data(header.size)
                self._skip_data()
            else:
                return self._entry(header, named)

    def read(self, size: int) -> bytes:
        """At most `size` bytes of the current entry's data; none at its end. Raises `ArchiveInvalid` when it is cut."""
        if not self._left:
            return b""
        data = self._source.read(min(size, self._left))
        if not data:
            raise self._invalid("the archive is cut short in the data of an entry")
        self._left -= len(data)
        return data

    def _entry(self, header: _Header, named: _Named) -> Entry:
        if header.kind not in _KINDS:
            raise self._invalid(f"entries of type {header.kind!r} are not understood")
        records = named.records
        path = records.get("path") or named.path or header.path
        link = records.get("linkpath") or named.link or header.link
        sparse = SparseForm(records)
        path = sparse.name or path
        kind = _KINDS[header.kind]
        if header.kind == b"\0" and path.endswith(b"/"):
            kind = Kind.FOLDER
        self._last = f"after {show(path)}" if path else self._last
        self._check_text(path, "path", self._path_max)
        stored = self._number(records["size"], "size") if records.get("size") else header.size
        mtime = _pax_time(records["mtime"], self._last) if records.get("mtime") else header.mtime_s * 10**9
        entry = Entry(path, kind, header.mode, mtime_ns=_clamped(mtime))
        if kind in (Kind.SYMLINK, Kind.HARD_LINK):
            self._check_text(link, "link")
            return replace(entry, link=link)
        if header.kind not in _WITH_DATA:
            return entry
        self._begin_data(stored)
        if kind is Kind.FOLDER:
            return entry
        if header.kind == b"S":
            regions, size = read_gnu_regions(header.block, self._block, self._invalid)
        elif sparse.present:
            before = self._left
            regions, size = regions_of(sparse, self.read, self._invalid)
            stored -= before - self._left
        else:
            return replace(entry, size=stored)
        if sum(region.size for region in regions) != stored:
            raise self._invalid("the map of a sparse file does not fit its data")
        return replace(entry, size=size, regions=regions)

    def _header(self) -> _Header | None:
        block = self._block()
        if block == _ZEROS:
            second = read_exactly(self._source, BLOCK)
            if second.strip(b"\0"):
                raise self._invalid("a block of zeros is followed by data")
            return None
        stated = _octal(block[148:156])
        total = sum(block) - sum(block[148:156]) + 8 * 32
        # Old programs added up signed bytes.
        if stated != total and stated != total - 256 * sum(byte > 127 for byte in block[:148] + block[156:]):
            raise self._invalid("this is no tar header: its checksum is wrong")
        mode, size, mtime = _octal(block[100:108]), _octal(block[124:136]), _octal(block[136:148])
        if mode is None or size is None or mtime is None or not 0 <= size <= _SIZE_MAX:
            raise self._invalid("a number in a header makes no sense")
        return _Header(block, mode & 0o7777, size, mtime)

    def _block(self) -> bytes:
        block = read_exactly(self._source, BLOCK)
        if len(block) < BLOCK:
            raise self._invalid("the archive is cut short: it has no end marker")
        return block

    def _begin_data(self, size: int) -> None:
        self._left = size
        self._padding = -size % BLOCK

    def _skip_data(self) -> None:
        wanted = self._left + self._padding
        if wanted and self._source.skip(wanted) < self._left:
            raise self._invalid("the archive is cut short in the data of an entry")
        self._left = self._padding = 0

    def _extension(self, header: _Header) -> bytes:
        if header.size > _EXTENDED_MAX:
            raise self._invalid(f"an extended header of {header.size:,} bytes: at most {_EXTENDED_MAX:,} are read")
        self._begin_data(header.size)
        data = read_exactly(self._source, header.size)
        if len(data) < header.size:
            raise self._invalid("the archive is cut short in an extended header")
        self._left = 0
        self._skip_data()
        return data

    def _long(self, header: _Header, what: str) -> bytes:
        text = self._extension(header).split(b"\0", 1)[0]
        self._check_text(text, what)
        return text

    def _refuse_global(self, records: dict[str, bytes]) -> None:
        # A comment (git's) or a character set is harmless; a name for every entry is a trick.
        for key in records:
            if key.startswith(_NEVER_GLOBAL):
                raise self._invalid(f"a global header sets {show(key)!r} for every entry")

    def _check_text(self, text: bytes, what: str, most: int = PATH_MAX) -> None:
        if not text:
            raise self._invalid(f"an entry has an empty {what}")
        if b"\0" in text:
            raise self._invalid(f"a {what} has a NUL byte in it: {show(text)}")
        if len(text) > most:
            raise self._invalid(f"a {what} of {len(text):,} bytes: at most {most:,} can be used: {show(text)}")

    def _number(self, text: bytes, what: str) -> int:
        if not text.isdigit() or len(text) > 19 or int(text) > _SIZE_MAX:
            raise self._invalid(f"the {what} {show(text[:40])!r} makes no sense")
        return int(text)

    def _invalid(self, reason: str) -> ArchiveInvalid:
        return ArchiveInvalid(f"{self._last}: {reason}")


@dataclass(frozen=True, slots=True)
class _Named:
    """What extended headers say about the entry that follows."""

    path: bytes = b""
    link: bytes = b""
    records: dict[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Header:
    block: bytes
    mode: int
    size: int
    mtime_s: int

    @property
    def kind(self) -> bytes:
        return self.block[156:157]

    @property
    def link(self) -> bytes:
        return _text(self.block[157:257])

    @property
    def path(self) -> bytes:
        name = _text(self.block[:100])
        # GNU's form (`ustar`, two spaces) has other things in the place of the prefix; `star` has a shorter one.
        if self.block[257:263] != b"ustar\0":
            return name
        prefix = _text(self.block[345 : 476 if self.block[508:512] == b"tar\0" else 500])
        return prefix + b"/" + name if prefix else name


def _text(raw: bytes) -> bytes:
    return raw.split(b"\0", 1)[0]


def _octal(raw: bytes) -> int | None:
    """A number in octal digits, or in GNU's base 256; an empty one is 0. None when it is neither."""
    if raw[0] & 0x80:
        value = int.from_bytes(raw, "big") & ((1 << (8 * len(raw) - 1)) - 1)
        negative = raw[0] & 0x40
        return value - (1 << (8 * len(raw) - 1)) if negative else value
    digits = raw.strip(b" \0")
    if digits.strip(b"01234567"):
        return None
    return int(digits, 8) if digits else 0


def _records(data: bytes, where: str) -> dict[str, bytes]:
    """The records of an extended header: `LENGTH KEYWORD=VALUE\\n`. A later one replaces an earlier, sparse maps add up."""
    found: dict[str, bytes] = {}
    maps: list[bytes] = []
    position = 0
    while position < len(data):
        digits = data[position : position + 8].split(b" ", 1)[0]
        length = int(digits) if digits.isdigit() else 0
        record = data[position + len(digits) + 1 : position + length]
        keyword, separator, value = record.partition(b"=")
        if length <= len(digits) + 1 or position + length > len(data) or record[-1:] != b"\n" or not separator:
            raise ArchiveInvalid(f"{where}: an extended header is damaged")
        key = keyword.decode("utf-8", "surrogateescape")
        if key in ("GNU.sparse.offset", "GNU.sparse.numbytes"):
            maps.append(value[:-1])
        else:
            found[key] = value[:-1]
        position += length
    if maps:
        found.setdefault("GNU.sparse.map", b",".join(maps))
    return found


def _pax_time(text: bytes, where: str) -> int:
    """Nanoseconds: `[-]seconds[.fraction]`."""
    negative = text.startswith(b"-")
    seconds, _, fraction = text.removeprefix(b"-").partition(b".")
    if not seconds.isdigit() or (fraction and not fraction.isdigit()) or len(text) > 64:
        raise ArchiveInvalid(f"{where}: the time {show(text[:40])!r} makes no sense")
    value = int(seconds) * 10**9 + int(fraction[:9].ljust(9, b"0"))
    return -value if negative else value


def _clamped(mtime_ns: int) -> int:
    """A time that every filesystem can hold."""
    return max(0, min(mtime_ns, _MTIME_MAX_S * 10**9))

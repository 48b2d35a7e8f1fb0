"""The archive that an image comes in: a tar file whose members are documents and layers, read where they lie.

Members are found by name in an index; nothing of the bundle itself is unpacked. A compressed archive, or one that comes
through a pipe, is first written out as it is once decompressed.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from assay.workspaces import ArchiveInvalid, Caps, show
from assay.workspaces.archive import (
    CHUNK,
    MAGIC_MAX,
    Begun,
    FileSlice,
    Meter,
    Metered,
    PipeSource,
    decompressed,
    is_compressed,
    read_exactly,
)
from assay.workspaces.caps import TargetError
from assay.workspaces.inside import parts_of
from assay.workspaces.tar import Kind, TarReader

_MEMBERS_MAX: Final = 20_000
_LEVELS_MAX: Final = 4
"""Names in the path of a member: `blobs/sha256/…`, in a folder at most."""
_LINKS_MAX: Final = 10
_DOCUMENT_MAX: Final = 8 * 1024**2
_DIGEST: Final = re.compile(r"(sha256|sha384|sha512):([0-9a-f]{64,128})")


@dataclass(frozen=True, slots=True)
class _Member:
    offset: int
    size: int
    link: tuple[bytes, ...] | None
    """Of a link: where it leads, from the bundle's top."""


class Bundle:
    """The members of an open archive."""

    def __init__(self, descriptor: int, size: int) -> None:
        """Reads all headers. Raises `ArchiveInvalid`."""
        self.descriptor = descriptor
        self.size = size
        self._members: dict[tuple[bytes, ...], _Member] = {}
        self._overfull = False
        self._read_headers()

    def _read_headers(self) -> None:
        source = FileSlice(self.descriptor, 0, self.size)
        for entry in TarReader(source):
            parts = tuple(parts_of(entry.path))
            if not parts or len(parts) > _LEVELS_MAX or entry.regions is not None:
                continue
            if len(self._members) >= _MEMBERS_MAX:
                self._overfull = True
            elif entry.kind is Kind.FILE:
                self._members[parts] = _Member(source.position, entry.size, None)
            elif entry.kind in (Kind.SYMLINK, Kind.HARD_LINK):
                base = b"/".join(parts[:-1]) + b"/" if entry.kind is Kind.SYMLINK else b""
                self._members[parts] = _Member(0, 0, tuple(parts_of(base + entry.link)))

    def has(self, name: str) -> bool:
        """Whether there is a file, or a link to one, under a name."""
        return self._find(name) is not None

    def open(self, name: str) -> FileSlice:
        """The bytes of a member. Raises `ArchiveInvalid` when there is none of that name."""
        if self._overfull:
            raise ArchiveInvalid(f"it has more than {_MEMBERS_MAX:,} files, which no archive of an image has")
        member = self._find(name)
        if member is None:
            raise ArchiveInvalid(f"{show(name)}, which it refers to, is not in it: save the whole image again")
        return FileSlice(self.descriptor, member.offset, member.size)

    def _find(self, name: str) -> _Member | None:
        parts = tuple(parts_of(os.fsencode(name)))
        for _ in range(_LINKS_MAX):
            member = self._members.get(parts)
            if member is None or member.link is None:
                return member
            parts = member.link
        return None

    def document(self, name: str, digest: str | None = None) -> tuple[Any, str]:
        """A JSON document, and `sha256:…` of its bytes. Raises `ArchiveInvalid`, also when it has not the digest."""
        content = read_exactly(self.open(name), _DOCUMENT_MAX + 1)
        if len(content) > _DOCUMENT_MAX:
            raise ArchiveInvalid(f"{show(name)}: larger than {_DOCUMENT_MAX:,} bytes")
        if digest is not None:
            algorithm, wanted = split_digest(digest, name)
            if hashlib.new(algorithm, content).hexdigest() != wanted:
                raise ArchiveInvalid(f"{show(name)}: damaged: its content has not the digest {digest}")
        try:
            return json.loads(content), f"sha256:{hashlib.sha256(content).hexdigest()}"
        except (ValueError, RecursionError):
            raise ArchiveInvalid(f"{show(name)}: no JSON document") from None

    def blob(self, digest: str) -> tuple[Any, str]:
        """The JSON document with a digest, in an OCI layout. Raises `ArchiveInvalid`."""
        return self.document(blob_name(digest), digest)


def split_digest(digest: object, where: str) -> tuple[str, str]:
    """Algorithm and hex digits of a digest. Raises `ArchiveInvalid` for anything else."""
    found = _DIGEST.fullmatch(digest) if isinstance(digest, str) else None
    if found is None or len(found[2]) != 2 * hashlib.new(found[1]).digest_size:
        raise ArchiveInvalid(f"{show(where)}: not a digest that can be checked: {show(str(digest)[:100])}")
    return found[1], found[2]


def blob_name(digest: str) -> str:
    """Where an OCI layout has the blob with a digest."""
    return "blobs/" + "/".join(split_digest(digest, "index.json"))


@contextmanager
def open_bundle(archive: Path, scratch: Path, caps: Caps, tell: Callable[[str], None]) -> Iterator[Bundle]:
    """The bundle in an archive file. `scratch` is a folder for what has to be written out.

    Raises `ArchiveInvalid` for what is no archive, and `TargetError` when it cannot be written out.
    """
    descriptor = _open(archive)
    try:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            size = os.fstat(descriptor).st_size
            source = FileSlice(descriptor, 0, size)
            if not is_compressed(read_exactly(source, MAGIC_MAX)):
                yield Bundle(descriptor, size)
                return
            whole: FileSlice | Begun = FileSlice(descriptor, 0, size)
        else:
            first = read_exactly(PipeSource(descriptor), MAGIC_MAX)
            whole = Begun(first, PipeSource(descriptor))
        tell("decompressing the archive")
        with _written_out(whole, scratch / "archive.tar", caps) as (plain, size):
            yield Bundle(plain, size)
    finally:
        os.close(descriptor)


def _open(archive: Path) -> int:
    try:
        descriptor = os.open(archive, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise ArchiveInvalid(f"it cannot be opened: {error.strerror}") from error
    if stat.S_ISDIR(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ArchiveInvalid(f"it is a folder; pack it first: tar -C {archive} -cf image.tar .")
    return descriptor


@contextmanager
def _written_out(source: FileSlice | Begun, place: Path, caps: Caps) -> Iterator[tuple[int, int]]:
    """A descriptor of the decompressed archive, and its size."""
    plain = Metered(decompressed(source, "the archive"), Meter(caps), "the archive")
    try:
        target = os.open(place, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise TargetError(place.name, error) from error
    try:
        size = 0
        while data := plain.read(CHUNK):
            size += len(data)
            try:
                while data:
                    data = data[os.write(target, data) :]
            except OSError as error:
                raise TargetError(place.name, error) from error
        # Only its descriptor is needed from here on.
        place.unlink()
        yield target, size
    finally:
        os.close(target)

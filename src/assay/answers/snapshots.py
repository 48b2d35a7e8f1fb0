"""Workspaces that are kept: each one once, as `tar.zst`, under the digest of its canonical manifest.

Kept is the whole workspace as it was captured: links as text, special files dropped and listed. An archive lies under its
name only once it is whole and on disk. What comes back out is checked against its name, entry by entry.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, Protocol

from assay.answers.depots import check_digest, depot_at, unkept
from assay.answers.packing import PackError, pack
from assay.answers.restoring import NotCanonical, Restored, restore
from assay.answers.unpacked import UnpackedWorkspaces
from assay.failures import FailureEvent
from assay.failures.kinds import CANCELLED, WORKSPACE_LIMIT
from assay.workspaces import ArchiveInvalid, ArchiveTooLarge, Caps, Capture, Found, WorkspaceInvalid, capture
from assay.workspaces.archive import FileSlice, Meter, Metered, decompressed, skip_by_reading
from assay.workspaces.caps import Stopped, TargetError
from assay.workspaces.opener import opened
from assay.workspaces.tar import Kind
from assay.workspaces.unpack import unpack

_LEVEL: Final = 3
_CHUNK: Final = 1024 * 1024
_CAPS: Final = Caps()
_ZSTD: Final = b"\x28\xb5\x2f\xfd"


class Readable(Protocol):
    """Bytes in order."""

    def read(self, size: int, /) -> bytes:
        """At most `size`; none only at the end."""
        ...


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A workspace that is kept."""

    digest: str
    """`sha256:…` of its canonical manifest: its name."""
    entries: int
    bytes: int
    """Apparent size of files and link targets."""
    dropped: tuple[Found, ...] = ()
    """What was left out, the first 1,000: devices, sockets, FIFOs, mounts, what its maker keeps closed."""
    dropped_count: int = 0


class Snapshots:
    """The kept workspaces at a folder or URL. Blocks: call it in a thread. Safe for many threads and processes.

    A place that fails is a `FailureEvent` of kind `persistence_failed` that names it. Digests that are none are `ValueError`s.
    """

    def __init__(self, where: str | Path, *, unpacked: Path, unpacked_bytes: int = 20 * 1024**3) -> None:
        """`where`: a folder, which is made, or a URL that fsspec knows. `unpacked`: a folder (in `STATE_DIR`) for at most so
        many bytes of workspaces that were used last. Raises `StoreUnusable`."""
        self._depot = depot_at(where)
        self._unpacked = UnpackedWorkspaces(unpacked, unpacked_bytes)

    @property
    def where(self) -> str:
        """The folder or URL, without a password."""
        return self._depot.where

    def has(self, digest: str) -> bool:
        """Whether a workspace is kept."""
        return self._depot.has(digest)

    def put_folder(self, folder: Path, *, caps: Caps = _CAPS, stop: threading.Event | None = None) -> Snapshot:
        """Keep what an agent left in a folder, whatever is in it; it is also there unpacked afterwards.

        Returns once it is on disk. Raises as `capture` does, and `persistence_failed`.
        """
        with self._room() as room, (room / "manifest").open("w+b") as manifest:
            workspace = room / "workspace"
            workspace.mkdir(0o755)
            captured = capture(folder, workspace, caps, stop=stop, records=manifest)
            self._pack(captured, manifest, room / "archive", stop)
            self._unpacked.add(captured.digest, workspace, captured.bytes, captured.entries)
        return Snapshot(captured.digest, captured.entries, captured.bytes, captured.dropped, captured.dropped_count)

    def put_archive(self, stream: Readable, digest: str, *, caps: Caps = _CAPS) -> Snapshot:
        """Keep the workspace in an archive that somebody sent: tar, as it is or compressed (gzip, bzip2, xz, zstd).

        Its content must have the digest that it is named by: else `WorkspaceInvalid`, and nothing is kept. The archive need
        not be in canonical form; one that is can have any modes, in another one setuid bits and files that their owner may
        not read and write cannot be told from ordinary ones. Raises `WorkspaceInvalid` too for an archive that is damaged,
        and `FailureEvent` of kind `assay:workspace_limit` over a cap. Limits the decompressed size only.
        """
        check_digest(digest)
        with self._room() as room, (room / "archive").open("w+b") as file:
            workspace = room / "workspace"
            workspace.mkdir(0o755)
            spooled = _Spooled(stream, file)
            try:
                restored = restore(decompressed(spooled, "the archive"), workspace, caps)
            except NotCanonical:
                return self._put_foreign(spooled, file, room, digest, caps)
            except (ArchiveInvalid, TargetError) as error:
                raise self._refused(error, digest) from error
            spooled.drain()
            file.flush()
            _refuse_other(restored.digest, digest)
            if not spooled.zstd:
                return self._put_foreign(spooled, file, room, digest, caps)
            self._depot.keep(room / "archive", digest)
            self._unpacked.add(digest, workspace, restored.bytes, restored.entries)
        return Snapshot(digest, restored.entries, restored.bytes)

    def restore(self, digest: str, target: Path, *, stop: threading.Event | None = None) -> None:
        """Make the workspace in the empty or new folder `target`, exactly as it was captured.

        Raises `WorkspaceInvalid` when it is not kept, is damaged (a torn file, a content that is not what it is named by);
        what is in the target is then of no use. Raises `persistence_failed` when it cannot be read or written.
        """
        try:
            target.mkdir(mode=0o755, exist_ok=True)
        except OSError as error:
            raise unkept(str(target), error) from error
        self._restore(digest, target, stop)

    @contextmanager
    def unpacked(self, digest: str, *, stop: threading.Event | None = None) -> Iterator[Path]:
        """The workspace as a folder that is only to be read, kept from being removed in this block. Raises as `restore`."""
        while True:
            with self._unpacked.held(digest) as workspace:
                if workspace is not None:
                    yield workspace
                    return
            with self._room() as room:
                made = room / "workspace"
                made.mkdir(0o755)
                restored = self._restore(digest, made, stop)
                self._unpacked.add(digest, made, restored.bytes, restored.entries)

    def _restore(self, digest: str, target: Path, stop: threading.Event | None) -> Restored:
        damaged = f"the kept workspace {digest} in {self.where} is damaged"
        try:
            with self._depot.reading(digest) as source:
                restored = restore(decompressed(source, digest), target, _CAPS, stop)
        except FileNotFoundError:
            raise WorkspaceInvalid(
                f"the workspace {digest} is not in {self.where}; bring its file back there", details={"digest": digest}
            ) from None
        except ArchiveInvalid as error:
            raise WorkspaceInvalid(f"{damaged}: {error}; {_RENEW}", details={"digest": digest}) from error
        except TargetError as error:
            raise unkept(f"{target}: {error.path}", error.error) from error
        except Stopped:
            raise FailureEvent(CANCELLED, f"restoring {digest} was stopped") from None
        if restored.digest != digest:
            raise WorkspaceInvalid(
                f"{damaged}: what is in it is {restored.digest}; {_RENEW}", details={"digest": digest}
            )
        return restored

    def _pack(self, captured: Capture, manifest: BinaryIO, archive: Path, stop: threading.Event | None) -> None:
        if self._depot.has(captured.digest):
            return
        # Loaded where it is needed: most commands never compress.
        import zstandard

        manifest.seek(0)
        compressor = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True)

        def write(data: bytes) -> None:
            if stop is not None and stop.is_set():
                raise Stopped
            compressed.write(data)

        try:
            with (
                opened(captured.folder) as folder,
                archive.open("xb", buffering=_CHUNK) as file,
                compressor.stream_writer(file, closefd=False) as compressed,
            ):
                pack(folder, manifest, write)
        except Stopped:
            raise FailureEvent(CANCELLED, "keeping the workspace was stopped") from None
        except PackError as error:
            raise unkept(f"the captured workspace: {error}", error.error) from error
        except OSError as error:
            raise unkept(str(archive.parent), error) from error
        self._depot.keep(archive, captured.digest)

    def _put_foreign(self, spooled: _Spooled, file: BinaryIO, room: Path, digest: str, caps: Caps) -> Snapshot:
        """Keep an archive of any form: unpacked, captured, packed anew."""
        spooled.drain()
        file.flush()
        foreign = room / "foreign"
        foreign.mkdir(0o755)
        meter = Meter(caps)
        try:
            source = decompressed(FileSlice(file.fileno(), 0, spooled.size), "the archive")
            unpack(Metered(source, meter, "the archive"), foreign, meter=meter, mode_of=_mode)
        except (ArchiveInvalid, TargetError) as error:
            raise self._refused(error, digest) from error
        with (room / "manifest").open("w+b") as manifest:
            workspace = room / "again"
            captured = capture(foreign, workspace, caps, records=manifest)
            _refuse_other(captured.digest, digest)
            self._pack(captured, manifest, room / "packed", None)
            self._unpacked.add(digest, workspace, captured.bytes, captured.entries)
        return Snapshot(digest, captured.entries, captured.bytes)

    def _refused(self, error: ArchiveInvalid | TargetError, digest: str) -> FailureEvent:
        if isinstance(error, TargetError):
            return unkept(f"the unpacked workspace: {error.path}", error.error)
        if isinstance(error, ArchiveTooLarge):
            return FailureEvent(WORKSPACE_LIMIT, f"the archive of {digest}: {error}", details={"cap": error.cap})
        return WorkspaceInvalid(f"the archive of {digest}: {error}")

    @contextmanager
    def _room(self) -> Iterator[Path]:
        try:
            with self._unpacked.room() as room:
                yield room
        except OSError as error:
            raise unkept(str(error.filename or "the folder of unpacked workspaces"), error) from error


_RENEW: Final = "bring it back from a copy, or leave its answers out"


class _Spooled:
    """A source that keeps what was read of a stream in a file."""

    def __init__(self, stream: Readable, file: BinaryIO) -> None:
        self._stream = stream
        self._file = file
        self.size = 0
        self.zstd = False

    def read(self, size: int) -> bytes:
        data = self._stream.read(size)
        if not self.size:
            self.zstd = data.startswith(_ZSTD)
        self._file.write(data)
        self.size += len(data)
        return data

    def skip(self, size: int) -> int:
        return skip_by_reading(self, size)

    def drain(self) -> None:
        while self.read(_CHUNK):
            pass


def _mode(kind: Kind, mode: int) -> int:
    return mode


def _refuse_other(content: str, named: str) -> None:
    if content != named:
        raise WorkspaceInvalid(
            f"the archive's content is {content}, and it is named {named}: nothing was kept; name it by what is in it",
            details={"content": content, "named": named},
        )

"""The workspaces that requests bring: an archive in the request itself, or one that was uploaded before."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import BinaryIO, Final

from assay.answers import Snapshots
from assay.failures import FailureEvent
from assay.failures.kinds import WORKSPACE_INVALID, WORKSPACE_LIMIT
from assay.grading import Captured
from assay.workspaces import ArchiveInvalid, Caps
from assay.workspaces.archive import Meter, Metered, decompressed, skip_by_reading
from assay.workspaces.caps import TargetError
from assay.workspaces.tar import Kind
from assay.workspaces.unpack import unpack

from .bodies import ClientGone, Receive, too_large
from .refusal import NotAdmitted, Refused, malformed
from .request import Workspace
from .threads import scratch, whole

_AT_ONCE: Final = 16
"""Uploads. Each may lie on the disk three times while it is checked."""
_UNPACKED_AT_ONCE: Final = 2
_WRITE_BYTES: Final = 1024 * 1024


class Uploads:
    """Workspaces that were uploaded, by digest; and those of requests as folders, for as long as they are needed."""

    def __init__(self, snapshots: Snapshots, place: Path, most_bytes: int) -> None:
        """`place` is a folder for uploads on their way; `most_bytes` bounds one upload as it is sent."""
        self._snapshots = snapshots
        self._place = place
        self._most = most_bytes
        self._coming = 0
        self._unpacking = asyncio.Semaphore(_UNPACKED_AT_ONCE)

    async def has(self, digest: str) -> bool:
        """Whether a workspace was uploaded."""
        return await asyncio.to_thread(self._snapshots.has, digest)

    async def put(self, digest: str, receive: Receive) -> None:
        """Keep the archive that a client sends as the workspace of that digest.

        Raises `Refused`: 413 when it is too large, 422 when it is damaged or holds something else, 503 when there is no
        room; and `ClientGone`.
        """
        if self._coming >= _AT_ONCE:
            raise NotAdmitted(f"{_AT_ONCE} workspaces are being uploaded already; nothing was kept", retry_after_s=5)
        self._coming += 1
        try:
            self._place.mkdir(parents=True, exist_ok=True)
            async with scratch("upload", place=self._place) as folder:
                with (folder / "archive").open("w+b") as file:
                    await self._spool(receive, file)
                    file.seek(0)
                    async with self._unpacking:
                        await whole(lambda _: self._snapshots.put_archive(file, digest))
        except FailureEvent as failure:
            raise _refused(failure, None) from failure
        except OSError as error:
            raise NotAdmitted(f"the upload could not be written ({error.strerror}); nothing was kept") from error
        finally:
            self._coming -= 1

    async def refuse_unknown(self, given: Workspace | None) -> None:
        """Raises `Refused` (422) for a workspace that would have to be uploaded first."""
        if given is not None and given.snapshot is not None and not await self.has(given.snapshot):
            raise malformed(
                "workspace.snapshot",
                f"there is no {given.snapshot} here; upload it with PUT /snapshots/{given.snapshot}",
            )

    @asynccontextmanager
    async def workspace(self, given: Workspace | None) -> AsyncIterator[Path | Captured | None]:
        """The folder of a request's workspace, to be read only; None when it has none. Raises `Refused`."""
        if given is None:
            yield None
            return
        async with AsyncExitStack() as kept:
            try:
                folder = await self._folder(given, kept)
            except FailureEvent as failure:
                raise _refused(failure, "workspace") from failure
            yield folder

    async def _folder(self, given: Workspace, kept: AsyncExitStack) -> Path | Captured:
        if given.snapshot is not None:
            digest = given.snapshot
            return Captured(await whole(lambda stop: kept.enter_context(self._snapshots.unpacked(digest, stop=stop))))
        archive = given.archive or b""
        folder = await kept.enter_async_context(scratch("workspace"))
        await whole(lambda _: _unpack(archive, folder))
        return folder

    async def _spool(self, receive: Receive, file: BinaryIO) -> None:
        waiting = bytearray()
        size = 0
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            part = message.get("body", b"")
            more = message.get("more_body", False)
            size += len(part)
            if size > self._most:
                raise too_large(self._most)
            waiting += part
            if waiting and (len(waiting) >= _WRITE_BYTES or not more):
                await asyncio.to_thread(file.write, bytes(waiting))
                waiting.clear()


class _Bytes:
    """A source of bytes that are in memory."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def read(self, size: int) -> bytes:
        data = self._data[self._position : self._position + size]
        self._position += len(data)
        return data

    def skip(self, size: int) -> int:
        return skip_by_reading(self, size)


def _unpack(archive: bytes, into: Path) -> None:
    field = "workspace.archive_b64"
    meter = Meter(Caps())
    try:
        source = Metered(decompressed(_Bytes(archive), "the archive"), meter, "the archive")
        unpack(source, into, meter=meter, mode_of=_mode_of)
    except ArchiveInvalid as error:
        raise malformed(field, f"is no tar archive that can be used: {error}") from None
    except TargetError as error:
        raise NotAdmitted(f"{field} could not be unpacked ({error.error.strerror}); nothing ran") from error


def _mode_of(kind: Kind, mode: int) -> int:
    return mode


def _refused(failure: FailureEvent, field: str | None) -> Refused:
    if failure.kind == WORKSPACE_LIMIT:
        return Refused(413, failure.reason, field=field)
    if failure.kind == WORKSPACE_INVALID:
        return Refused(422, failure.reason, field=field)
    return NotAdmitted(f"{failure.reason}; nothing ran", retry_after_s=5)

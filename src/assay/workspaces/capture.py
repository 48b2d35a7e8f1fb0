"""Capturing a workspace: a copy that never changes, and the digest of what is in it.

The digest is that of a canonical manifest. One record per entry, sorted by raw path bytes, the workspace folder itself
not included (how it came to be made says nothing about the answer):

    type SP mode SP length SP path SP content LF

`type` is `f`, `d` or `l` (link); `mode` is `mode & 0o7777` as four octal digits; `length` is that of the path in bytes, in
decimal, so that no name can pass for another record; `path` is relative, its raw bytes; `content` is the SHA-256, in
lower-case hex, of a file's content or a link's target, and empty for a folder. The digest is the SHA-256 over the records.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from assay.failures import FailureEvent
from assay.failures.kinds import (
    CANCELLED,
    PERSISTENCE_FAILED,
    PROVIDER_UNAVAILABLE,
    WORKSPACE_INVALID,
    WORKSPACE_LIMIT,
)
from assay.workspaces.caps import CapHit, Caps, SourceError, Stopped, TargetError
from assay.workspaces.copying import Walk
from assay.workspaces.listing import Found
from assay.workspaces.opener import show

# A file of the submission's that is setuid and root's must never be on the host, not for a moment.
KEPT_MODE: Final = 0o1777

_HOST_SHORT: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
_CAP_NAMES: Final = {
    "bytes": "bytes",
    "entries": "entries",
    "depth": "names in one path",
    "path_bytes": "bytes of paths",
}


class WorkspaceInvalid(FailureEvent):
    """The workspace cannot be read: kind `assay:workspace_invalid`."""

    def __init__(self, reason: str, *, details: Mapping[str, object] | None = None) -> None:
        """`reason` says what is wrong and what to give instead."""
        super().__init__(WORKSPACE_INVALID, reason, details=details)


@dataclass(frozen=True, slots=True)
class Capture:
    """What an agent left behind, as it was when it was captured."""

    folder: Path
    """The copy. Its root has mode 0755; setuid and setgid bits, owners and extended attributes are not in it."""
    digest: str
    """`sha256:…` of the canonical manifest, which has the modes as they were."""
    entries: int
    """Files, folders and links in it."""
    bytes: int
    """Apparent size of its files and link targets."""
    dropped: tuple[Found, ...]
    """Devices, sockets, FIFOs and mounts, and what its maker keeps closed (a mode, a lease): left out, the first 1,000."""
    dropped_count: int
    """All of them."""


def capture(
    source: Path,
    into: Path,
    caps: Caps = Caps(),  # noqa: B008 - frozen
    *,
    stop: threading.Event | None = None,
    records: BinaryIO | None = None,
) -> Capture:
    """Copy a workspace, whatever is in it, into the empty or new folder `into`.

    Blocks: call it in a thread, and set `stop` to end it early. `records` gets the manifest's records as they come.
    Nothing is followed: links are kept as text, hard links become separate copies, mounts are left out. A file that
    changes meanwhile is copied as far as it went when it was opened; one that vanishes is left out. Times of files are kept.

    Raises `WorkspaceInvalid` when `source` is no folder or something in it cannot be read; `FailureEvent` of kind
    `assay:workspace_limit` when it is over a cap, `persistence_failed` when the copy cannot be written,
    `provider_unavailable` when this machine is out of descriptors or memory, `cancelled` after `stop`. What is in `into`
    after a failure is of no use. Raises `ValueError` when `into` is not empty.
    """
    shown = show(os.fspath(source))
    try:
        source_folder = os.open(source, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise _unopened(shown, error) from error
    try:
        _refuse_itself(source, into, shown)
        return _capture(source_folder, into, caps, stop, records)
    except SourceError as error:
        raise _unread(shown, error.path, error.error) from error.error
    except TargetError as error:
        raise _unwritten(into, error.path, error.error) from error.error
    except CapHit as hit:
        raise FailureEvent(
            WORKSPACE_LIMIT,
            f"the workspace {shown} has more than {hit.limit:,} {_CAP_NAMES[hit.cap]}, found at {hit.path}: leave out "
            "what is not part of the answer (caches, data sets, build output)",
            details={"cap": hit.cap, "limit": hit.limit, "path": hit.path},
        ) from None
    except Stopped:
        raise FailureEvent(CANCELLED, f"the capture of {shown} was stopped") from None
    finally:
        os.close(source_folder)


def _capture(
    source_folder: int, into: Path, caps: Caps, stop: threading.Event | None, records: BinaryIO | None
) -> Capture:
    try:
        into.mkdir(mode=0o700, exist_ok=True)
        occupied = any(into.iterdir())
        target_folder = os.open(into, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise TargetError(".", error) from error
    try:
        if occupied:
            raise ValueError(f"the folder to capture into must be empty: {show(os.fspath(into))}")
        walk = Walk(source_folder, target_folder, caps=caps, mode_mask=KEPT_MODE, stop=stop, records=records)
        copied = walk.run()
    finally:
        os.close(target_folder)
    try:
        into.chmod(0o755)
    except OSError as error:
        raise TargetError(".", error) from error
    return Capture(
        folder=into,
        digest=f"sha256:{walk.manifest.hexdigest()}",
        entries=copied.entries,
        bytes=copied.bytes,
        dropped=tuple(copied.dropped),
        dropped_count=copied.dropped_count,
    )


def _refuse_itself(source: Path, into: Path, shown: str) -> None:
    # `realpath` gives an answer for whatever is there, links that lead in circles included.
    outer, inner = os.path.realpath(source), os.path.realpath(into)
    if inner == outer or inner.startswith(outer.rstrip("/") + "/"):
        raise WorkspaceInvalid(
            f"the workspace {shown} holds the folder that it would be copied into, {show(inner)}: give the folder that "
            "the agent worked in, or set TMPDIR to a folder outside it"
        )


def _unopened(shown: str, error: OSError) -> FailureEvent:
    if error.errno in _HOST_SHORT:
        return _short(error)
    if error.errno == errno.ENOENT:
        problem = "there is no workspace at"
    elif error.errno == errno.ENOTDIR:
        problem = "the workspace is a file, not a folder:"
    elif error.errno == errno.ELOOP:
        problem = "the workspace is a symbolic link that leads nowhere:"
    else:
        return WorkspaceInvalid(f"the workspace {shown} cannot be opened: {error.strerror}; {_AS_OWNER}")
    return WorkspaceInvalid(f"{problem} {shown}; give the folder that the agent worked in (an empty one is allowed)")


_AS_OWNER: Final = "run as a user who may read all of it, or make it readable (chmod -R u+rwX as its owner)"


def _unread(shown: str, path: str, error: OSError) -> FailureEvent:
    if error.errno in _HOST_SHORT:
        return _short(error)
    advice = f"; {_AS_OWNER}" if error.errno in (errno.EACCES, errno.EPERM) else ""
    return WorkspaceInvalid(
        f"in the workspace {shown}, {path} cannot be read: {error.strerror}{advice}",
        details={"path": path, "moving": error.errno == errno.EBUSY},
    )


def _unwritten(into: Path, path: str, error: OSError) -> FailureEvent:
    if error.errno in _HOST_SHORT:
        return _short(error)
    return FailureEvent(
        PERSISTENCE_FAILED,
        f"the copy of the workspace cannot be written: {show(os.fspath(into))}: {path}: {error.strerror}; make room there, "
        "or set TMPDIR to a folder with more",
    )


def _short(error: OSError) -> FailureEvent:
    return FailureEvent(PROVIDER_UNAVAILABLE, f"this machine is out of something a capture needs: {error.strerror}")

"""Taking one file or folder out of a tree that nobody vouches for."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Final

from assay.failures import FailureEvent
from assay.failures.kinds import PERSISTENCE_FAILED, WORKSPACE_LIMIT
from assay.workspaces.caps import Caps
from assay.workspaces.capture import capture
from assay.workspaces.opener import open_path, opened, reopen, show

_CHUNK: Final = 1024 * 1024
_NOT_THERE: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EXDEV, errno.ENAMETOOLONG})


def take_part(root: Path, path: str, into: Path, caps: Caps = Caps()) -> bool:  # noqa: B008 - frozen
    """Copy the folder or regular file at `path` beneath `root` to `into`, which is not there yet; its parent is.

    No symbolic link and no mount is passed on the way. A folder is copied as `capture` does it. Returns False, with
    nothing copied, when there is neither a folder nor a regular file at the path. Raises as `capture` does.
    """
    try:
        with opened(root) as folder:
            found = open_path(folder, os.fsencode(path))
    except OSError as error:
        if error.errno in _NOT_THERE:
            return False
        raise FailureEvent(PERSISTENCE_FAILED, f"{show(path)} cannot be opened: {error.strerror}") from error
    try:
        status = os.fstat(found)
        if stat.S_ISDIR(status.st_mode):
            # The very folder that was found, whatever its name stands for by now.
            capture(Path(f"/proc/self/fd/{found}"), into, caps)
            return True
        if not stat.S_ISREG(status.st_mode):
            return False
        if status.st_size > caps.bytes:
            raise FailureEvent(WORKSPACE_LIMIT, f"{show(path)} has more than {caps.bytes:,} bytes")
        _copy_file(found, status, into, show(path))
    finally:
        os.close(found)
    return True


def _copy_file(found: int, status: os.stat_result, into: Path, shown: str) -> None:
    try:
        source = reopen(found, os.O_RDONLY)
        with open(source, "rb") as reading, open(into, "xb") as writing:
            left = status.st_size
            while left and (data := reading.read(min(left, _CHUNK))):
                writing.write(data)
                left -= len(data)
            os.fchmod(writing.fileno(), status.st_mode & 0o777 | 0o400)
    except OSError as error:
        raise FailureEvent(PERSISTENCE_FAILED, f"{shown} cannot be copied: {error.strerror}") from error

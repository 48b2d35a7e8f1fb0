"""Whole folders of our own: copied, and removed whatever was put into them."""

from __future__ import annotations

import errno
import os
import stat
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from assay.workspaces.caps import Caps, SourceError, TargetError
from assay.workspaces.copying import Walk
from assay.workspaces.opener import open_path, opened, reopen, show

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NO_CAPS: Final = Caps(sys.maxsize, sys.maxsize - 1, sys.maxsize, sys.maxsize)


@dataclass(slots=True)
class _Level:
    """A folder on the way down, while its subfolders are removed."""

    name: bytes
    """In the folder above."""
    identity: tuple[int, int]
    folders: list[bytes]


def copy_tree(source: Path, into: Path) -> None:
    """Copy what is in a trusted folder into the folder `into`, which is made, or is there and empty.

    Links stay links, modes are kept without setuid, setgid and sticky bits, times of files are kept, owners are not.
    Raises `OSError`, also for something that cannot be copied (a FIFO, a socket, a device, a mount).
    """
    into.mkdir(exist_ok=True)
    with opened(source) as source_folder, opened(into) as target_folder:
        try:
            copied = Walk(source_folder, target_folder, caps=_NO_CAPS, mode_mask=0o777).run()
        except SourceError as error:
            raise OSError(
                error.error.errno, f"cannot read: {error.error.strerror}", str(source / error.path)
            ) from error
        except TargetError as error:
            raise OSError(error.error.errno, f"cannot write: {error.error.strerror}", str(into / error.path)) from error
    if copied.dropped:
        first = copied.dropped[0]
        raise OSError(errno.EINVAL, f"cannot copy a {first.type}", str(source / first.path))


def remove_tree(path: Path) -> None:
    """Remove a folder and everything in it: any depth, any modes, any names. Links are removed, never followed.

    A path that does not exist is as good as removed; a file or a symlink at `path` is removed itself. A mount is never
    entered: raises `OSError` (`EXDEV`). Raises `OSError` too when this process may not remove something.
    """
    if path.name in ("", ".."):
        raise OSError(errno.EINVAL, "cannot remove a folder without a name of its own", str(path))
    try:
        parent = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        remove_at(parent, os.fsencode(path.name))
    except OSError as error:
        below = "" if error.filename is None else f" ({show(error.filename)})"
        raise OSError(error.errno, f"cannot remove {show(os.fspath(path))}{below}: {error.strerror}") from error
    finally:
        os.close(parent)


def remove_at(parent: int, name: bytes) -> None:
    """`remove_tree` for a name in the folder open at `parent`. Raises `OSError`."""
    try:
        if not stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
            os.unlink(name, dir_fd=parent)
            return
    except FileNotFoundError:
        return
    current = _enter(parent, name)
    try:
        levels = [_Level(name, _identity(current), _unlink_files(current))]
        while True:
            if levels[-1].folders:
                below_name = levels[-1].folders.pop()
                below = _enter(current, below_name)
                os.close(current)
                current = below
                levels.append(_Level(below_name, _identity(current), _unlink_files(current)))
                continue
            done = levels.pop()
            if not levels:
                break
            above = os.open(b"..", _FOLDER, dir_fd=current)
            os.close(current)
            current = above
            if _identity(current) != levels[-1].identity:
                raise OSError(errno.EBUSY, "a folder was moved while it was removed", done.name)
            os.rmdir(done.name, dir_fd=current)
    finally:
        os.close(current)
    os.rmdir(name, dir_fd=parent)


def _enter(parent: int, name: bytes) -> int:
    """A readable descriptor of a subfolder, which its owner may now change."""
    found = open_path(parent, name)
    try:
        mode = stat.S_IMODE(os.fstat(found).st_mode)
        if mode & stat.S_IRWXU != stat.S_IRWXU:
            # Root needs no permission, and who is not the owner gets the error of what follows.
            with suppress(PermissionError):
                Path(f"/proc/self/fd/{found}").chmod(mode | stat.S_IRWXU)
        return reopen(found, os.O_RDONLY | os.O_DIRECTORY)
    finally:
        os.close(found)


def _unlink_files(folder: int) -> list[bytes]:
    """Unlink everything that is no folder; the names of the folders."""
    folders: list[bytes] = []
    files: list[str] = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                folders.append(os.fsencode(entry.name))
            else:
                files.append(entry.name)
    for name in files:
        os.unlink(name, dir_fd=folder)
    return folders


def _identity(descriptor: int) -> tuple[int, int]:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino

"""What decides a verdict in shared mode, and whether the agent left it as its image had it.

In shared mode the shell, the interpreter and the libraries are the agent's own. Where the task's image is at hand, a few of
its files are compared with the agent's: those that run before anything of the verifier's does. A list that is empty proves
nothing (a module of the interpreter's library decides as much); one that is not says whom not to believe.
"""

from __future__ import annotations

import fnmatch
import os
import stat
from pathlib import Path, PurePosixPath

from assay.workspaces import find_inside

_LINKS_MAX = 40
_CHUNK = 1024 * 1024
_FOLDERS = ("/bin", "/usr/bin", "/usr/local/bin")
_PROGRAMS = ("bash", "env", "python", "python3", "sh")
_LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib")
_LIBRARY_NAMES = ("ld-linux*.so*", "ld-musl-*.so*", "libc.so.*", "libpython3*.so*")
_LISTS = ("/etc/ld.so.preload",)


def replaced_programs(root: Path, image: Path) -> tuple[str, ...]:
    """Paths of deciding files that are not in `root`, which nobody else may write to, as they are in `image`.

    Added, changed and removed ones, links followed inside each, sorted; a file that has several names is named once.
    """
    found: dict[tuple[Path | None, Path | None], str] = {}
    for path in sorted(_deciding(root) | _deciding(image), key=lambda path: (len(path), path)):
        here, there = _file_inside(root, path), _file_inside(image, path)
        if not _same(here, there):
            found.setdefault((here, there), path)
    return tuple(sorted(found.values()))


def _deciding(root: Path) -> set[str]:
    paths = {f"{folder}/{name}" for folder in _FOLDERS for name in _PROGRAMS} | set(_LISTS)
    for folder in _LIBRARIES:
        for top in (folder, *(f"{folder}/{name}" for name in _names(root, folder) if name.endswith("-linux-gnu"))):
            paths |= {
                f"{top}/{name}"
                for name in _names(root, top)
                if any(fnmatch.fnmatchcase(name, pattern) for pattern in _LIBRARY_NAMES)
            }
    return paths


def _names(root: Path, folder: str) -> list[str]:
    place = _folder_inside(root, folder)
    try:
        return [entry.name for entry in place.iterdir()] if place is not None else []
    except PermissionError:
        return []


def _folder_inside(root: Path, path: str) -> Path | None:
    try:
        return find_inside(root, path)
    except PermissionError:
        # Closed by the agent, and as an ordinary user we are no better than it.
        return None


def _file_inside(root: Path, path: str) -> Path | None:
    """What a path leads to inside a root, links followed there; None when to nothing, or to a folder."""
    for _ in range(_LINKS_MAX):
        above = PurePosixPath(path)
        parent = _folder_inside(root, str(above.parent))
        if parent is None or above.name in ("", "..") or not os.path.lexists(parent / above.name):
            return None
        place = parent / above.name
        if not place.is_symlink():
            return place if not place.is_dir() else None
        path = str("/" / parent.relative_to(root.resolve()) / place.readlink())
    return None


def _same(one: Path | None, other: Path | None) -> bool:
    if one is None or other is None:
        return one is other
    first, second = one.lstat(), other.lstat()
    if not (stat.S_ISREG(first.st_mode) and stat.S_ISREG(second.st_mode)) or first.st_size != second.st_size:
        return False
    if (first.st_mode ^ second.st_mode) & 0o111:
        return False
    try:
        with one.open("rb") as mine, other.open("rb") as theirs:
            while block := mine.read(_CHUNK):
                if block != theirs.read(_CHUNK):
                    return False
    except PermissionError:
        return False
    return True

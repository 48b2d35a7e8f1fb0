"""Scratch folders: private, short-lived, and never left behind.

Each process has one scratch root per place, `assay-<uid>-<pid>-<random>`, which it holds locked for as long as it has
folders in it. A root whose lock is free belongs to a process that died: whoever needs scratch space next removes it.
The lock decides, never the pid in the name: pids come again.
"""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import logging
import os
import re
import secrets
import stat
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Final

from assay.failures import FailureEvent
from assay.failures.kinds import PROVIDER_UNAVAILABLE
from assay.workspaces.tree import remove_tree

_MODE: Final = 0o711
"""Others may pass through to a path that they were given (a sandbox has a uid of its own), and list nothing."""

_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - only ever used for folders made private and random
_LATER_MOST: Final = 16
"""Folders that wait to be removed."""
_LATER_S: Final = 0.02
_DETACH: Final = 2
_OPEN: Final = (Path("/tmp"), Path("/var/tmp"))  # noqa: S108 - as above
_log = logging.getLogger(__name__)


@contextmanager
def scratch_folder(
    name: str, *, memory: bool = False, place: Path | None = None, later: bool = False
) -> Iterator[Path]:
    """A fresh folder of this process' own, mode 0711, removed with everything in it at the end of the block.

    It lies in the system's temporary folder (for root: one that other users can pass), or with `memory` on `/dev/shm`
    where that is a writable tmpfs, or in `place`, a folder that is there: for what is to be renamed out of it. `name` is
    for people who look; the path ends in something that cannot be guessed. Safe from threads and across forks. What
    cannot be removed is logged, not raised: it would hide the work's own result. With `later` it is removed a moment after
    the block, beside what comes next, unless too much waits for that already.
    """
    root = _roots.of(place if place is not None else _place(memory))
    path = root.take(name)
    owner = os.getpid()
    try:
        yield path
    finally:
        if os.getpid() == owner and not (later and _tidier.take(root, path)):
            root.give_back(path)


def finish_removals() -> None:
    """Remove now what was left for later; back when it is gone."""
    _tidier.finish()


_kept = ExitStack()


def process_folder(name: str, *, memory: bool = False) -> Path:
    """A fresh folder as `scratch_folder` makes them, for what is made once and used until this process ends.

    Removed with the process; what a killed process left, scratch space sweeps.
    """
    folder = _kept.enter_context(scratch_folder(name, memory=memory))
    atexit.unregister(_kept.close)
    # Before scratch space's own, and before the interpreter takes the generators apart.
    atexit.register(_kept.close)
    return folder


class _Root:
    """The scratch root of this process in one place; made with its first folder, removed with its last."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.lock = threading.Lock()
        self.path: Path | None = None
        self.descriptor = -1
        self.folders = 0
        self.swept = False

    def take(self, name: str) -> Path:
        with self.lock:
            if not self.swept:
                self.swept = True
                sweep(self.place)
            try:
                path = self.current() / f"{re.sub('[^A-Za-z0-9._-]+', '-', name)[:40]}-{secrets.token_hex(8)}"
                path.mkdir(_MODE)
                path.chmod(_MODE)
            except OSError as error:
                raise FailureEvent(
                    PROVIDER_UNAVAILABLE,
                    f"cannot make a scratch folder in {self.place}: {error.strerror}; make room there, or set TMPDIR "
                    "(for images --state) to a folder that can be written",
                ) from error
            self.folders += 1
            return path

    def current(self) -> Path:
        """The root, made anew when there is none, or when somebody removed it (a cleaner of temporary files)."""
        if self.path is not None and _still_there(self.path, self.descriptor):
            return self.path
        if self.path is not None:
            os.close(self.descriptor)
        self.path, self.descriptor = _new_root(self.place)
        return self.path

    def give_back(self, path: Path) -> None:
        try:
            remove_tree(path)
        except OSError as error:
            _log.warning("scratch folder left behind: %s", error)
        with self.lock:
            self.folders -= 1
            if self.folders == 0:
                self.remove()

    def remove(self) -> None:
        """Remove the root and everything in it. The caller holds the lock, or is the only thread left."""
        if self.path is None:
            return
        try:
            _remove_root(self.path)
        except OSError as error:
            _log.warning("scratch root left behind: %s", error)
        os.close(self.descriptor)
        self.path, self.descriptor, self.folders = None, -1, 0


class _Tidier:
    """Removes folders beside other work: a verdict need not wait for that."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.removing = threading.Lock()
        self.waiting: deque[tuple[_Root, Path]] = deque()
        self.thread: threading.Thread | None = None
        self.ended = False

    def end(self) -> None:
        """Remove what waits, and take no more."""
        with self.lock:
            self.ended = True
        self.finish()

    def forget(self) -> None:
        """In a forked child: the folders are the parent's, and so is the thread."""
        self.lock, self.removing = threading.Lock(), threading.Lock()
        self.waiting, self.thread = deque(), None

    def take(self, root: _Root, path: Path) -> bool:
        """Whether it will be removed."""
        with self.lock:
            # An interpreter that is ending starts no thread: whoever tried would wait for it for ever.
            if self.ended or len(self.waiting) >= _LATER_MOST:
                return False
            self.waiting.append((root, path))
            if self.thread is None:
                self.thread = threading.Thread(target=self.run, name="assay-tidier", daemon=True)
                self.thread.start()
        return True

    def run(self) -> None:
        while True:
            # Not woken for each: whoever leaves one is in a hurry, and would wait for the interpreter's lock.
            time.sleep(_LATER_S)
            self.finish()
            with self.lock:
                if not self.waiting:
                    self.thread = None
                    return

    def finish(self) -> None:
        with self.removing:
            while self.waiting:
                root, path = self.waiting.popleft()
                root.give_back(path)


class _Roots:
    """The roots of this process, by place."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.by_place: dict[Path, _Root] = {}
        self.pid = 0

    def of(self, place: Path) -> _Root:
        with self.lock:
            if self.pid == 0:
                os.register_at_fork(after_in_child=self.forget)
                atexit.register(self.remove)
            self.pid = os.getpid()
            return self.by_place.setdefault(place, _Root(place))

    def forget(self) -> None:
        """In a forked child: the roots are the parent's, and so is the lock, which an open descriptor would share."""
        for root in self.by_place.values():
            if root.descriptor >= 0:
                with suppress(OSError):
                    os.close(root.descriptor)
        self.lock = threading.Lock()
        self.by_place = {}
        _tidier.forget()

    def remove(self) -> None:
        _tidier.end()
        for root in self.by_place.values():
            root.remove()


_tidier = _Tidier()
_roots = _Roots()


def sweep(place: Path) -> None:
    """Remove the scratch roots in `place` whose process is dead."""
    own = re.compile(rf"assay-{os.geteuid()}-\d+-[0-9a-f]+")
    try:
        roots = [path for path in place.iterdir() if own.fullmatch(path.name)]
    except OSError:
        return
    for root in roots:
        descriptor = _locked(root)
        if descriptor is None:
            continue
        try:
            _remove_root(root)
        except OSError as error:
            _log.warning("scratch root of a dead process left behind: %s", error)
        finally:
            os.close(descriptor)


def _remove_root(root: Path) -> None:
    """Remove a root whose owner is gone, or is going, with what is still mounted in it. Raises `OSError`."""
    for place in reversed(_mounts_below(root)):
        _libc().umount2(os.fsencode(place), _DETACH)
    remove_tree(root)


def _mounts_below(root: Path) -> list[str]:
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as mounts:
            places = [re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), line.split()[4]) for line in mounts]
    except OSError:
        return []
    return [place for place in places if place.startswith(f"{root}/")]


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)


def _place(memory: bool) -> Path:
    if memory and _is_tmpfs(_MEMORY):
        return _MEMORY
    wanted = Path(tempfile.gettempdir())
    if os.geteuid() != 0:
        return wanted
    # Root's sandboxes have uids of their own, which cannot pass a temporary folder that is closed to others (as
    # `pam_tmpdir` makes them).
    return next((place for place in (wanted, *_OPEN) if _others_may_pass(place)), wanted)


def _others_may_pass(place: Path) -> bool:
    try:
        return all(folder.stat().st_mode & stat.S_IXOTH for folder in (place, *place.resolve().parents))
    except OSError:
        # Not there, or not to be looked at: making a folder in it says what is wrong.
        return True


def _is_tmpfs(place: Path) -> bool:
    if not os.access(place, os.W_OK | os.X_OK):
        return False
    with suppress(OSError), open("/proc/self/mounts", encoding="utf-8", errors="surrogateescape") as mounts:
        # The last mount at a place is the one that is seen.
        kinds = [fields[2] for fields in map(str.split, mounts) if fields[1] == str(place)]
        return bool(kinds) and kinds[-1] == "tmpfs"
    return False


def _new_root(place: Path) -> tuple[Path, int]:
    while True:
        path = place / f"assay-{os.geteuid()}-{os.getpid()}-{secrets.token_hex(4)}"
        try:
            path.mkdir(_MODE)
        except FileExistsError:
            continue
        path.chmod(_MODE)
        descriptor = _locked(path)
        if descriptor is None:
            continue
        # A sweeper may have removed it between its making and its locking.
        if _still_there(path, descriptor):
            return path, descriptor
        os.close(descriptor)


def _locked(path: Path) -> int | None:
    """A descriptor that holds the lock of a root of this user's, or None."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        if os.fstat(descriptor).st_uid != os.geteuid():
            raise BlockingIOError
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def _still_there(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.lstat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False

"""Where archives of workspaces lie: a local folder, or any place that fsspec knows, by URL."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Protocol

from ulid import ULID

from assay.answers.faults import StoreUnusable
from assay.failures import FailureEvent
from assay.failures.kinds import PERSISTENCE_FAILED
from assay.workspaces.archive import ArchiveInvalid, FileSlice, Source, skip_by_reading

_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")


class Depot(Protocol):
    """A place for archives, each under its digest, whole or not at all."""

    where: str
    """For messages."""

    def has(self, digest: str) -> bool:
        """Whether there is an archive. Raises `FailureEvent`, `persistence_failed`, when that cannot be known."""
        ...

    def keep(self, archive: Path, digest: str) -> None:
        """Take a finished archive file over. Raises `FailureEvent`, `persistence_failed`."""
        ...

    def reading(self, digest: str) -> Any:
        """A context manager that gives the archive as a `Source`. Raises `FileNotFoundError`, and as `has`."""
        ...


def depot_at(where: str | Path) -> Depot:
    """The depot at a folder or URL; a local folder is made. Raises `StoreUnusable`."""
    text = os.fspath(where)
    if "://" not in text and "::" not in text:
        return LocalDepot(Path(text).expanduser().absolute())
    if text.startswith("file://") and "::" not in text:
        return LocalDepot(Path(text.removeprefix("file://")))
    return RemoteDepot(text)


def check_digest(digest: str) -> str:
    """The hex part of a digest. Raises `ValueError` for what is none: a name from outside must not become a path."""
    if _DIGEST.fullmatch(digest) is None:
        raise ValueError(f"a snapshot's digest is sha256: and 64 hexadecimal digits, got {digest!r:.100}")
    return digest.removeprefix("sha256:")


def unkept(where: str, error: BaseException) -> FailureEvent:
    """What to say of a place that failed."""
    said = error.strerror if isinstance(error, OSError) and error.strerror else str(error) or type(error).__name__
    failure = FailureEvent(
        PERSISTENCE_FAILED,
        f"{where}: {said}; make room there, or see that it can be reached and written, then run the command again",
        boundary="collection",
    )
    failure.__cause__ = error
    return failure


class LocalDepot:
    """A folder. A file in it has its name only once it is whole and on disk."""

    def __init__(self, folder: Path) -> None:
        """Makes the folder. Raises `StoreUnusable`."""
        self.where = str(folder)
        self._folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreUnusable(f"{folder}: cannot be made a folder of snapshots: {error.strerror}") from error

    def has(self, digest: str) -> bool:
        """See `Depot.has`."""
        path = self._path(digest)
        try:
            return path.stat().st_size > 0
        except FileNotFoundError:
            return False
        except OSError as error:
            raise unkept(self.where, error) from error

    def keep(self, archive: Path, digest: str) -> None:
        """See `Depot.keep`. A file on the same filesystem is moved."""
        path = self._path(digest)
        partial = path.with_name(f".new-{ULID()}")
        try:
            if _made(path.parent):
                _flush(self._folder)
            try:
                # Nobody sees it under its name before it is on disk.
                try:
                    archive.rename(partial)
                except OSError:
                    _copy(archive, partial)
                _flush(partial)
                partial.rename(path)
            finally:
                with suppress(OSError):
                    partial.unlink()
            _flush(path.parent)
        except OSError as error:
            raise unkept(self.where, error) from error

    @contextmanager
    def reading(self, digest: str) -> Iterator[Source]:
        """See `Depot.reading`."""
        path = self._path(digest)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise unkept(self.where, error) from error
        try:
            yield FileSlice(descriptor, 0, os.fstat(descriptor).st_size)
        finally:
            os.close(descriptor)

    def _path(self, digest: str) -> Path:
        name = check_digest(digest)
        return self._folder / name[:2] / f"{name}.tar.zst"


class RemoteDepot:
    """A place that fsspec knows. What it needs (`s3fs`, `gcsfs`, …) is installed by whoever uses it."""

    def __init__(self, url: str) -> None:
        """Raises `StoreUnusable` for a URL that fsspec cannot use."""
        # Loaded where it is needed: most stores are folders.
        import fsspec

        self.where = _without_password(url)
        try:
            self._files, root = fsspec.core.url_to_fs(url)
            self._root = root.rstrip("/")
            self._files.makedirs(self._root, exist_ok=True)
        except Exception as error:
            raise StoreUnusable(f"{self.where}: cannot be used for snapshots: {error}") from error

    def has(self, digest: str) -> bool:
        """See `Depot.has`."""
        path = self._path(digest)
        try:
            return bool(self._files.exists(path))
        except Exception as error:
            raise unkept(self.where, error) from error

    def keep(self, archive: Path, digest: str) -> None:
        """See `Depot.keep`."""
        path = self._path(digest)
        partial = f"{path}.new-{ULID()}"
        try:
            self._files.makedirs(path.rpartition("/")[0], exist_ok=True)
            self._files.put_file(str(archive), partial)
            sent, there = archive.stat().st_size, self._files.size(partial)
            if there != sent:
                raise OSError(f"of {sent:,} bytes {there} arrived")
            self._files.mv(partial, path)
        except Exception as error:
            with suppress(Exception):
                self._files.rm_file(partial)
            raise unkept(self.where, error) from error

    @contextmanager
    def reading(self, digest: str) -> Iterator[Source]:
        """See `Depot.reading`."""
        path = self._path(digest)
        try:
            file = self._files.open(path, "rb")
        except FileNotFoundError:
            raise
        except Exception as error:
            raise unkept(self.where, error) from error
        with file:
            yield _Stream(file, self.where)

    def _path(self, digest: str) -> str:
        name = check_digest(digest)
        return f"{self._root}/{name[:2]}/{name}.tar.zst"


class _Stream:
    """A file object of somebody else's as a source."""

    def __init__(self, file: Any, where: str) -> None:
        self._file = file
        self._where = where

    def read(self, size: int) -> bytes:
        try:
            return bytes(self._file.read(size))
        except ArchiveInvalid:
            raise
        except Exception as error:
            raise unkept(self._where, error) from error

    def skip(self, size: int) -> int:
        return skip_by_reading(self, size)


def _without_password(url: str) -> str:
    return re.sub(r"(://[^/@:]*:)[^@/]*@", r"\1***@", url)


def _made(folder: Path) -> bool:
    try:
        folder.mkdir()
    except FileExistsError:
        return False
    return True


def _copy(source: Path, target: Path) -> None:
    with source.open("rb") as reading, target.open("xb") as writing:
        while data := reading.read(1024 * 1024):
            writing.write(data)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

"""Importing an image: an archive in, a root filesystem on the shelf out, or nothing at all."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from assay.failures import FailureEvent
from assay.failures.kinds import PERSISTENCE_FAILED
from assay.images.bundle import Bundle, open_bundle
from assay.images.layers import apply_layer, base_mode
from assay.images.manifest import find_image
from assay.images.names import check_name
from assay.images.record import ImportedImage, record_path, remove_record, write_record
from assay.images.shelf import changing, is_root_folder, staging_place
from assay.workspaces import ArchiveInvalid, Caps, scratch_folder
from assay.workspaces.archive import FileSlice, Meter, Metered
from assay.workspaces.caps import TargetError
from assay.workspaces.opener import opened
from assay.workspaces.unpack import Unpacker, unpack

Tell = Callable[[str], None]
"""Told, in a few words, what is being done."""

CAPS: Final = Caps(bytes=100 * 1024**3)
"""How large an image may be, decompressed; the other caps are those of a workspace."""

_BETWEEN_TELLS_S: Final = 0.2


def import_image(
    archive: Path, name: str, shelf: Path, *, caps: Caps = CAPS, tell: Tell = lambda _: None
) -> ImportedImage:
    """Make the root filesystem `shelf/name` from an archive, and return what is known of it.

    The archive is an OCI layout, what `docker save` or `podman save` wrote, or the root filesystem itself (`docker export`,
    `podman export`); as it is, or compressed with gzip, bzip2, xz or zstd. Of an image for several platforms, this
    machine's is taken. Every blob is checked against its digest. Everybody may read what is in the folder, its owner alone
    may write.

    Raises `ArchiveInvalid` (`ArchiveTooLarge` over a cap) with what is wrong with the archive, `ValueError` for a name that
    is none or is taken, and `FailureEvent` of kind `persistence_failed` when it cannot be written. Nothing is left then.
    """
    folder = shelf / check_name(name)
    _refuse_taken(folder, shelf)
    try:
        with scratch_folder("import", place=staging_place(shelf)) as scratch:
            root = scratch / "root"
            root.mkdir(mode=0o755)
            root.chmod(0o755)
            tell("reading the archive")
            with open_bundle(archive, scratch, caps, tell) as bundle:
                image = _unpack(bundle, name, root, caps, tell)
            if not is_root_folder(root):
                raise ArchiveInvalid("it has no root filesystem in it: neither usr/ nor bin/")
            tell("writing it to disk")
            _flush(root)
            return _shelve(replace(image, folder=folder), root, shelf)
    except TargetError as error:
        raise _unwritten(shelf, error.path, error.error) from error.error
    except OSError as error:
        raise _unwritten(shelf, str(error.filename or name), error) from error


def _unpack(bundle: Bundle, name: str, root: Path, caps: Caps, tell: Tell) -> ImportedImage:
    meter = Meter(caps)
    image = find_image(bundle, name)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    if image is None:
        source = Metered(FileSlice(bundle.descriptor, 0, bundle.size), meter, "the archive")
        unpacker = unpack(source, root, meter=meter, mode_of=base_mode, tell=_Counting(tell, "unpacking"))
        known = ImportedImage(name, root, "rootfs", imported_at=now)
    else:
        with opened(root) as descriptor:
            unpacker = Unpacker(descriptor, meter, base_mode)
            try:
                for number, layer in enumerate(image.layers, 1):
                    counting = _Counting(tell, f"layer {number} of {len(image.layers)}")
                    apply_layer(bundle, layer, unpacker, lowest=number == 1, tell=counting)
            finally:
                unpacker.close()
        known = ImportedImage(
            name,
            root,
            image.format,
            image_id=image.image_id,
            architecture=image.architecture,
            workdir=image.workdir,
            env=dict(image.env),
            layers=tuple(layer.diff_id for layer in image.layers),
            imported_at=now,
        )
    dropped = tuple(found.path for found in unpacker.dropped)
    return replace(
        known, entries=meter.entries, bytes=meter.bytes, dropped=dropped, dropped_count=unpacker.dropped_count
    )


class _Counting:
    """Tells how far it is, now and then."""

    def __init__(self, tell: Tell, what: str) -> None:
        self._tell = tell
        self._what = what
        self._next = 0.0

    def __call__(self, meter: Meter) -> None:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + _BETWEEN_TELLS_S
            self._tell(f"{self._what}: {meter.entries:,} entries, {meter.bytes // 10**6:,} MB")


def _refuse_taken(folder: Path, shelf: Path) -> None:
    """A name is free when nothing has it, and no image lies on the way to it: the one would be inside the other."""
    for parent in folder.parents:
        if parent == shelf:
            break
        if is_root_folder(parent) or record_path(parent).exists():
            taken = parent.relative_to(shelf).as_posix()
            raise ValueError(
                f"the image {taken!r} lies where {folder.relative_to(shelf).as_posix()!r} would be inside it"
            )
    if os.path.lexists(folder):
        name = folder.relative_to(shelf).as_posix()
        if is_root_folder(folder) or record_path(folder).exists():
            raise ValueError(f"there is an image {name!r} already; remove it first: assay rootfs rm {name}")
        raise ValueError(f"{name!r} is the beginning of other images' names; give it another one")


def _shelve(image: ImportedImage, root: Path, shelf: Path) -> ImportedImage:
    """Put a finished folder in its place. What is known of it is there before it is, so that nobody sees it without."""
    with changing(shelf):
        _refuse_taken(image.folder, shelf)
        image.folder.parent.mkdir(parents=True, exist_ok=True)
        write_record(image)
        try:
            root.rename(image.folder)
        except OSError:
            remove_record(image.folder)
            raise
    return image


def _flush(root: Path) -> None:
    """Have the filesystem write everything: after a loss of power no file of a base may be empty."""
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.syncfs(descriptor):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(root))
    finally:
        os.close(descriptor)


def _unwritten(shelf: Path, what: str, error: OSError) -> FailureEvent:
    return FailureEvent(
        PERSISTENCE_FAILED,
        f"the image cannot be written to {shelf}: {what}: {error.strerror}; make room there, or name another place with "
        "--state",
    )

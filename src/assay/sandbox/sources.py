"""What a sandbox of the launcher is shown of the host: paths, and the mounts that root's supervisor makes of them."""

from __future__ import annotations

import os
from dataclasses import dataclass

from assay.sandbox.launch import SetupFailed
from assay.sandbox.launcher import kernel


@dataclass(frozen=True, slots=True)
class Source:
    """A host path to mount in a sandbox."""

    path: str
    attributes: int
    mapped: bool
    """Whether root's files in it are to be the sandbox's own."""
    recursive: bool

    def told(self) -> dict[str, object]:
        """As a server is told that makes the mount itself."""
        return {"path": self.path, "attributes": self.attributes}


def mount_source(source: Source, owners: int) -> int:
    """A descriptor of a mount of it that is nowhere yet; `owners` as in `Slot.owners`. Raises `SetupFailed`."""
    fd = -1
    try:
        fd = kernel.clone_mount(source.path, recursive=source.recursive)
        users = owners if source.mapped else -1
        kernel.set_mount(fd, source.attributes, recursive=source.recursive, users=users)
    except OSError as error:
        if fd >= 0:
            os.close(fd)
        raise SetupFailed(f"{source.path}: {error.strerror}") from error
    return fd

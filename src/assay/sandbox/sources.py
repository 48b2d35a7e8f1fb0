"""What a sandbox of the launcher is shown of the host: paths, and the mounts that root's supervisor makes of them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

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


@dataclass(frozen=True, slots=True, eq=False)
class Stage:
    """A part of a root: steps as the launcher is told of them, and what they show by its index. No two are the same."""

    steps: Sequence[Mapping[str, Any]] = ()
    sources: Sequence[Source] = ()


@dataclass(frozen=True, slots=True)
class Laid:
    """A part of a root that a slot lays for all its sandboxes: steps as the launcher is told of them, a source for each bind."""

    name: str
    """Two of one name are the same."""
    steps: Sequence[Mapping[str, Any]] = field(default=(), compare=False, repr=False)
    sources: Sequence[Source] = field(default=(), compare=False, repr=False)


NOTHING = Laid("nothing")


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

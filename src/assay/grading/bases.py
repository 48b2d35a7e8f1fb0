"""Which root filesystem a task is graded on: the host's own, or a folder that stands for its image."""

from __future__ import annotations

import functools
import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from assay.failures import FailureEvent
from assay.images import is_root_folder, read_record
from assay.tasks import Task
from assay.workspaces import find_inside

DEFAULT_WORKDIR = "/app"
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_OLDEST_PYTHON_3 = 8
_REFUSED_TREES = (
    "/bin",
    "/dev",
    "/etc",
    "/lib",
    "/lib64",
    "/logs",
    "/proc",
    "/run",
    "/sbin",
    "/solution",
    "/sys",
    "/tests",
)
_REFUSED_FOLDERS = ("/", "/tmp", "/usr/local", "/usr/src", "/var")  # noqa: S108 - inside a sandbox


@dataclass(frozen=True, slots=True)
class Base:
    """A root filesystem to grade on."""

    name: str
    """"host", or what names the folder: an image's name or its path."""
    folder: Path | None
    """None: the host's own."""
    digest: str
    """Tells this base from another one, and from itself after a change of its top level."""
    workdir: str | None = None
    """Where its image says that work is done; None when it says nothing."""
    env: Mapping[str, str] = field(default_factory=dict)
    """What its image says that every command's environment has."""


def find_base(task: Task, rootfs: str | None, state: Path, *, image: str | None = None) -> Base:
    """The base for a task: `rootfs` when given, else what the task names, else the host's.

    `rootfs` is "host", the name of a folder in `STATE_DIR/rootfs`, or a folder; `image` the image of the verifier's own
    environment, in place of the task's. Raises `FailureEvent` of kind
    `assay:image_missing`, naming the image and both ways on; nothing falls back in silence.
    """
    if rootfs == "host":
        return host_base()
    if rootfs is not None:
        return _named(rootfs, state, f"--rootfs {rootfs}")
    if image is not None:
        return _named(image, state, f"task {task.id} needs the image {image!r} for [verifier.environment]")
    if task.settings.rootfs is not None:
        return _named(task.settings.rootfs, state, f"task {task.id} names the root folder {task.settings.rootfs!r}")
    if task.image.docker_image is not None:
        return _named(task.image.docker_image, state, f"task {task.id} needs the image {task.image.docker_image!r}")
    if task.image.has_dockerfile:
        dataset = task.folder.resolve().parent.name
        return _named(f"{dataset}/{task.id}", state, f"task {task.id} has environment/Dockerfile and needs its image")
    return host_base()


@functools.cache
def host_base() -> Base:
    """The host's own `/usr`."""
    release = Path("/etc/os-release")
    seen = [release.read_bytes() if release.exists() else b"", os.fsencode(os.path.realpath("/usr/bin/python3"))]
    return Base("host", None, "sha256:" + hashlib.sha256(b"\0".join(seen)).hexdigest())


def workdir_of(task: Task, base: Base) -> str:
    """Where the workspace lies in the sandbox: the task's workdir, else its image's, else `/app`.

    Raises `FailureEvent` of kind `assay:task_invalid` for a place that a workspace cannot take.
    """
    workdir = os.path.normpath(task.workdir or base.workdir or DEFAULT_WORKDIR)
    trees = (*_REFUSED_TREES, "/usr") if not workdir.startswith(("/usr/src/", "/usr/local/")) else _REFUSED_TREES
    if workdir in _REFUSED_FOLDERS or any(workdir == tree or workdir.startswith(tree + "/") for tree in trees):
        raise FailureEvent(
            "assay:task_invalid",
            f"{task.folder}/task.toml: [environment] workdir {workdir!r}"
            f"{'' if task.workdir else f', which comes from the image {base.name!r},'} belongs to the system of the sandbox; "
            f"give a folder of the task's own, such as {DEFAULT_WORKDIR!r}",
            stage="admission",
        )
    return workdir


def verifier_workdir(task: Task, workdir: str) -> str:
    """The folder that a verifier starts in: `[verifier.environment] workdir`, else `workdir`, where the workspace lies."""
    own = task.config.verifier.environment
    if own is None or own.workdir is None:
        return workdir
    return os.path.normpath(own.workdir)


def agent_filesystem(folder: Path) -> Path:
    """A folder that holds an agent's own root filesystem.

    Raises `FailureEvent` of kind `assay:workspace_invalid` when it is no such folder.
    """
    if folder.is_dir() and any((folder / name).is_dir() for name in ("usr", "bin")):
        return folder.absolute()
    raise FailureEvent(
        "assay:workspace_invalid",
        f"{folder} is not a root filesystem: it has neither usr/ nor bin/; give the one that the agent worked in",
        stage="admission",
    )


def _named(name: str, state: Path, who: str) -> Base:
    if name == "host":
        return host_base()
    shelf = state / "rootfs"
    if not name.startswith(("/", "./", "../", "~")) and ".." not in PurePosixPath(name).parts:
        folder = shelf / name
        if folder.is_dir():
            return _folder_base(name, folder)
    folder = Path(name).expanduser()
    if "/" in name and folder.is_dir():
        return _folder_base(name, folder.absolute())
    raise FailureEvent(
        "assay:image_missing",
        f"{who}, and there is no such folder here (looked in {shelf}); import the image (`assay rootfs import ARCHIVE {name}`, "
        "with an archive from `docker save` or `podman save`), or put its root filesystem at "
        f"{shelf / name.lstrip('/')} (or give its folder with --rootfs DIR), or grade on this machine's own with --rootfs host",
        stage="admission",
    )


def _folder_base(name: str, folder: Path) -> Base:
    if not is_root_folder(folder):
        raise FailureEvent(
            "assay:image_missing",
            f"{folder} is not a root filesystem: it has neither usr/ nor bin/",
            stage="admission",
        )
    record = hashlib.sha256()
    for path in (folder, *sorted(folder.iterdir())):
        seen = path.lstat()
        record.update(f"{path.name}\0{seen.st_dev}:{seen.st_ino}:{seen.st_mtime_ns}\n".encode())
    image = read_record(folder)
    if image is None:
        return Base(name, folder, "sha256:" + record.hexdigest())
    record.update(repr((image.image_id, image.workdir, sorted(image.env.items()))).encode())
    return Base(name, folder, "sha256:" + record.hexdigest(), image.workdir, image.env)


def find_python(base: Base, path: str | None, workdir: str) -> str | None:
    """The interpreter in a base that the shim would find on `path` (None: the usual folders), as an absolute path.

    Never one in the workspace. None when there is none, or when the first one is visibly older than 3.8.
    """
    if base.folder is None:
        # Looked for once: every verification on the host's own base asks.
        return _python_of_host(path or DEFAULT_PATH, workdir)
    return _look_for_python(base.folder, path or DEFAULT_PATH, workdir)


@functools.lru_cache(maxsize=256)
def _python_of_host(path: str, workdir: str) -> str | None:
    return _look_for_python(Path("/"), path, workdir)


def _look_for_python(base: Path, path: str, workdir: str) -> str | None:
    root = Path(os.path.realpath(base))
    folders = [os.path.normpath(entry) for entry in path.split(":") if entry.startswith("/")]
    for name in ("python3", "python"):
        for folder in folders:
            found = find_inside(root, folder)
            # Where it leads in the sandbox, links of the base included.
            seen = {folder, f"/{found.relative_to(root)}"} if found is not None else {folder}
            if found is None or any(place == workdir or place.startswith(workdir + "/") for place in seen):
                continue
            place = found / name
            if not os.path.lexists(place):
                continue
            target = os.fspath(place.readlink()) if place.is_symlink() else name
            version = re.search(r"python(\d+)\.(\d+)$", target)
            if version and (int(version[1]), int(version[2])) < (3, _OLDEST_PYTHON_3):
                return None
            return f"{folder}/{name}"
    return None

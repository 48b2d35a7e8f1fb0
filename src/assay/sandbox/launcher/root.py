"""The root file system of one sandbox, built step by step inside an empty one.

Everything that is shown comes as the descriptor of a mount that is nowhere yet, made before the old root was left: while
the new root is built nothing of the host can be named any more, so no link in a base or a workspace can lead there.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Mapping, Sequence
from typing import Any

from . import kernel

_MADE = "/.made"
_PROC = "/proc"
_QUIET = kernel.NOSUID | kernel.NODEV


def enter(place: str) -> None:
    """Leave the old root for an empty tmpfs, mounted at the folder `place`."""
    # Holds mount points alone: folders, links, empty files.
    kernel.mount("tmpfs", place, _QUIET, "size=1m,mode=755")
    os.chdir(place)
    # The old root on top of the new one, and away with it: no folder is needed to put it.
    kernel.pivot_root(".", ".")
    kernel.detach(".")
    os.chdir("/")


def build(
    steps: Sequence[Mapping[str, Any]], mounts: Sequence[int], proc: int, dev: int, owner: int, space: int | None
) -> int:
    """Make the steps of a sandbox in order, up to those that `finish` makes; a descriptor of what that needs, or -1.

    A step's `sources` are indexes of `mounts`, the lowest layer first. `proc` is a /proc, to be covered by `place_proc`.
    `owner` is the uid (and gid) that an overlay's upper folder belongs to, `space` how many bytes all upper layers may hold
    together (of `finish`, too); None: there are none.
    """
    whole = _is_whole(steps)
    layers = -1
    # The server makes one root after the other: what a root that cannot be made left open would stay for good.
    with contextlib.ExitStack() as failed, contextlib.ExitStack() as done:
        if space is not None:
            # Apart from every other mount, so that the upper layers have a size of their own. Where the sandbox's own /proc
            # will be: to take it away again would take the kernel longer than all the rest, since it waits for every processor.
            place = _MADE if whole else _PROC
            os.mkdir(place, 0o755)
            kernel.mount("tmpfs", place, _QUIET, f"size={space},mode=700")
            layers = os.open(place, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            failed.callback(os.close, layers)
        if whole:
            steps, mounts = _with_overlays_made(steps, mounts, owner, layers, done)
            _stand_on(mounts[steps[0]["sources"][0]])
            _make_all(steps[1:], mounts, 0, proc, dev, owner, -1)
        else:
            _make_all(steps, mounts, 0, proc, dev, owner, layers)
        failed.pop_all()
    return layers


def finish(
    begun: Sequence[Mapping[str, Any]],
    steps: Sequence[Mapping[str, Any]],
    mounts: Sequence[int],
    owner: int,
    layers: int,
) -> None:
    """Make what was not known when `begun` was built, then make the root read-only, unless it is one of its own.

    One of its own takes no further steps. `layers` is what `build` returned.
    """
    if not _is_whole(begun):
        _make_all(steps, mounts, len(begun), -1, -1, owner, layers)
        kernel.set_mount("/", kernel.RDONLY | _QUIET)


def place_proc(proc: int, owner: int) -> None:
    """Cover what stood in for the sandbox's own /proc while it was made: see `build`. Nothing in there can uncover it."""
    kernel.place_mount(proc, _PROC)
    if owner == 0:
        # The kernel lets whoever is 0 in a namespace change its settings, without any capability; the network's would stay.
        settings = kernel.clone_mount(f"{_PROC}/sys")
        kernel.set_mount(settings, kernel.RDONLY | _QUIET | kernel.NOEXEC)
        kernel.place_mount(settings, f"{_PROC}/sys")
        os.close(settings)


def _is_whole(steps: Sequence[Mapping[str, Any]]) -> bool:
    return bool(steps) and steps[0]["at"] == "/"


def _make_all(
    steps: Sequence[Mapping[str, Any]],
    mounts: Sequence[int],
    first: int,
    proc: int,
    dev: int,
    owner: int,
    layers: int,
) -> None:
    for number, step in enumerate(steps, first):
        _make(step, [mounts[index] for index in step["sources"]], number, proc, dev, owner, layers)


def lay(steps: Sequence[Mapping[str, Any]], mounts: Sequence[int], owner: int) -> None:
    """Make steps in the root that is there: folders, links, and mounts, each of one of `mounts` in order."""
    waiting = iter(mounts)
    for step in steps:
        sources = [next(waiting)] if step["what"] == "bind" else []
        _make(step, sources, 0, -1, -1, owner, -1)


def _with_overlays_made(
    steps: Sequence[Mapping[str, Any]], mounts: Sequence[int], owner: int, layers: int, done: contextlib.ExitStack
) -> tuple[list[Mapping[str, Any]], list[int]]:
    """The steps with every overlay made already, as a mount to place: where the root is another's, no layers can be kept.

    With them all mounts; those that are new are closed with `done`.
    """
    every = list(mounts)
    found: list[Mapping[str, Any]] = []
    for number, step in enumerate(steps):
        if step["what"] not in ("overlay", "layers"):
            found.append(step)
            continue
        sources = [mounts[index] for index in step["sources"]]
        _overlay(_MADE, sources, number, owner, layers, writable=step["what"] == "overlay")
        found.append({**step, "what": "bind", "sources": [len(every)]})
        every.append(kernel.clone_mount(_MADE))
        done.callback(os.close, every[-1])
    return found, every


def _stand_on(base: int) -> None:
    """Make this mount the root, and let go of the one before it, with the layers: the overlays keep what they use."""
    if not os.path.isdir(_MADE):
        os.mkdir(_MADE)
    kernel.place_mount(base, _MADE)
    os.chdir(_MADE)
    kernel.pivot_root(".", ".")
    kernel.detach(".")
    os.chdir("/")


def _make(
    step: Mapping[str, Any], sources: list[int], number: int, proc: int, dev: int, owner: int, layers: int
) -> None:
    at = step["at"]
    match step["what"]:
        case "dir":
            _folder(at, owner)
        case "symlink":
            os.symlink(step["text"], at)
        case "tmpfs":
            _folder(at, owner)
            kernel.mount("tmpfs", at, _QUIET, f"size={step['size']},mode={step['perms']:o}")
        case "proc":
            _folder(at, owner)
            kernel.place_mount(proc, at)
        case "dev":
            _folder(at, owner)
            kernel.place_mount(dev, at)
        case "bind":
            _point(at, sources[0], owner)
            kernel.place_mount(sources[0], at)
        case "overlay" | "layers":
            _folder(at, owner)
            _overlay(at, sources, number, owner, layers, writable=step["what"] == "overlay")
        case what:
            raise ValueError(f"there is no step {what!r}")


def _folder(at: str, owner: int) -> None:
    """Make a folder and those above it where there is none. Theirs who may write there: in an overlay that matters."""
    try:
        os.mkdir(at, 0o755)
    except FileExistsError:
        return
    except FileNotFoundError:
        _folder(os.path.dirname(at), owner)
        os.mkdir(at, 0o755)
    os.chown(at, owner, owner)


def _point(at: str, source: int, owner: int) -> None:
    """Make a mount point where there is none: of the kind of what will be there, or the kernel refuses."""
    if stat.S_ISDIR(os.fstat(source).st_mode):
        _folder(at, owner)
    elif not os.path.lexists(at):
        _folder(os.path.dirname(at), owner)
        os.close(os.open(at, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o644))


def _overlay(at: str, sources: list[int], number: int, owner: int, layers: int, *, writable: bool) -> None:
    # Short names of our own, from the folder of all layers on, whatever covers that: in a name of the host's a colon or a
    # comma would be read as an option.
    os.fchdir(layers)
    os.mkdir(f"{number}")
    os.chdir(f"{number}")
    lowers: list[str] = []
    for index, source in enumerate(sources):
        lowers.insert(0, f"{index}")
        os.mkdir(lowers[0])
        kernel.place_mount(source, lowers[0])
    # A user namespace may keep overlay's own marks in no other attributes.
    options = f"userxattr,lowerdir={':'.join(lowers)}"
    flags = _QUIET | kernel.RDONLY
    if writable:
        os.mkdir("w", 0o700)
        os.mkdir("u")
        # The merged root has the upper folder's owner and mode.
        os.chown("u", owner, owner)
        os.chmod("u", stat.S_IMODE(os.fstat(sources[-1]).st_mode))
        options += ",upperdir=u,workdir=w"
        flags = _QUIET
    kernel.mount("overlay", at, flags, options)
    os.chdir("/")

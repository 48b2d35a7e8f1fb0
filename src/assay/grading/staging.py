"""Tests folders as sandboxes see them: laid once for each content, and shared by the verifications that need it.

Sandboxes see such a folder read-only. What is an answer's own, its response, is a file of its own mounted over it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import secrets
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from assay.sandbox import Mount, ReadOnly
from assay.sandbox.owning import readable_by_all, tree_holds
from assay.tasks import StagedTests, canonical_json, json_file, stage_tests
from assay.verifiers.compiled import COMPILED, HOME, compiled_files
from assay.workspaces import process_folder, remove_tree

from .arguments import is_large
from .job import Job

TESTS = "/tests"
_IDLE_MOST = 64
"""Folders that nobody uses are kept up to this many, the least recently used going first."""


class Laid(NamedTuple):
    """A tests folder that is there."""

    staged: StagedTests
    mounts: tuple[Mount, ...]
    """What a sandbox needs to see it."""
    compiled: bool
    """Whether the runner lies there compiled, too."""


@dataclass(slots=True)
class _Folder:
    path: Path
    staged: StagedTests
    open: bool
    """Whether everybody can read all of it."""
    users: int = 0


class _Shelf:
    """The folders of one process, by what they hold. Safe from threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._folders: dict[str, _Folder] = {}
        self._place: Path | None = None

    def new_place(self) -> Path:
        """A path where nothing is."""
        with self._lock:
            if self._place is None:
                self._place = process_folder("staged")
            return self._place / secrets.token_hex(8)

    def take(self, key: str) -> _Folder | None:
        """The folder of this content, kept until `give_back`; None when there is none."""
        with self._lock:
            folder = self._folders.pop(key, None)
            if folder is not None:
                self._folders[key] = folder
                folder.users += 1
            return folder

    def put(self, key: str, folder: _Folder) -> None:
        """Keep a folder that its maker still uses. Where another came first, that one stays."""
        with self._lock:
            self._folders.setdefault(key, folder)
            idle = [key for key, folder in self._folders.items() if not folder.users]
            surplus = [self._folders.pop(key) for key in idle[: max(len(idle) - _IDLE_MOST, 0)]]
        for old in surplus:
            remove_tree(old.path)

    def give_back(self, key: str, folder: _Folder) -> None:
        """The end of one use. A folder that is not on the shelf goes."""
        with self._lock:
            folder.users -= 1
            kept = self._folders.get(key) is folder
        if not kept:
            remove_tree(folder.path)


_shelf = _Shelf()


def _forget() -> None:
    global _shelf
    # In a forked child: the folders are its parent's, who may remove them.
    _shelf = _Shelf()


os.register_at_fork(after_in_child=_forget)


@contextlib.asynccontextmanager
async def laid_tests(job: Job, response: Mapping[str, Any] | None, own: Callable[[], Path]) -> AsyncIterator[Laid]:
    """The tests folder of a verification. `own` makes a folder of ours, for what is this verification's alone.

    Raises `TaskInvalid` for what cannot be staged.
    """
    if not job.provider.isolated:
        # Nothing there keeps a verifier from writing in it: none but this verification's may be within its reach.
        alone = own() / "tests"
        staged = await asyncio.to_thread(stage_tests, job.task, alone, task_data=dict(job.task_data), response=response)
        yield Laid(staged, (ReadOnly(alone, TESTS),), compiled=False)
        return
    shelf = _shelf
    large = is_large(job.task_data)
    key = await asyncio.to_thread(_key, job, response) if large else _key(job, response)
    folder = shelf.take(key)
    if folder is None:
        laying = asyncio.ensure_future(asyncio.to_thread(_lay, shelf, key, job, response))
        try:
            folder = await asyncio.shield(laying)
        except asyncio.CancelledError:
            laying.add_done_callback(lambda done: _not_needed(shelf, key, done))
            raise
    try:
        mounts = [ReadOnly(folder.path, TESTS, open=folder.open)]
        if response is not None:
            file = own() / "response.json"
            if is_large(response):
                await _written(file, response)
            else:
                _write(file, response)
            mounts.append(ReadOnly(file, f"{TESTS}/{folder.staged.response_path}", open=True))
        yield Laid(folder.staged, tuple(mounts), compiled=folder.staged.is_shim)
    finally:
        shelf.give_back(key, folder)


async def _written(file: Path, response: Mapping[str, Any]) -> None:
    """Written in a thread, which has ended when this returns or is cancelled: the file's folder goes then."""
    writing = asyncio.ensure_future(asyncio.to_thread(_write, file, response))
    try:
        await asyncio.shield(writing)
    except asyncio.CancelledError:
        await asyncio.wait([writing])
        raise


def _write(file: Path, response: Mapping[str, Any]) -> None:
    file.write_bytes(json_file(response, "the response"))
    # Whatever the umask is: it is seen under another uid.
    file.chmod(0o644)


def _not_needed(shelf: _Shelf, key: str, laying: asyncio.Future[_Folder]) -> None:
    if not laying.cancelled() and laying.exception() is None:
        shelf.give_back(key, laying.result())


def _key(job: Job, response: Mapping[str, Any] | None) -> str:
    given = canonical_json([job.task.verifier_digest, job.step, dict(job.task_data), response is not None])
    return hashlib.sha256(given).hexdigest()


def _lay(shelf: _Shelf, key: str, job: Job, response: Mapping[str, Any] | None) -> _Folder:
    place = shelf.new_place()
    # Where a response comes, a file must be there for it to be mounted on.
    placeholder: dict[str, Any] | None = {} if response is not None else None
    try:
        staged = stage_tests(job.task, place, task_data=dict(job.task_data), response=placeholder)
        if staged.is_shim:
            (place / os.path.relpath(HOME, TESTS) / COMPILED).write_bytes(compiled_files())
        folder = _Folder(place, staged, tree_holds(place, readable_by_all), users=1)
        # A file that changed since the task was read: good for this one, and not for who comes with the same digest.
        if replace(job.task).verifier_digest == job.task.verifier_digest:
            shelf.put(key, folder)
    except BaseException:
        remove_tree(place)
        raise
    return folder

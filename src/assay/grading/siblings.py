"""The sandboxes of one verification's submission: siblings of the grader's, made by the same provider.

A run that needs nothing kept goes to a lane: a sandbox with the captured workspace under an overlay, where every command
starts from the same state, so that the next run may have it too and the workspace is copied once, not once a run. A run
with files, outputs or a session gets a folder of its own that holds a copy of the workspace: what was written there can be
read afterwards, by the safe opener, and a session's stays for its next run.

Nothing here changes the capture, nor its owner: the grader's sandbox has that.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import posixpath
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from assay.failures import FailureEvent
from assay.sandbox import MIB, Ended, ExecResult, Limits, Overlay, Provider, Sandbox, SandboxSpec, Writable
from assay.workspaces import Unreadable, read_file

from .asks import FILES_BYTES_MAX, Refused, RunAsk

SESSIONS_MAX = 16
LANES_MAX = 4
_IN_MEMORY_MAX = 16 * MIB
"""A workspace up to this size is copied to memory, where the sandbox's memory limit bounds what is written to it."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What the sandboxes of one submission have in common."""

    provider: Provider
    base: Path | None
    workdir: str
    workspace: Path
    """The captured workspace."""
    limits: Limits
    """Those of the verification: a run may ask for less memory, never for more."""
    env: Mapping[str, str] = field(default_factory=dict)
    """The task's environment, without what is the verifier's alone."""
    interpreter: str | None = None
    """The Python that programs may be run by a fork of, in place of starting it; None: none is."""


@dataclass(frozen=True, slots=True)
class Ran:
    """What became of one run."""

    result: ExecResult
    outputs: Mapping[str, bytes | None]
    """None: absent, or nothing that can be read safely."""


@dataclass(slots=True)
class _Session:
    sandbox: Sandbox
    memory_bytes: int | None
    used: bool = False
    """Whether a program of the submission's has had its folder."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class Siblings:
    """Makes them as they are needed and keeps those that can be used again until `close`."""

    def __init__(self, setting: Setting) -> None:
        """Nothing is made yet."""
        self._setting = setting
        self._lanes: list[tuple[int | None, Sandbox]] = []
        self._sessions: dict[str, _Session] = {}
        self._making = asyncio.Lock()
        self._again = False
        """Whether there was a run in a lane already."""
        self._small: bool | None = None

    async def run(self, ask: RunAsk, argv: list[str], stdin: bytes, files: Path | None, deadline: float) -> Ran:
        """Run a program of the submission's and read what it was to leave.

        `files` holds the files to lay over the workspace first, if any, by their paths below the workdir; `deadline` is when, by
        the event loop's clock, the verification's own time is over. Raises `Refused`, and `FailureEvent` when a sandbox
        cannot be had.
        """
        memory = _least(ask.memory_bytes, self._setting.limits.memory_bytes)
        if ask.session is not None:
            session = await self._session(ask.session, memory)
            async with session.lock:
                if session.used and files is not None:
                    await self._lay_again(session, files)
                    files = None
                session.used = True
                return await self._in_folder(session.sandbox, ask, argv, stdin, files, deadline)
        if files is not None or ask.outputs:
            sandbox = await self._with_folder(memory)
            try:
                return await self._in_folder(sandbox, ask, argv, stdin, files, deadline)
            finally:
                await sandbox.close()
        async with self._lane(memory) as sandbox:
            return Ran(await self._exec(sandbox, ask, argv, stdin, deadline), {})

    async def close(self) -> None:
        """Close them all. No run may be going on."""
        for sandbox in [*(lane for _, lane in self._lanes), *(kept.sandbox for kept in self._sessions.values())]:
            await sandbox.close()
        self._lanes.clear()
        self._sessions.clear()

    @contextlib.asynccontextmanager
    async def _lane(self, memory: int | None) -> AsyncIterator[Sandbox]:
        at = next((at for at, (limit, _) in enumerate(self._lanes) if limit == memory), None)
        again, self._again = self._again, True
        if at is not None:
            _, sandbox = self._lanes.pop(at)
        else:
            # Not disposable: the capture's owner is the grader's sandbox, and the provider works on a copy of its own.
            overlay = Overlay(self._setting.workspace, self._setting.workdir, own=True)
            sandbox = await self._setting.provider.create(self._spec(overlay, memory, again=again))
        try:
            yield sandbox
        except BaseException:
            await sandbox.close()
            raise
        if sandbox.for_one and not again:
            # Most programs are run once. Who runs two runs more, in one that gets ready for the next meanwhile.
            await sandbox.close()
            return
        self._lanes.insert(0, (memory, sandbox))
        if len(self._lanes) > LANES_MAX:
            _, oldest = self._lanes.pop()
            await oldest.close()

    async def _session(self, name: str, memory: int | None) -> _Session:
        async with self._making:
            kept = self._sessions.get(name)
            if kept is None:
                if len(self._sessions) >= SESSIONS_MAX:
                    raise Refused("limit", f"a verification may have {SESSIONS_MAX} sessions; use one of them again")
                kept = self._sessions[name] = _Session(await self._with_folder(memory, again=True), memory)
        if kept.memory_bytes != memory:
            raise Refused("malformed", f"the session {name!r} was begun with another memory_mb: give the same")
        return kept

    async def _lay_again(self, session: _Session, files: Path) -> None:
        try:
            await session.sandbox.put(files, self._setting.workdir)
        except FailureEvent as failure:
            # The submission may have filled the folder on purpose: no evidence of a fault of the machine's.
            raise Refused("limit", f"the session's folder takes no more files: {failure.reason}") from None

    async def _with_folder(self, memory: int | None, *, again: bool = False) -> Sandbox:
        setting = self._setting
        if self._small is None:
            self._small = await asyncio.to_thread(is_small, setting.workspace, _IN_MEMORY_MAX)
        folder = Writable(setting.workdir, on_disk=not self._small)
        sandbox = await setting.provider.create(self._spec(folder, memory, again=again))
        try:
            await sandbox.put(setting.workspace, setting.workdir)
        except BaseException:
            await sandbox.close()
            raise
        return sandbox

    def _spec(self, mount: Overlay | Writable, memory: int | None, *, again: bool) -> SandboxSpec:
        setting = self._setting
        limits = replace(setting.limits, memory_bytes=memory)
        return SandboxSpec(
            setting.base, (mount,), limits=limits, interpreter=setting.interpreter, scripts=True, again=again
        )

    async def _in_folder(
        self, sandbox: Sandbox, ask: RunAsk, argv: list[str], stdin: bytes, files: Path | None, deadline: float
    ) -> Ran:
        if files is not None:
            await sandbox.put(files, self._setting.workdir)
        result = await self._exec(sandbox, ask, argv, stdin, deadline)
        if not ask.outputs:
            return Ran(result, {})
        folder = await sandbox.get(self._setting.workdir)
        within = posixpath.relpath(ask.cwd, self._setting.workdir)
        return Ran(result, await asyncio.to_thread(read_outputs, folder, within, ask.outputs))

    async def _exec(self, sandbox: Sandbox, ask: RunAsk, argv: list[str], stdin: bytes, deadline: float) -> ExecResult:
        left = deadline - asyncio.get_running_loop().time()
        if left <= 0:
            return ExecResult(Ended.WALL_LIMIT)
        env = {**self._setting.env, **ask.env}
        try:
            return await sandbox.exec(argv, cwd=ask.cwd, env=env, timeout_s=min(ask.timeout_s, left), stdin=stdin)
        except ValueError as error:
            raise Refused("malformed", f"no system could start this command: {error}") from None


def read_outputs(folder: Path, within: str, paths: tuple[str, ...]) -> dict[str, bytes | None]:
    """What the files at `paths`, below `within` in an untrusted folder, hold: at most `FILES_BYTES_MAX` bytes together.

    None for what is absent, is no regular file with one link, is reached through a link, or does not fit any more.
    """
    found: dict[str, bytes | None] = {}
    left = FILES_BYTES_MAX
    for path in paths:
        try:
            content = read_file(folder, posixpath.normpath(f"{within}/{path}"), max_bytes=left)
        except Unreadable:
            found[path] = None
            continue
        found[path] = content
        left -= len(content)
    return found


def is_small(folder: Path, most: int) -> bool:
    """Whether a folder of ours takes at most `most` bytes of disk. One too deep or too odd to be counted does not."""
    left = most
    folders = [folder]
    try:
        for one in folders:
            with os.scandir(one) as entries:
                for entry in entries:
                    left -= max(4096, entry.stat(follow_symlinks=False).st_size)
                    if left < 0:
                        return False
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(Path(entry.path))
    except OSError:
        return False
    return True


def _least(*limits: int | None) -> int | None:
    return min((limit for limit in limits if limit is not None), default=None)

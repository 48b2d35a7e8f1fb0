"""A sandbox whose processes are this host's: everything about it but how its first process is started."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from assay.failures import FailureEvent
from assay.sandbox.base import Ended, ExecResult, SandboxSpec
from assay.sandbox.command import check_command, whole_environment
from assay.sandbox.launch import Launched, Stdio, local_failure
from assay.sandbox.parts import Parts, is_full, put_tree
from assay.sandbox.supervise import Request, Run
from assay.sandbox.waiting import Insistence


@dataclass(frozen=True, slots=True)
class Command:
    """What to run in a sandbox: checked and complete."""

    argv: tuple[str, ...]
    cwd: str
    env: Mapping[str, str]
    pass_fds: tuple[int, ...]
    merge_stderr: bool


class Maker(Protocol):
    """How a provider starts a command in a sandbox whose parts are there."""

    def refusal(self, command: Command) -> str | None:
        """Why a command cannot be started by this maker whatever is in the sandbox, or None."""
        ...

    def start(self, command: Command, stdio: Stdio) -> Launched:
        """Start it. Raises `FailureEvent` when this machine cannot."""
        ...


class HostedSandbox:
    """See `Sandbox`. Made by its provider's `create` alone."""

    def __init__(self, spec: SandboxSpec, parts: Parts, maker: Maker) -> None:
        """Take over the parts."""
        self._spec = spec
        self._parts = parts
        self._maker = maker
        self._run: Run | None = None
        self._idle = asyncio.Event()
        self._closed = False
        self._lost = False

    @property
    def for_one(self) -> bool:
        """See `Sandbox.for_one`."""
        return self._parts.for_one

    async def exec(
        self,
        argv: Sequence[str],
        *,
        cwd: str = "/",
        env: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
        stdin: bytes = b"",
        merge_stderr: bool = False,
        pass_fds: Sequence[int] = (),
    ) -> ExecResult:
        """See `Sandbox.exec`."""
        check_command(argv, cwd, env or {}, timeout_s, pass_fds)
        self._check_idle()
        command = Command(tuple(argv), cwd, whole_environment(env), tuple(pass_fds), merge_stderr)
        if (refusal := self._maker.refusal(command)) is not None:
            return _not_started(refusal, merge_stderr)
        request = Request(
            timeout_s=timeout_s,
            stdin=stdin,
            merge_stderr=merge_stderr,
            limits=self._spec.limits,
            owner=self._parts.uid,
            group=self._parts.group,
        )
        run = self._run = Run(request)
        self._idle.clear()
        try:
            result = await run.execute(lambda stdio: self._maker.start(command, stdio))
        except FailureEvent:
            self._lost = run.lost
            raise
        else:
            full = any(map(is_full, self._parts.room.sized))
            return replace(result, limits_hit=(*result.limits_hit, "storage_limit")) if full else result
        finally:
            self._run = None
            self._idle.set()

    async def put(self, source: Path, at: str) -> None:
        """See `Sandbox.put`. Raises `FailureEvent` when it cannot be written, `ValueError` where no `Writable` is."""
        folder = self._writable(at)
        if not source.is_dir():
            raise ValueError(f"put: {str(source)!r} is not a folder")
        patience = Insistence()
        try:
            await patience.run(
                lambda: put_tree(source, folder, folder.with_name(f"{folder.name}-put"), self._parts.uid)
            )
        except OSError as error:
            raise local_failure(error, f"copy {source} into a sandbox") from error
        patience.release()

    async def get(self, at: str) -> Path:
        """See `Sandbox.get`. Raises `ValueError` where no `Writable` is."""
        return self._writable(at)

    def _writable(self, at: str) -> Path:
        self._check_idle()
        writables = self._parts.room.writables
        folder = writables.get(at)
        if folder is None:
            raise ValueError(f"there is no writable mount at {at!r}; there is {sorted(writables) or 'none'}")
        return folder

    def _check_idle(self) -> None:
        if self._closed:
            raise RuntimeError("the sandbox is closed")
        if self._lost:
            raise FailureEvent(
                "provider_unavailable", "the processes of this sandbox's last command could not be proven dead"
            )
        if self._run is not None:
            raise RuntimeError("a command is running in this sandbox; it takes one at a time")

    async def kill(self) -> None:
        """See `Sandbox.kill`."""
        if self._run is not None:
            self._run.stop(Ended.SIGNALED)

    async def close(self) -> None:
        """See `Sandbox.close`."""
        if self._closed:
            return
        self._closed = True
        patience = Insistence()
        if self._run is not None:
            self._run.stop(Ended.SIGNALED)
            idle = asyncio.ensure_future(self._idle.wait())
            while not await patience.wait(idle, timeout_s=60):
                pass
        # What cannot be proven dead keeps its uid and its group until this process ends: nobody else may get them.
        if not self._lost:
            if self._parts.at_once:
                self._parts.free()
            else:
                await patience.run(self._parts.free)
        patience.release()


async def create_in_thread(make: Callable[[], HostedSandbox]) -> HostedSandbox:
    """The sandbox that `make` makes, in a thread; closed again when the caller was cancelled meanwhile."""
    patience = Insistence()
    sandbox: HostedSandbox = await patience.run(make)
    if patience.cancelled:
        await sandbox.close()
    patience.release()
    return sandbox


def in_memory(data: bytes, stack: contextlib.ExitStack) -> int:
    """A descriptor at the beginning of these bytes, closed with the stack."""
    fd = os.memfd_create("assay", os.MFD_CLOEXEC)
    stack.callback(os.close, fd)
    with open(fd, "wb", closefd=False) as file:
        file.write(data)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


COMMAND_NOT_FOUND = 127


def _not_started(why: str, merge_stderr: bool) -> ExecResult:
    said = f"{why}\n".encode()
    out, err = (said, b"") if merge_stderr else (b"", said)
    return ExecResult(
        Ended.EXITED, COMMAND_NOT_FOUND, stdout=out, stderr=err, stdout_bytes=len(out), stderr_bytes=len(err)
    )

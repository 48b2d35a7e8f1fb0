"""A provider for tests of what uses sandboxes: a script of the test's own stands in for the command."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from assay.sandbox.base import Capability, Ended, ExecResult, SandboxSpec, Writable
from assay.sandbox.command import check_command, whole_environment
from assay.sandbox.parts import check_spec, put_tree
from assay.workspaces import scratch_folder


@dataclass(frozen=True, slots=True)
class Call:
    """One command that a `FakeProvider` was asked to run."""

    argv: tuple[str, ...]
    spec: SandboxSpec
    folders: Mapping[str, Path]
    """The host folders of the `Writable` mounts by their `at`: what the script writes there, `get` shows."""
    cwd: str
    env: Mapping[str, str]
    timeout_s: float | None
    stdin: bytes
    merge_stderr: bool
    pass_fds: tuple[int, ...]


Script = Callable[[Call], "ExecResult | Awaitable[ExecResult]"]


def succeed(call: Call) -> ExecResult:
    """The script of a command that does nothing and exits 0."""
    return ExecResult(Ended.EXITED, 0)


@dataclass
class FakeProvider:
    """Keeps the contract of a provider without running anything: `script` is what a command does.

    A script that is a coroutine may wait; `kill` and a time limit then end it as they end a command. What it raises,
    `exec` raises.
    """

    script: Script = succeed
    claims: frozenset[Capability] = frozenset(Capability)
    """What `capabilities` says."""
    name: str = "fake"
    isolated: bool = True
    for_one: bool = False
    """See `Sandbox.for_one`."""
    calls: list[Call] = field(default_factory=list)
    """Every command so far, in order."""
    living: int = 0
    """Sandboxes that are not closed."""

    def capabilities(self) -> frozenset[Capability]:
        """See `Provider.capabilities`."""
        return self.claims

    async def create(self, spec: SandboxSpec) -> FakeSandbox:
        """See `Provider.create`."""
        check_spec(spec)
        sandbox = FakeSandbox(self, spec)
        self.living += 1
        return sandbox


class FakeSandbox:
    """See `Sandbox`. Made by `FakeProvider.create`."""

    def __init__(self, provider: FakeProvider, spec: SandboxSpec) -> None:
        """Make the folders of the writable mounts."""
        self._provider = provider
        self._spec = spec
        self._stack = contextlib.ExitStack()
        folder = self._stack.enter_context(scratch_folder("fake"))
        self._folders: dict[str, Path] = {}
        for number, mount in enumerate(spec.mounts):
            if isinstance(mount, Writable):
                self._folders[mount.at] = folder / str(number)
                self._folders[mount.at].mkdir()
        self._running: asyncio.Future[ExecResult] | None = None
        self._killed = False
        self._closed = False

    @property
    def for_one(self) -> bool:
        """See `Sandbox.for_one`."""
        return self._provider.for_one

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
        whole = whole_environment(env)
        call = Call(
            tuple(argv), self._spec, dict(self._folders), cwd, whole, timeout_s, stdin, merge_stderr, tuple(pass_fds)
        )
        self._provider.calls.append(call)
        self._killed = False
        self._running = asyncio.ensure_future(_play(self._provider.script, call))
        try:
            done, _ = await asyncio.wait({self._running}, timeout=timeout_s)
            if not done:
                return ExecResult(Ended.WALL_LIMIT, wall_s=timeout_s or 0.0)
            if self._killed:
                return ExecResult(Ended.SIGNALED, signal=9)
            return self._running.result()
        finally:
            self._running.cancel()
            self._running = None

    async def put(self, source: Path, at: str) -> None:
        """See `Sandbox.put`."""
        folder = self._writable(at)
        if not source.is_dir():
            raise ValueError(f"put: {str(source)!r} is not a folder")
        put_tree(source, folder, folder.with_name(f"{folder.name}-put"), None)

    async def get(self, at: str) -> Path:
        """See `Sandbox.get`."""
        return self._writable(at)

    def _writable(self, at: str) -> Path:
        self._check_idle()
        if at not in self._folders:
            raise ValueError(f"there is no writable mount at {at!r}; there is {sorted(self._folders) or 'none'}")
        return self._folders[at]

    def _check_idle(self) -> None:
        if self._closed:
            raise RuntimeError("the sandbox is closed")
        if self._running is not None:
            raise RuntimeError("a command is running in this sandbox; it takes one at a time")

    async def kill(self) -> None:
        """See `Sandbox.kill`."""
        if self._running is not None:
            self._killed = True
            self._running.cancel()

    async def close(self) -> None:
        """See `Sandbox.close`."""
        if self._closed:
            return
        self._closed = True
        self._provider.living -= 1
        await self.kill()
        self._stack.close()


async def _play(script: Script, call: Call) -> ExecResult:
    result = script(call)
    return await result if inspect.isawaitable(result) else result

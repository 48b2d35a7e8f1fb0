"""Starting a command in a sandbox, up to the point where it is about to run.

`Launched` is what supervision needs of any way to start one. `Starter` is the way of the providers that start a program
which makes the sandbox. The program (bubblewrap) says the host pid of the sandbox's pid 1 and then waits. The supervisor
opens a pidfd of that process, puts it into its control group, sets its limits, and only then lets it go on: nothing runs
between `fork` and `exec` in the supervisor's own process, and no sandboxed instruction runs outside its limits.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import resource
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from assay.failures import FailureEvent
from assay.sandbox.procfs import children, descendants, parent_of
from assay.sandbox.waiting import Insistence, read_available

SETUP_S = 30.0
"""How long a sandbox may take to be set up, and to die."""
_LOCAL_RESOURCES = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ENOSPC)


@dataclass(slots=True)
class Stdio:
    """Descriptors that the command gets as 0, 1 and 2."""

    stdin: int
    stdout: int
    stderr: int


class SetupFailed(Exception):
    """The sandbox could not be set up; what was seen is in the streams, and in this text where there is more."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What `Launched.read_end` is given to say how a command ended by itself."""

    stdout: bytes
    stderr: bytes


@dataclass(frozen=True, slots=True)
class End:
    """How a command ended by itself: an exit code, a signal, or the fault that was seen."""

    code: int | None = None
    signal: int | None = None
    fault: str | None = None


class Launched(Protocol):
    """A command that is being started in a sandbox, and its processes."""

    @property
    def pid1(self) -> int | None:
        """The host's pid of the sandbox's pid 1, once known."""
        ...

    @property
    def exit_fds(self) -> tuple[int, ...]:
        """Descriptors of which one becomes readable when the command has ended, once `begin` is back."""
        ...

    def processes(self) -> list[int]:
        """The host's pids of the sandbox's processes now, as far as they can be seen; pid 1 may be one of them."""
        ...

    async def begin(self, bound: Callable[[int | None], None], patience: Insistence) -> None:
        """Bring it to the start of the command. Raises `SetupFailed`.

        Calls `bound` before any sandboxed instruction, with the host's pid of what has to join the control group, None
        where all is in it already; with what that raises it ends.
        """
        ...

    def kill(self) -> None:
        """Kill pid 1, and with it, by the kernel's rule, everything in its pid namespace."""
        ...

    async def prove_dead(self, patience: Insistence, timeout_s: float) -> bool:
        """Whether the kernel says that the command is gone, and, where no control group will say it, all else of the sandbox."""
        ...

    def read_end(self, seen: Seen) -> End:
        """How the command ended by itself. Only when it is dead."""
        ...

    def close(self) -> None:
        """Close the descriptors. Harmless when repeated."""
        ...


@dataclass(frozen=True, slots=True)
class Wires:
    """Descriptors for a program that makes a sandbox."""

    info: int
    """It writes pid 1's host pid here, as `{"child-pid": N}`, …"""
    go: int
    """… and waits for a line here before the command starts."""
    hold_go: int
    """The other end of `go`: held by the program too, so that a supervisor's death is never taken for the line."""
    status: int
    """What it writes here, `read_end` gets."""


class Starter:
    """A program that makes a sandbox, a child of this process. See `Launched`."""

    def __init__(
        self,
        build: Callable[[Wires, contextlib.ExitStack], tuple[list[str], list[int]]],
        stdio: Stdio,
        read_end: Callable[[int | None, Seen, bytes], End],
        processes: int | None,
    ) -> None:
        """Start the program that `build` says: its command line, and the descriptors that it gets besides.

        `build` may leave in the stack what has to be closed once the program runs. `read_end` is given the program's
        return code and what it wrote to `status`. `processes` is an RLIMIT_NPROC to set on pid 1: where it counts this
        sandbox alone, the supervisor may, and no group counts. Raises `FailureEvent` of kind `transport_local_resource` when
        this machine is out of processes, memory or descriptors, and `provider_unavailable` when the program cannot be run.
        """
        self.pid1: int | None = None
        self._read_end = read_end
        self._processes = processes
        self._fds: dict[str, int] = {}
        try:
            with contextlib.ExitStack() as given:
                wires = self._wire(given)
                argv, pass_fds = build(wires, given)
                self._popen = subprocess.Popen(  # no shell: an argument vector
                    argv,
                    stdin=stdio.stdin,
                    stdout=stdio.stdout,
                    stderr=stdio.stderr,
                    pass_fds=[wires.info, wires.go, wires.hold_go, wires.status, *pass_fds],
                    env={},
                    cwd="/",
                    # A Ctrl-C at the terminal is the supervisor's to handle.
                    start_new_session=True,
                )
        except BaseException as error:
            self.close()
            if isinstance(error, OSError):
                raise local_failure(error, "start a sandbox") from error
            raise
        try:
            self._fds["exit"] = os.pidfd_open(self._popen.pid)
        except OSError as error:
            self._popen.kill()
            self._popen.wait()
            self.close()
            raise local_failure(error, "watch a sandbox") from error

    def _wire(self, given: contextlib.ExitStack) -> Wires:
        self._fds["info"], info = os.pipe()
        given.callback(os.close, info)
        go, self._fds["go"] = os.pipe()
        given.callback(os.close, go)
        self._fds["status"], status = os.pipe()
        given.callback(os.close, status)
        os.set_blocking(self._fds["info"], False)
        os.set_blocking(self._fds["status"], False)
        return Wires(info, go, self._fds["go"], status)

    @property
    def exit_fds(self) -> tuple[int, ...]:
        """See `Launched.exit_fds`: the program's own end, and pid 1's."""
        return tuple(self._fds[name] for name in ("exit", "pid1") if name in self._fds)

    def processes(self) -> list[int]:
        """See `Launched.processes`."""
        return [] if self.pid1 is None else descendants(self.pid1)

    async def begin(self, bound: Callable[[int | None], None], patience: Insistence) -> None:
        """See `Launched.begin`."""
        pid1 = await self._until_pid1(patience)
        try:
            bound(pid1)
            if self._processes is not None:
                resource.prlimit(pid1, resource.RLIMIT_NPROC, (self._processes, self._processes))
        except ProcessLookupError:
            # It failed between saying its pid and waiting: its own words say why.
            raise SetupFailed from None
        with contextlib.suppress(BrokenPipeError):
            os.write(self._fds["go"], b"\n")

    @property
    def pid(self) -> int:
        """The starter's own pid."""
        return self._popen.pid

    @property
    def returncode(self) -> int | None:
        """How the starter ended, as `subprocess` says it, or None while it runs."""
        return self._popen.poll()

    async def _until_pid1(self, patience: Insistence) -> int:
        """Which process of the host is the sandbox's pid 1. Raises `SetupFailed` when that never comes."""
        text = bytearray()
        info = self._fds["info"]
        while (pid := _child_pid(text)) is None:
            if not await patience.until_readable(info, SETUP_S):
                raise SetupFailed(f"the sandbox was not set up within {SETUP_S:g} s")
            data = read_available(info)
            if data == b"":
                raise SetupFailed
            text += data or b""
        try:
            fd = os.pidfd_open(pid)
        except ProcessLookupError:
            raise SetupFailed from None
        # A pid that was used again since is no child of the starter's.
        if parent_of(pid) != self.pid:
            os.close(fd)
            raise SetupFailed
        self.pid1, self._fds["pid1"] = pid, fd
        return pid

    def kill(self) -> None:
        """See `Launched.kill`."""
        if "pid1" in self._fds:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._fds["pid1"], signal.SIGKILL)
        elif self.returncode is None:
            # Not set up yet: nothing untrusted runs. Its children first, else they would lose their parent unseen.
            for pid in children(self.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._popen.kill()

    async def prove_dead(self, patience: Insistence, timeout_s: float) -> bool:
        """See `Launched.prove_dead`; the program itself, too."""
        pid1 = self._fds.get("pid1")
        if pid1 is not None and not await patience.until_readable(pid1, timeout_s):
            return False
        # The starter ends by itself when pid 1 has; stopped or wedged, it is killed.
        if not await patience.until_readable(self._fds["exit"], 1.0 if pid1 is not None else 0.0):
            self._popen.kill()
            if not await patience.until_readable(self._fds["exit"], timeout_s):
                return False
        self._popen.wait()
        return True

    def read_end(self, seen: Seen) -> End:
        """See `Launched.read_end`."""
        return self._read_end(self.returncode, seen, read_available(self._fds["status"]) or b"")

    def close(self) -> None:
        """See `Launched.close`."""
        while self._fds:
            os.close(self._fds.popitem()[1])


def local_failure(error: OSError, doing: str) -> FailureEvent:
    """The failure for an `OSError` of the supervisor's own, by whether the machine ran out of something."""
    kind = "transport_local_resource" if error.errno in _LOCAL_RESOURCES else "provider_unavailable"
    return FailureEvent(kind, f"could not {doing}: {error}")


def documents(text: bytes | bytearray) -> list[dict[str, Any]]:
    """The complete JSON objects at the beginning of a text of several."""
    found = []
    decoder = json.JSONDecoder()
    rest = text.decode("utf-8", "replace").lstrip()
    while rest:
        try:
            value, end = decoder.raw_decode(rest)
        except ValueError:
            break
        found.append(value)
        rest = rest[end:].lstrip()
    return found


def _child_pid(text: bytes | bytearray) -> int | None:
    return next((int(found["child-pid"]) for found in documents(text) if "child-pid" in found), None)

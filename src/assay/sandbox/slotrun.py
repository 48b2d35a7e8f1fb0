"""One command in a slot's sandbox. See `Launched`."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable
from typing import Any

from assay.failures import FailureEvent
from assay.sandbox.blueprints import Blueprint, Frame
from assay.sandbox.hosted import Command
from assay.sandbox.launch import SETUP_S, End, Seen, SetupFailed, Stdio
from assay.sandbox.launcher import wire
from assay.sandbox.procfs import descendants
from assay.sandbox.slots import Slot
from assay.sandbox.slotserver import Parked, pid_of
from assay.sandbox.sources import Stage, mount_source
from assay.sandbox.waiting import Insistence, readable_within

_HALF = object()
_STARTS_MOST = 2
_FORKS_MOST = 3
_SERVER_DIES_S = 1.0
_ANSWERS_S = 5.0
_DECIDES = {"started", "failed", "ended"}


def build(slot: Slot, begun: Stage, frame: Frame, control: socket.socket) -> None:
    """Have the slot's fork build what can be built before a request. Raises `SetupFailed` for what cannot be mounted."""
    # A fork that was told half of it must not be taken for one that waits.
    slot.built = _HALF
    _tell(slot, "build", begun, {"space": frame.space, "limits": frame.limits}, control)
    slot.built = begun


def prepare(slot: Slot, blueprint: Blueprint, control: socket.socket) -> None:
    """Have the slot's fork make its whole root. Raises `SetupFailed` for what cannot be mounted."""
    if slot.built is not blueprint.begun:
        build(slot, blueprint.begun, blueprint.frame, control)
    slot.prepared = _HALF
    _tell(slot, "finish", blueprint.rest, {}, control)
    slot.prepared = blueprint


def _tell(slot: Slot, word: str, stage: Stage, fields: dict[str, Any], control: socket.socket) -> None:
    fields["steps"] = stage.steps
    with contextlib.ExitStack() as stack:
        mounts = []
        if slot.by_root:
            for source in stage.sources:
                mounts.append(mount_source(source, slot.owners))
                stack.callback(os.close, mounts[-1])
        else:
            fields["sources"] = [source.told() for source in stage.sources]
        with contextlib.suppress(wire.Gone):
            wire.send(control, word, fields, mounts)


class SlotRun:
    """A command that the slot's parked fork is given."""

    def __init__(
        self,
        slot: Slot,
        blueprint: Blueprint,
        command: Command,
        stdio: Stdio,
        *,
        ahead: bool,
        meanwhile: Callable[[], None],
    ) -> None:
        """Copies what it needs of `stdio`; starts nothing yet.

        `ahead`: when it has ended, build the root for another one. `meanwhile` is called when the waiting for it begins.
        """
        self._ahead = ahead
        self._meanwhile = meanwhile
        self._parked: Parked | None = None
        self._said: dict[str, str] = {}
        self._slot = slot
        self._blueprint = blueprint
        self._command = command
        # The caller closes its own when this returns; what it passes it keeps open itself.
        self._stdio: list[int] = []
        try:
            for fd in (stdio.stdin, stdio.stdout, stdio.stderr):
                self._stdio.append(os.dup(fd))
        except OSError:
            self.close()
            raise

    @property
    def exit_fds(self) -> tuple[int, ...]:
        """See `Launched.exit_fds`: the command's own end, and the server's word of it."""
        return (self._parked.command, self._parked.control.fileno()) if self._parked is not None else ()

    @property
    def pid1(self) -> int | None:
        """See `Launched.pid1`."""
        return pid_of(self._parked.init) if self._parked is not None else None

    def processes(self) -> list[int]:
        """See `Launched.processes`. What the command started is below it, and what lost its parent below the init."""
        parked = self._parked
        return [] if parked is None else [*descendants(pid_of(parked.command)), *descendants(pid_of(parked.init))]

    async def begin(self, bound: Callable[[int | None], None], patience: Insistence) -> None:
        """See `Launched.begin`."""
        if self._slot.holds:
            # What the command before this one wrote takes none of this one's memory.
            await patience.run(self._slot.let_go)
        for _ in range(_FORKS_MOST):
            parked = self._parked = await self._take(patience)
            # Born in the group.
            bound(None)
            if _HALF in (self._slot.built, self._slot.prepared):
                self._drop()
                continue
            if self._slot.prepared is not self._blueprint:
                prepare(self._slot, self._blueprint, parked.control)
            self._slot.built = self._slot.prepared = None
            self._send(parked)
            self._meanwhile()
            deadline = time.monotonic() + SETUP_S
            while not self._said.keys() & _DECIDES:
                if not await patience.until_readable(parked.control.fileno(), deadline - time.monotonic()):
                    raise SetupFailed(f"the sandbox was not set up within {SETUP_S:g} s")
                if not self._listen():
                    break
            if self._said.keys() & {"started", "failed"}:
                break
            # Killed before anything of a task's ran in it: another does as well.
            self._drop()
            self._said.clear()
        if "failed" in self._said:
            raise SetupFailed(self._said["failed"])
        if "started" not in self._said:
            raise SetupFailed("the sandbox was killed before the command started")

    def _listen(self) -> bool:
        """Note what the fork or its server says next; whether there was anything."""
        assert self._parked is not None  # noqa: S101 - there are words only of what began
        try:
            word, fields, fds = wire.receive(self._parked.control)
            self._slot.hold(fds)
        except wire.Gone:
            return False
        name, _, value = word.partition(":")
        self._said[name] = value or fields.get("why", "")
        return True

    def _ends(self) -> bool:
        """Whether the server has said how the command ended, or can say nothing any more."""
        assert self._parked is not None  # noqa: S101 - there are words only of what began
        while readable_within(self._parked.control.fileno(), 0):
            if not self._listen():
                return True
        return "ended" in self._said

    async def _take(self, patience: Insistence) -> Parked:
        """The fork that waits. A server that died while nothing ran in it is replaced: nothing was lost with it."""
        deadline = time.monotonic() + SETUP_S
        starts = 0
        while starts < _STARTS_MOST:
            fd = self._slot.answer_fd
            if fd is not None and await patience.until_readable(fd, deadline - time.monotonic()):
                with contextlib.suppress(wire.Gone):
                    parked = self._slot.parked()
                    if parked is None:
                        continue
                    if parked.lives:
                        return parked
                    # Killed while it waited.
                    parked.close()
            why = self._slot.why_gone() or "it does not answer"
            starts += 1
            deadline = time.monotonic() + SETUP_S
            try:
                await patience.run(self._slot.start)
            except FailureEvent as failure:
                raise SetupFailed(failure.reason) from failure
        raise SetupFailed(f"a slot server is lost as soon as it is there: {why}")

    def _send(self, parked: Parked) -> None:
        command = self._command
        fields = {
            "argv": [wire.as_text(argument) for argument in command.argv],
            "env": {wire.as_text(name): wire.as_text(value) for name, value in command.env.items()},
            "cwd": wire.as_text(command.cwd),
            "passed": command.pass_fds,
            "python": self._slot.interpreter is not None and self._slot.interpreter.starts(command),
        }
        with contextlib.suppress(wire.Gone):
            wire.send(parked.control, "run", fields, [*self._stdio, *command.pass_fds])

    def kill(self) -> None:
        """See `Launched.kill`. How a command ended that has ended stays to be seen."""
        if self._parked is not None and not self._ends():
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._parked.init, signal.SIGKILL)

    async def prove_dead(self, patience: Insistence, timeout_s: float) -> bool:
        """See `Launched.prove_dead`."""
        parked = self._parked
        if parked is None:
            return True
        if not self._ends():
            # A large one takes a while to die, and its server hears of it then.
            await patience.until_readable(parked.command, timeout_s)
        deadline = time.monotonic() + _ANSWERS_S
        while not self._ends():
            if not await patience.until_readable(parked.control.fileno(), deadline - time.monotonic()):
                return await self._end_server(patience)
        if "ended" in self._said and self._slot.group is not None:
            # The group tells whether anything else is left.
            return True
        dead = await patience.until_readable(parked.init, timeout_s)
        self._slot.lost = self._slot.lost or not dead
        gone = self._slot.end_fd
        if dead and "ended" not in self._said and gone is not None:
            await patience.until_readable(gone, _SERVER_DIES_S)
        return dead

    async def _end_server(self, patience: Insistence) -> bool:
        """End a server that says nothing: whether everything of the slot is proven dead."""
        try:
            await patience.run(self._slot.stop)
        except FailureEvent:
            return False
        return True

    def read_end(self, seen: Seen) -> End:
        """See `Launched.read_end`. What its server said; where that could say nothing, what ended it."""
        if "ended" in self._said:
            status = int(self._said["ended"])
            if os.WIFSIGNALED(status):
                return End(signal=os.WTERMSIG(status))
            return End(code=os.WEXITSTATUS(status))
        if "failed" in self._said:
            return End(fault=self._said["failed"])
        gone = self._slot.why_gone()
        if gone is not None:
            return End(fault=f"the sandbox was lost with its slot server: {gone} from outside the sandbox")
        # By whom is not known. A fault must be seen from outside, or a program that found a way could make one of a bad verdict.
        return End(signal=signal.SIGKILL)

    def close(self) -> None:
        """See `Launched.close`. The slot then gets the next fork ready."""
        while self._stdio:
            os.close(self._stdio.pop())
        if self._parked is None:
            return
        self._drop()
        control = self._slot.control
        if self._ahead and control is not None:
            # What cannot be mounted is said when the command comes.
            with contextlib.suppress(SetupFailed, OSError):
                prepare(self._slot, self._blueprint, control)

    def _drop(self) -> None:
        if self._parked is not None:
            self._parked.close()
            self._parked = None
            self._slot.ask()

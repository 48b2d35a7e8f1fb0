"""One command in a slot's sandbox. See `Launched`."""

from __future__ import annotations

import contextlib
import os
import signal
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
from assay.sandbox.slotserver import Fork, pid_of
from assay.sandbox.sources import Stage, mount_source
from assay.sandbox.waiting import Insistence

_HALF = object()
_FORKS_MOST = 3
_SERVER_DIES_S = 1.0
_ANSWERS_S = 5.0


def build(slot: Slot, begun: Stage, frame: Frame) -> None:
    """Have the slot's fork built round as far as can be before a request. Raises `SetupFailed` for what cannot be mounted."""
    # A fork that was told half of it must not be taken for one that waits.
    slot.built = _HALF
    _tell(slot, "build", begun, {"space": frame.space, "limits": frame.limits})
    slot.built = begun


def prepare(slot: Slot, blueprint: Blueprint) -> None:
    """Have the slot's fork given its whole root. Raises `SetupFailed` for what cannot be mounted."""
    if slot.built is not blueprint.begun:
        build(slot, blueprint.begun, blueprint.frame)
    slot.prepared = _HALF
    _tell(slot, "finish", blueprint.rest, {})
    slot.prepared = blueprint


def _tell(slot: Slot, word: str, stage: Stage, fields: dict[str, Any]) -> None:
    fields["steps"] = stage.steps
    with contextlib.ExitStack() as stack:
        mounts = []
        if slot.by_root:
            for source in stage.sources:
                mounts.append(mount_source(source, slot.owners))
                stack.callback(os.close, mounts[-1])
        else:
            fields["sources"] = [source.told() for source in stage.sources]
        slot.tell(word, fields, mounts)


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
        self._fork: Fork | None = None
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
        return (self._fork.command, self._fork.control.fileno()) if self._fork is not None else ()

    @property
    def pid1(self) -> int | None:
        """See `Launched.pid1`."""
        return pid_of(self._fork.init) if self._fork is not None and self._fork.init >= 0 else None

    def processes(self) -> list[int]:
        """See `Launched.processes`. What the command started is below it, and what lost its parent below the init."""
        fork = self._fork
        if fork is None or fork.init < 0:
            return []
        return [*descendants(pid_of(fork.command)), *descendants(pid_of(fork.init))]

    async def begin(self, bound: Callable[[int | None], None], patience: Insistence) -> None:
        """See `Launched.begin`."""
        if self._slot.holds:
            # What the command before this one wrote takes none of this one's memory.
            await patience.run(self._slot.let_go)
        # It is born in the group.
        bound(None)
        why = "the sandbox was killed before the command started"
        for _ in range(_FORKS_MOST):
            fork = self._fork = await self._asked(patience)
            if _HALF not in (self._slot.built, self._slot.prepared):
                if self._slot.prepared is not self._blueprint:
                    prepare(self._slot, self._blueprint)
                self._slot.built = self._slot.prepared = None
                self._send(fork)
                self._meanwhile()
                try:
                    if await self._starts(fork, patience):
                        return
                except TimeoutError:
                    # Nothing of a task's has run, so that another server does as well.
                    why = f"the sandbox was not set up within {SETUP_S:g} s"
                    await self._end_server(patience)
            # Killed before anything of a task's ran in it: another does as well.
            self._drop()
        raise SetupFailed(why)

    async def _asked(self, patience: Insistence) -> Fork:
        """The fork that the server was asked for. A server that died while nothing ran in it is replaced: nothing was lost."""
        why = self._slot.why_gone()
        if self._slot.fork is None or why is not None:
            try:
                await patience.run(self._slot.start)
            except FailureEvent as failure:
                raise SetupFailed(failure.reason) from failure
        if self._slot.fork is None:
            raise SetupFailed(f"a slot server is lost as soon as it is there: {why or self._slot.why_gone()}")
        return self._slot.fork

    async def _starts(self, fork: Fork, patience: Insistence) -> bool:
        """Whether the command has started; not when the fork was killed, or its server.

        Raises `SetupFailed`, and `TimeoutError` when it is neither.
        """
        deadline = time.monotonic() + SETUP_S
        while not fork.has_said("started", "failed", "ended"):
            if not await patience.until_readable(fork.control.fileno(), deadline - time.monotonic()):
                raise TimeoutError
            if not fork.listen():
                gone = self._slot.end_fd
                if gone is not None:
                    # It dies a moment after its forks.
                    await patience.until_readable(gone, _SERVER_DIES_S)
                return False
        if "failed" in fork.said:
            raise SetupFailed(fork.said["failed"])
        return "started" in fork.said

    def _send(self, fork: Fork) -> None:
        command = self._command
        fields = {
            "argv": [wire.as_text(argument) for argument in command.argv],
            "env": {wire.as_text(name): wire.as_text(value) for name, value in command.env.items()},
            "cwd": wire.as_text(command.cwd),
            "passed": command.pass_fds,
            "python": self._slot.interpreter is not None and self._slot.interpreter.starts(command),
        }
        with contextlib.suppress(wire.Gone):
            wire.send(fork.control, "run", fields, [*self._stdio, *command.pass_fds])

    def kill(self) -> None:
        """See `Launched.kill`. How a command ended that has ended stays to be seen."""
        if self._fork is not None and not self._fork.has_said("ended"):
            self._fork.kill()

    async def prove_dead(self, patience: Insistence, timeout_s: float) -> bool:
        """See `Launched.prove_dead`."""
        fork = self._fork
        if fork is None or not fork.made:
            return True
        if fork.command >= 0 and not fork.has_said("ended"):
            # A large one takes a while to die, and its server hears of it then.
            await patience.until_readable(fork.command, timeout_s)
        deadline = time.monotonic() + _ANSWERS_S
        while not fork.has_said("ended"):
            # Its pid 1 may have been in the making when it was to be killed.
            fork.kill()
            if not await patience.until_readable(fork.control.fileno(), deadline - time.monotonic()):
                return await self._end_server(patience)
            if not fork.listen():
                break
        if "ended" in fork.said and self._slot.group is not None:
            # The group tells whether anything else is left.
            return True
        gone = self._slot.end_fd
        if "ended" not in fork.said and gone is not None:
            # It dies a moment after its forks.
            await patience.until_readable(gone, _SERVER_DIES_S)
        if fork.init < 0:
            # There was none yet.
            return "ended" in fork.said or await self._end_server(patience)
        dead = await patience.until_readable(fork.init, timeout_s)
        self._slot.lost = self._slot.lost or not dead
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
        if self._fork is not None and "ended" in self._fork.said:
            status = int(self._fork.said["ended"])
            if os.WIFSIGNALED(status):
                return End(signal=os.WTERMSIG(status))
            return End(code=os.WEXITSTATUS(status))
        gone = self._slot.why_gone()
        if gone is not None:
            return End(fault=f"the sandbox was lost with its slot server: {gone} from outside the sandbox")
        # By whom is not known. A fault must be seen from outside, or a program that found a way could make one of a bad verdict.
        return End(signal=signal.SIGKILL)

    def close(self) -> None:
        """See `Launched.close`. The slot then gets the next fork ready."""
        while self._stdio:
            os.close(self._stdio.pop())
        if self._fork is None:
            return
        self._drop()
        if self._ahead and self._slot.fork is not None:
            # What cannot be mounted is said when the command comes.
            with contextlib.suppress(SetupFailed, OSError):
                prepare(self._slot, self._blueprint)

    def _drop(self) -> None:
        if self._fork is not None:
            self._fork = None
            self._slot.ask()

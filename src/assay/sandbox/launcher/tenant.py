"""The processes of the one sandbox that a slot server has: an init and a command, both of them its children."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
from collections.abc import Callable

from . import init, kernel, sandbox, wire


class Tenant:
    """See the module."""

    def __init__(
        self, control: int, home: int, program: str | None, settings: sandbox.Settings, leave: Callable[[], None]
    ) -> None:
        """Start both in a pid namespace of their own. Raises `OSError`.

        `control` is where the command takes its orders, the tenant's from now on; `home` the server's pid namespace,
        `program` what `init.lay` returned. `leave` lets go, in the fork, of what is the server's alone.
        """
        kernel.unshare(kernel.NEWPID, "pid namespace")
        out_of_reach, is_out_of_reach = os.pipe()
        self._init = init.start(program, is_out_of_reach)
        os.close(is_out_of_reach)
        self._command = os.fork()
        if self._command == 0:
            leave()
            os.close(home)
            sandbox.become(socket.socket(fileno=control), settings, out_of_reach)
        os.close(out_of_reach)
        # The namespace was made for these two alone: the server's own is the one it stays in.
        kernel.setns(home, kernel.NEWPID)
        self._lives = True
        self._pidfd = os.pidfd_open(self._command)
        # Of which the command closes its copy before it is one: only the server says how it ended.
        self._control = socket.socket(fileno=control)

    def park(self, sock: socket.socket) -> None:
        """Tell the supervisor that it is there, with descriptors of the init and of the command."""
        inits = os.pidfd_open(self._init)
        wire.send(sock, "parked", None, [inits, self._pidfd])
        os.close(inits)

    def watch(self, sock: socket.socket) -> None:
        """Wait until the supervisor asks for something on `sock`; if the command ends before, say how, and end the rest."""
        if not self._lives:
            return
        poll = select.poll()
        poll.register(sock, select.POLLIN)
        poll.register(self._pidfd, select.POLLIN)
        if self._pidfd in dict(poll.poll()):
            _, status = os.waitpid(self._command, 0)
            self._lives = False
            with contextlib.suppress(wire.Gone):
                wire.send(self._control, f"ended:{status}")
            self._end_init()

    def end(self) -> None:
        """Have nothing of it live. Once."""
        if self._lives:
            self._end_init()
        os.close(self._pidfd)
        self._control.close()

    def _end_init(self) -> None:
        # By the kernel's rule everything in the namespace goes with its pid 1, which is gone when all of it is.
        os.kill(self._init, signal.SIGKILL)
        if self._lives:
            os.waitpid(self._command, 0)
        os.waitpid(self._init, 0)

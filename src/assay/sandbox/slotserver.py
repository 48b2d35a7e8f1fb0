"""A slot's server as the supervisor has it: started, asked for forks, stopped."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assay.failures import FailureEvent
from assay.sandbox.cgroups import Group
from assay.sandbox.hostetc import HOSTNAME
from assay.sandbox.interpreter import Interpreter
from assay.sandbox.launch import SETUP_S, SetupFailed, local_failure
from assay.sandbox.launcher import kernel, wire
from assay.sandbox.layout import DEVICE_LINKS, DEVICES
from assay.sandbox.seccomp import filter_program
from assay.sandbox.sources import Laid, mount_source
from assay.sandbox.waiting import readable_within

_PROGRAM = "import sys; sys.path.append(sys.argv[1]); from launcher.server import main; main()"
_KEEPER_ENDS_S = 1.0
_HERE = Path(__file__).resolve().parent


class Fork:
    """What a slot server was asked for: being made, waiting for a command, running it. Whoever has it closes it."""

    def __init__(self, control: socket.socket) -> None:
        """`control` is where it takes its command, and it and its server say what becomes of it."""
        self.control = control
        self.said: dict[str, str] = {}
        """Words heard so far, each with what was added to it: `parked` (there are processes), `waiting` (all is done that can
        be), `failed` (why), `started`, `ended` (the wait status)."""
        self.init = -1
        """The pidfd of its sandbox's pid 1, with which the kernel ends everything in there, …"""
        self.command = -1
        """… the command's, …"""
        self.mounts = -1
        """… and the sandbox's mount namespace, whose mounts stay for as long as somebody has this."""
        self.made = False
        """Whether its server was asked to make the processes; before that it has none, and nothing will be said of any."""

    def listen(self) -> bool:
        """Wait for the next word; False when none will come. Raises `OSError` when there is no room for its descriptors."""
        try:
            word, fields, fds = wire.receive(self.control)
        except wire.Gone:
            return False
        if fds:
            self.init, self.command, self.mounts = fds
        name, _, value = word.partition(":")
        self.said[name] = value or fields.get("why", "")
        return True

    def has_said(self, *words: str) -> bool:
        """Whether one of these words has come by now. Never blocks."""
        while not self.said.keys() & set(words):
            if not readable_within(self.control.fileno(), 0) or not self.listen():
                return False
        return True

    def kill(self) -> None:
        """Kill pid 1, as far as it is known by what was heard, and with it everything in there."""
        if self.init >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.init, signal.SIGKILL)

    def close(self) -> None:
        """Close all but the mounts, which are the caller's then. Once."""
        self.control.close()
        for fd in (self.init, self.command):
            if fd >= 0:
                os.close(fd)


@dataclass(frozen=True, slots=True)
class Role:
    """What a slot server is to be."""

    uids: tuple[int, int] | None
    """The kernel uids of the server and of its sandboxes; None: the caller's own, for an ordinary user."""
    network: bool
    user: int
    group: Group | None
    base: Laid
    interpreter: Interpreter | None
    """The last five as `Slot` has them."""


class SlotServer:
    """A running slot server. Not for two threads at once."""

    def __init__(self, role: Role) -> None:
        """Start it, and wait until it is ready. Raises `FailureEvent`."""
        self.owners = -1
        self.pidfd = -1
        self.fork: Fork | None = None
        """The one that was asked for last, whoever has it by now."""
        self.left: list[int] = []
        """Descriptors of the mount namespaces of those before it."""
        try:
            self.sock, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except OSError as error:
            raise local_failure(error, "start a slot server") from error
        self._said = -1
        try:
            with contextlib.ExitStack() as stack:
                stack.callback(theirs.close)
                self._said, said = os.pipe()
                stack.callback(os.close, said)
                # `_PROGRAM` imports nothing of Assay but the launcher: a fork costs by what is in memory.
                argv = [
                    sys.executable,
                    "-I",
                    "-S",
                    "-B",
                    "-X",
                    "utf8",
                    "-c",
                    _PROGRAM,
                    str(_HERE),
                    str(theirs.fileno()),
                ]
                self._popen = subprocess.Popen(  # no shell: an argument vector
                    argv,
                    stdin=subprocess.DEVNULL,
                    stdout=said,
                    stderr=said,
                    pass_fds=[theirs.fileno()],
                    env={},
                    cwd="/",
                    # A Ctrl-C at the terminal is the supervisor's to handle.
                    start_new_session=True,
                )
        except OSError as error:
            self.sock.close()
            if self._said >= 0:
                os.close(self._said)
            raise local_failure(error, "start a slot server") from error
        try:
            self._greet(role)
        except (wire.Gone, SetupFailed, OSError) as error:
            raise self._failed(error) from error
        except BaseException:
            self.stop()
            raise

    def _greet(self, role: Role) -> None:
        program = filter_program()
        fields: dict[str, Any] = {
            "uids": role.uids,
            "network": role.network,
            "user": role.user,
            "hostname": HOSTNAME,
            "devices": DEVICES,
            "device_links": DEVICE_LINKS,
            "program": program.hex() if program is not None else None,
        }
        with contextlib.ExitStack() as stack:
            doors = role.group.doors() if role.group is not None else []
            # Root makes the mounts itself: the server, nobody to the host, could not.
            devices = [kernel.clone_mount(f"/dev/{name}") for name in DEVICES] if role.uids is not None else []
            fds = [os.pidfd_open(os.getpid()), *doors, *devices]
            for fd in fds:
                stack.callback(os.close, fd)
            fields["groups"] = len(doors)
            fields["device_mounts"] = len(devices)
            named = [] if role.uids is not None else [source.told() for source in role.base.sources]
            fields["base"] = {"steps": role.base.steps, "sources": named}
            fields["interpreter"] = role.interpreter.told() if role.interpreter is not None else None
            for source in role.base.sources if role.uids is not None else ():
                fds.append(mount_source(source, -1))
                stack.callback(os.close, fds[-1])
            wire.send(self.sock, "begin", fields, fds)
        if not readable_within(self.sock.fileno(), SETUP_S):
            raise TimeoutError(f"it said nothing for {SETUP_S:g} s")
        word, told, fds = wire.receive(self.sock)
        if word != "ready":
            raise OSError(told.get("why", word))
        self.pidfd = fds[0]
        self.owners = fds[1] if len(fds) > 1 else -1

    def _failed(self, error: Exception) -> FailureEvent:
        os.set_blocking(self._said, False)
        text = ""
        # Nothing was said yet, or it never will.
        with contextlib.suppress(BlockingIOError):
            text = os.read(self._said, 4096).decode("utf-8", "replace").strip()
        self.stop()
        return FailureEvent(
            "provider_unavailable", f"a slot server could not be started: {str(error) or text or 'it ended'}"
        )

    def ask(self, *, early: bool) -> None:
        """Have it end what there is, and get ready for another: see `launcher.tenant.Tenant`. Says nothing when it is gone.

        Raises `OSError` when this process has no descriptor left; there is no fork then.
        """
        if self.fork is not None:
            fork, self.fork = self.fork, None
            self.left += [fork.mounts] if fork.mounts >= 0 else []
            fork.close()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with theirs:
                self.tell("park", {"early": early}, [theirs.fileno()])
        except OSError:
            ours.close()
            raise
        self.fork = Fork(ours)
        self.fork.made = early

    def tell(self, word: str, fields: dict[str, Any], fds: Sequence[int]) -> None:
        """Tell it something. Says nothing when it is gone. Raises `OSError`."""
        if word == "build" and self.fork is not None:
            self.fork.made = True
        with contextlib.suppress(wire.Gone):
            wire.send(self.sock, word, fields, fds)

    def why_gone(self) -> str | None:
        """How it ended, in words; None while it lives."""
        # Its keeper tells how it ended, and ends at once after it.
        if not readable_within(self.pidfd, 0):
            return None
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self._popen.wait(1.0)
            number = -code if code < 0 else code - 128
            return f"it was killed by signal {number}" if number > 0 else f"it ended with {code}"
        return "it was killed"

    def resident_bytes(self) -> int:
        """How much memory it has in use; 0 when it is gone."""
        try:
            with open(f"/proc/{pid_of(self.pidfd)}/statm", "rb") as file:
                return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        except OSError:
            return 0

    def stop(self) -> bool:
        """End it, and so every process of the slot; whether they are proven dead."""
        if self.pidfd >= 0:
            # Pid 1 of its namespace: the kernel says that it has ended when everything below it has.
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
        else:
            self._popen.kill()
        self.sock.close()
        dead = self.pidfd < 0 or readable_within(self.pidfd, SETUP_S)
        # The keeper reaps the server and ends by itself, else the server would be left to whoever adopts orphans here.
        for patience_s in (_KEEPER_ENDS_S, SETUP_S):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._popen.wait(patience_s)
                break
            self._popen.kill()
        mounts = self.fork.mounts if self.fork is not None else -1
        for fd in (self.pidfd, self.owners, self._said, mounts, *self.left):
            if fd >= 0:
                os.close(fd)
        if self.fork is not None:
            self.fork.close()
        return dead and self._popen.returncode is not None


def pid_of(pidfd: int) -> int:
    """The host's pid of a process by its pidfd; -1 when it was reaped."""
    # Read for every command: the plain calls take a fifth of the time that a file object takes.
    file = os.open(f"/proc/self/fdinfo/{pidfd}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        text = os.read(file, 4096)
    finally:
        os.close(file)
    return int(text.partition(b"\nPid:")[2].split()[0])

"""A slot: room for one sandbox at a time. Its uid, its control group, and the server that forks its sandboxes.

The server is `launcher/`, run by this Python in a process of its own. It is replaced when it dies; the uid and the group
stay, so a sandbox whose command was lost with the server can go on with its folders.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assay.failures import FailureEvent
from assay.sandbox.base import Limits
from assay.sandbox.cgroups import Group
from assay.sandbox.hostetc import HOSTNAME
from assay.sandbox.interpreter import Interpreter
from assay.sandbox.launch import SETUP_S, SetupFailed, local_failure
from assay.sandbox.launcher import kernel, wire
from assay.sandbox.layout import DEVICE_LINKS, DEVICES
from assay.sandbox.machine import usable_hierarchy
from assay.sandbox.parts import Room, Tenant, remove_group
from assay.sandbox.seccomp import filter_program
from assay.sandbox.sources import Laid, Stage, mount_source
from assay.sandbox.uids import UidLease, lease_uid
from assay.sandbox.waiting import readable_within

_PROGRAM = "import sys; sys.path.append(sys.argv[1]); from launcher.server import main; main()"
_KEEPER_ENDS_S = 1.0
_LEASES_MOST = 5_000
_LIFE_S = 3_600.0
_HERE = Path(__file__).resolve().parent


@dataclass(frozen=True, slots=True)
class Bay:
    """What a slot has made ready for a sandbox of one shape, before anybody asks for it."""

    shape: object
    """Two that are equal stand for sandboxes that one bay is good for."""
    room: Room
    begun: Stage
    """What the fork was told to build."""
    stack: contextlib.ExitStack
    """What has to be freed of it."""


@dataclass(frozen=True, slots=True)
class Parked:
    """A fork that waits for a command: its pidfd, and the socket on which it takes one. Whoever has it closes both."""

    pidfd: int
    control: socket.socket

    def close(self) -> None:
        """Close both. Once."""
        self.control.close()
        os.close(self.pidfd)


class Slot:
    """See the module. Not for two sandboxes at once; not for two threads at once."""

    def __init__(self, network: bool, user: int, base: Laid, interpreter: Interpreter | None = None) -> None:
        """Take a uid and a group, and start the server. Raises `FailureEvent` when this machine cannot."""
        self.base = base
        """What of their root all its sandboxes have in common."""
        self.interpreter = interpreter
        """What its server is, so that a fork of it can run a program in place of starting this; None: the launcher alone."""
        self._born = time.monotonic()
        self._leased = 0
        self.network = network
        """Whether its sandboxes have the host's network."""
        self.user = user
        """The uid, and gid, that its sandboxes see as their own."""
        self.by_root = os.geteuid() == 0
        self.lost = False
        """Whether something of it could not be proven dead: then it is never used again, and its uid and group kept."""
        self.built: object = None
        """What the fork that waits was told to build its root from; None: nothing yet."""
        self.prepared: object = None
        """What it was told to finish it with; None: nothing yet."""
        self.bay: Bay | None = None
        """What is ready for the next sandbox of one shape; the fork was told to build that."""
        self._mappable: dict[int, bool] = {}
        self._server: _Server | None = None
        with contextlib.ExitStack() as stack:
            self._leases: list[UidLease] = []
            self.group: Group | None = None
            hierarchy = usable_hierarchy()
            try:
                for _ in range(2 if self.by_root else 0):
                    self._leases.append(lease_uid())
                    stack.callback(self._leases[-1].release)
                if hierarchy is not None:
                    self.group = Group(hierarchy, Limits())
                    stack.callback(remove_group, self.group)
            except OSError as error:
                raise local_failure(error, "have a user and a control group for a sandbox") from error
            self.start()
            self._freed = stack.pop_all()

    def lease(self) -> None:
        """Count one more sandbox."""
        self._leased += 1

    @property
    def worn(self) -> bool:
        """Whether its server has served long enough: what a long life might gather nobody has to look for."""
        return self._leased >= _LEASES_MOST or time.monotonic() - self._born > _LIFE_S

    @property
    def uid(self) -> int | None:
        """The kernel uid of its sandboxes; None: the caller's own."""
        return self._leases[1].uid if self.by_root else None

    @property
    def owners(self) -> int:
        """A user namespace's descriptor: a mount with it shows root's files as the sandbox's. -1 where only root could."""
        return self._server.owners if self._server is not None else -1

    def tenant(self) -> Tenant:
        """The slot as the user of a sandbox's folders."""
        return Tenant(self.uid, self.group, joined=True, maps_root=self.maps_root)

    def maps_root(self, path: Path, recursive: bool) -> bool:
        """Whether a mount of this path (with what is mounted below it) can show root's files as the sandbox's."""
        if self.owners < 0 or (recursive and _holds_mounts(path)):
            return False
        device = path.stat().st_dev
        if device not in self._mappable:
            # Tried once for each file system: to let go of a mount is dear, it waits for all processors.
            self._mappable[device] = self._can_map(path)
        return self._mappable[device]

    def _can_map(self, path: Path) -> bool:
        try:
            fd = kernel.clone_mount(str(path), recursive=False)
        except OSError:
            return False
        try:
            kernel.set_mount(fd, kernel.RDONLY, users=self.owners)
        except OSError:
            # A file system that knows no owners, or no owners for a mount of its own.
            return False
        finally:
            os.close(fd)
        return True

    def start(self) -> None:
        """Start the server anew, whatever there was. Blocks. Raises `FailureEvent`."""
        self.stop()
        self.built = self.prepared = None
        uids = (self._leases[0].uid, self._leases[1].uid) if self.by_root else None
        self._server = _Server(uids, self.network, self.user, self.group, self.base, self.interpreter)
        try:
            self._server.ask()
        except OSError as error:
            self.stop()
            raise local_failure(error, "ask a slot server for a fork") from error

    def ask(self) -> None:
        """Have the server reap what it forked and fork anew, ahead of need. Says nothing when it cannot be asked.

        It is gone then, or this process has no descriptor left; whoever needs the fork starts the server anew.
        """
        self.built = self.prepared = None
        if self._server is not None:
            with contextlib.suppress(OSError):
                self._server.ask()

    @property
    def control(self) -> socket.socket | None:
        """Where the fork that was asked for will take its orders, waiting already or not yet; None without one."""
        return self._server.control if self._server is not None else None

    @property
    def answer_fd(self) -> int | None:
        """Readable when `parked` will not wait; None when there is no server, or it was asked for nothing."""
        return self._server.sock.fileno() if self._server is not None and self._server.control is not None else None

    @property
    def waits(self) -> bool:
        """Whether a fork is there and has done all that it can before a request: with a bay, build what that has."""
        return self._server is not None and self._server.waits("waiting" if self.bay is None else "built")

    @property
    def end_fd(self) -> int | None:
        """Readable when the server has ended; None when there is none."""
        return self._server.pidfd if self._server is not None else None

    def parked(self) -> Parked | None:
        """The fork that was asked for; None when this was the answer to an earlier asking, and another comes.

        Raises `wire.Gone` when the server died, or could not fork.
        """
        if self._server is None:
            raise wire.Gone
        return self._server.parked()

    def why_gone(self) -> str | None:
        """How the server ended, in words; None while it lives."""
        return self._server.why_gone() if self._server is not None else "it was stopped"

    def stop(self) -> None:
        """End the server and so every process of the slot; back when they are gone. Raises `FailureEvent`."""
        if self._server is not None:
            server, self._server = self._server, None
            if not server.stop():
                self.lost = True
                raise FailureEvent("provider_unavailable", "a slot server did not die of SIGKILL")

    def hold(self, mounts: list[int]) -> None:
        """Keep the mount namespace of the fork, whose mounts so outlive it, until `let_go` after it."""
        if self._server is not None:
            self._server.mounts += mounts
        else:
            _close_all(mounts)

    @property
    def holds(self) -> bool:
        """Whether there is something to `let_go`."""
        return self._server is not None and bool(self._server.left)

    def let_go(self) -> None:
        """Take apart what dead forks had mounted, and so free the memory of their files. It can take a while."""
        if self._server is not None:
            left, self._server.left = self._server.left, []
            _close_all(left)

    def forget(self) -> None:
        """In a forked child: let go of what the parent holds, or memory of dead sandboxes would stay as long as the child."""
        if self._server is not None:
            mounts = [*self._server.mounts, *self._server.left]
            self._server.mounts, self._server.left = [], []
            _close_all(mounts)

    def leave_bay(self) -> None:
        """Free what was made ready. The fork that built it is of no further use."""
        if self.bay is not None:
            bay, self.bay = self.bay, None
            self.ask()
            bay.stack.close()

    def close(self) -> None:
        """`stop`, and give the uid and the group back, unless something of them may live."""
        self.stop()
        self.leave_bay()
        if not self.lost:
            self._freed.close()


class _Server:
    """A running slot server."""

    def __init__(
        self,
        uids: tuple[int, int] | None,
        network: bool,
        user: int,
        group: Group | None,
        base: Laid,
        interpreter: Interpreter | None,
    ) -> None:
        self.owners = -1
        self.pidfd = -1
        self.control: socket.socket | None = None
        self._owed = 0
        self._heard = ""
        self.mounts: list[int] = []
        """Descriptors of the mount namespaces of the fork that waits or runs, …"""
        self.left: list[int] = []
        """… and of those before it."""
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
            self._greet(uids, network, user, group, base, interpreter)
        except (wire.Gone, SetupFailed, OSError) as error:
            raise self._failed(error) from error
        except BaseException:
            self.stop()
            raise

    def _greet(
        self,
        uids: tuple[int, int] | None,
        network: bool,
        user: int,
        group: Group | None,
        base: Laid,
        interpreter: Interpreter | None,
    ) -> None:
        program = filter_program()
        fields: dict[str, Any] = {
            "uids": uids,
            "network": network,
            "user": user,
            "hostname": HOSTNAME,
            "devices": DEVICES,
            "device_links": DEVICE_LINKS,
            "program": program.hex() if program is not None else None,
        }
        with contextlib.ExitStack() as stack:
            doors = group.doors() if group is not None else []
            # Root makes the mounts itself: the server, nobody to the host, could not.
            devices = [kernel.clone_mount(f"/dev/{name}") for name in DEVICES] if uids is not None else []
            fds = [os.pidfd_open(os.getpid()), *doors, *devices]
            for fd in fds:
                stack.callback(os.close, fd)
            fields["groups"] = len(doors)
            fields["device_mounts"] = len(devices)
            named = [] if uids is not None else [source.told() for source in base.sources]
            fields["base"] = {"steps": base.steps, "sources": named}
            fields["interpreter"] = None
            if interpreter is not None:
                fields["interpreter"] = {"path": interpreter.path, "env": interpreter.env, "ahead": interpreter.ahead}
            for source in base.sources if uids is not None else ():
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
            "provider_unavailable", f"a slot server could not be started: {error or text or 'it ended'}"
        )

    def waits(self, word: str) -> bool:
        while self.control is not None and self._heard != word and readable_within(self.control.fileno(), 0):
            try:
                self._heard, _, fds = wire.receive(self.control)
                self.mounts += fds
            except (wire.Gone, OSError):
                return False
        return self._heard == word

    def ask(self) -> None:
        self._heard = ""
        self.left += self.mounts
        self.mounts = []
        if self.control is not None:
            self.control.close()
            # Until there is another: what follows may fail.
            self.control = None
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with theirs, contextlib.suppress(wire.Gone):
                wire.send(self.sock, "park", None, [theirs.fileno()])
                self._owed += 1
        except OSError:
            ours.close()
            raise
        self.control = ours

    def parked(self) -> Parked | None:
        if self.control is None:
            raise wire.Gone
        self._owed -= 1
        try:
            _, _, fds = wire.receive(self.sock)
        except OSError:
            # No room for its descriptors: that fork is of no use to anybody.
            self.control.close()
            self.control = None
            raise
        if self._owed:
            os.close(fds[0])
            return None
        control, self.control = self.control, None
        return Parked(fds[0], control)

    def why_gone(self) -> str | None:
        # Its keeper tells how it ended, and ends at once after it.
        if not readable_within(self.pidfd, 0):
            return None
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self._popen.wait(1.0)
            number = -code if code < 0 else code - 128
            return f"it was killed by signal {number}" if number > 0 else f"it ended with {code}"
        return "it was killed"

    def stop(self) -> bool:
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
        for fd in (self.pidfd, self.owners, self._said, *self.mounts, *self.left):
            if fd >= 0:
                os.close(fd)
        if self.control is not None:
            self.control.close()
        return dead and self._popen.returncode is not None


def _close_all(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)


def _holds_mounts(path: Path) -> bool:
    inside = os.fsencode(path).rstrip(b"/") + b"/"
    table = Path("/proc/self/mountinfo").read_bytes()
    # The kernel writes a blank and a backslash in a path in octal; one that has some is looked for in vain, and tried.
    return any(line.split(b" ")[4].startswith(inside) for line in table.splitlines())

"""The one sandbox that a slot server has: its namespaces and its root, and its two processes, both the server's children.

The server makes all of it itself, since what it does before it forks costs no copy of a page: it goes into new namespaces,
builds the root, forks the command there, and comes back to its own. What a request brings it adds in the same way.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import socket
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from . import command, init, kernel, rights, root, wire

_OOM_SCORE_MORE = 500
_OOM_SCORE_MOST = 1000


class Home:
    """The server's own namespaces, and what else a sandbox's processes are not to have of it."""

    def __init__(self) -> None:
        """Those that this process is in."""
        kinds = {"mnt": kernel.NEWNS, "ipc": kernel.NEWIPC, "uts": kernel.NEWUTS, "pid": kernel.NEWPID}
        self._kinds = {kinds[name]: os.open(f"/proc/self/ns/{name}", os.O_RDONLY | os.O_CLOEXEC) for name in kinds}
        self._score = os.open("/proc/self/oom_score_adj", os.O_RDWR | os.O_CLOEXEC)
        self._own = int(os.pread(self._score, 16, 0))

    def enter(self, *kinds: int) -> None:
        """Come back from others of these kinds (`kernel.NEWNS`, …), from all with none."""
        try:
            for kind in kinds or self._kinds:
                kernel.setns(self._kinds[kind], kind)
        except OSError:
            # Anywhere else it is of no use.
            os._exit(1)

    def fork(self) -> int:
        """`os.fork`, of a process that the kernel takes first when the machine's memory runs out."""
        os.pwrite(self._score, b"%d" % min(self._own + _OOM_SCORE_MORE, _OOM_SCORE_MOST), 0)
        pid = os.fork()
        if pid != 0:
            os.pwrite(self._score, b"%d" % self._own, 0)
        return pid


class Settings(NamedTuple):
    """What every sandbox of a slot has in common."""

    home: Home
    init: str | None
    """What `init.lay` returned."""
    owner: int
    """The uid inside, of what is writable."""
    host: bool
    """Whether the host's files are at `/host` and sources come as paths (see `server`)."""
    base: Sequence[Mapping[str, Any]]
    """Steps of every sandbox of the slot, laid before a request comes; the slot server has each of their mounts at its place."""
    command: command.Settings
    pages: ctypes.Array[ctypes.c_size_t] | None = None
    """The server's memory that it will write to while there is a command (`pages`)."""


class Tenant:
    """See the module."""

    def __init__(self, control: int, settings: Settings, *, early: bool) -> None:
        """Get ready for it. `control` is where its command takes its orders, the tenant's from now on.

        `early`: fork at once, and build the root around the fork: where a command comes as soon as its root is known.
        """
        self._settings = settings
        # Of which the command has a copy until it is one: only the server says how it ended.
        self._control = socket.socket(fileno=control)
        self._init = self._command = 0
        self._pidfd = self._mounts = self._layers = self._built = self._finished = -1
        self._begun: Mapping[str, Any] = {}
        self._over = False
        if early:
            with self._told():
                self._make(None)

    def build(self, begun: Mapping[str, Any], mounts: Sequence[int]) -> None:
        """Build the root as far as it is known before a request. The mounts stay the caller's."""
        self._begun = begun
        with self._told():
            if self._over:
                return
            if self._pidfd < 0:
                self._make(mounts)
            else:
                with self._inside():
                    self._build(mounts)
                self._built = _closed(self._built)
            rights.limit(self._command, begun["limits"])

    def finish(self, fields: Mapping[str, Any], mounts: Sequence[int]) -> None:
        """Add what a request brings, and let the command go on to what it is to run. The mounts stay the caller's."""
        with self._told():
            if self._over:
                return
            settings, begun = self._settings, self._begun
            with self._inside():
                root.finish(begun["steps"], fields["steps"], mounts, settings.owner, self._layers)
            self._finished = _closed(self._finished)

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """What goes wrong while nothing of a task's has run the supervisor must hear of; nothing more comes of this one then."""
        try:
            yield
        except command.Left:
            raise
        except BaseException as error:
            # Without its pid 1 nothing can be started, and it was killed: another sandbox does as well then.
            killed = self._init and os.waitid(os.P_PID, self._init, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
            if not killed:
                self._say("failed", {"why": command.words(error)})
            self._kill()
            self._say("ended:0")

    def _say(self, word: str, fields: dict[str, Any] | None = None) -> None:
        # Whoever has gone wants to hear nothing.
        with contextlib.suppress(wire.Gone):
            wire.send(self._control, word, fields)

    @contextlib.contextmanager
    def _inside(self) -> Iterator[None]:
        kernel.setns(self._mounts, kernel.NEWNS)
        try:
            yield
        finally:
            self._settings.home.enter(kernel.NEWNS)

    def _make(self, mounts: Sequence[int] | None) -> None:
        """Make its namespaces, its processes, and its root, unless `mounts` is None, before the command."""
        settings = self._settings
        with contextlib.ExitStack() as stack:
            finished, self._finished = os.pipe()
            stack.callback(os.close, finished)
            built = -1
            if mounts is None:
                built, self._built = os.pipe()
                stack.callback(os.close, built)
            # The namespaces are left for these processes alone.
            stack.callback(settings.home.enter)
            kernel.unshare(kernel.NEWPID, "pid namespace")
            self._init = init.start(settings.init, self._finished)
            kernel.unshare(kernel.NEWNS | kernel.NEWIPC | kernel.NEWUTS, "mount, ipc and uts namespaces")
            self._mounts = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
            if mounts is not None:
                self._build(mounts)
            self._command = settings.home.fork()
            if self._command == 0:
                try:
                    _closed(self._built)
                    _closed(self._finished)
                    command.become(self._control, settings.command, built, finished)
                except command.Left:
                    # It has nothing that would have to be closed here.
                    stack.pop_all()
                    raise
                except BaseException:
                    # Whatever went wrong there: a fork that came back here would be a second server.
                    os._exit(1)
            if settings.pages is not None:
                # The command shares them, and mostly nobody waits yet.
                kernel.populate(settings.pages)
        self._pidfd = os.pidfd_open(self._command)
        inits = os.pidfd_open(self._init)
        # The supervisor keeps the mounts until nobody waits for a verdict: to take them apart takes the kernel a while.
        wire.send(self._control, "parked", None, [inits, self._pidfd, self._mounts])
        os.close(inits)

    def _build(self, mounts: Sequence[int]) -> None:
        settings, begun = self._settings, self._begun
        with contextlib.ExitStack() as stack:

            def closed(fd: int) -> int:
                stack.callback(os.close, fd)
                return fd

            # Stands in for the sandbox's own, which only a process of its pid namespace can make (`command`).
            proc = closed(kernel.clone_mount("/proc", recursive=False))
            dev = closed(kernel.clone_mount("/dev"))
            base = [closed(kernel.clone_mount(step["at"])) for step in settings.base if step["what"] == "bind"]
            if settings.host:
                mounts = [closed(own_mount(source)) for source in begun["sources"]]
            root.enter("/new")
            root.lay(settings.base, base, settings.owner)
            self._layers = root.build(begun["steps"], mounts, proc, dev, settings.owner, begun["space"])

    @property
    def command(self) -> int:
        """The pid of its command; 0 when there is none."""
        return self._command

    def watch(self, sock: socket.socket) -> None:
        """Wait until the supervisor asks for something on `sock`; if the command ends before, say how, and end the rest."""
        if self._pidfd < 0:
            return
        poll = select.poll()
        poll.register(sock, select.POLLIN)
        poll.register(self._pidfd, select.POLLIN)
        if self._pidfd in dict(poll.poll()):
            _, status = os.waitpid(self._command, 0)
            self._command = 0
            self._say(f"ended:{status}")
            self._kill()

    def end(self) -> None:
        """Have nothing of it live, and let go of it."""
        self._kill()
        self._control.close()

    def _kill(self) -> None:
        # By the kernel's rule everything in the namespace goes with its pid 1, which is gone when all of it is.
        if self._init:
            os.kill(self._init, signal.SIGKILL)
        for pid in (self._command, self._init):
            if pid:
                os.waitpid(pid, 0)
        self._init = self._command = 0
        self._over = True
        for fd in (self._pidfd, self._mounts, self._layers, self._built, self._finished):
            _closed(fd)
        self._pidfd = self._mounts = self._layers = self._built = self._finished = -1


def _closed(fd: int) -> int:
    if fd >= 0:
        os.close(fd)
    return -1


def own_mount(source: Mapping[str, Any]) -> int:
    """A mount of a host path, for an ordinary user, whose supervisor may make none."""
    # Recursive: the kernel lets no user namespace look below the host's mounts.
    fd = kernel.clone_mount(f"/host{source['path']}")
    try:
        kernel.set_mount(fd, source["attributes"], recursive=True)
    except OSError:
        os.close(fd)
        raise
    return fd

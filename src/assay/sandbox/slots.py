"""A slot: room for one sandbox at a time. Its uid, its control group, and the server that forks its sandboxes.

The server (`slotserver`) is `launcher/`, run by this Python in a process of its own. It is replaced when it dies; the uid and
the group stay, so a sandbox whose command was lost with the server can go on with its folders.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assay.failures import FailureEvent
from assay.sandbox.base import MIB, Limits
from assay.sandbox.blueprints import Frame
from assay.sandbox.cgroups import Group
from assay.sandbox.interpreter import Interpreter
from assay.sandbox.launch import local_failure
from assay.sandbox.launcher import kernel
from assay.sandbox.machine import usable_hierarchy
from assay.sandbox.parts import Room, Tenant, remove_group
from assay.sandbox.slotserver import Fork, Role, SlotServer
from assay.sandbox.sources import Laid, Stage
from assay.sandbox.uids import UidLease, lease_uid

_LEASES_MOST = 5_000
_LIFE_S = 3_600.0
_RESIDENT_MOST = 128 * MIB
_LOOK_EVERY = 100
"""Leases between two looks at the server's memory."""


@dataclass(frozen=True, slots=True)
class Bay:
    """What a slot has made ready for a sandbox of one shape, before anybody asks for it."""

    shape: object
    """Two that are equal stand for sandboxes that one bay is good for."""
    tenant: Tenant
    room: Room
    begun: Stage
    """What the fork was told to build, …"""
    frame: Frame
    """… and within which bounds."""
    stack: contextlib.ExitStack
    """What has to be freed of it."""

    @property
    def whole(self) -> bool:
        """Whether its room is there still: it may have waited for days, and a cleaner of temporary files been here."""
        return all(place.is_dir() for place in self.room.writables.values())


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
        self._heavy = False
        self.network = network
        """Whether its sandboxes have the host's network."""
        self.user = user
        """The uid, and gid, that its sandboxes see as their own."""
        self.by_root = os.geteuid() == 0
        # Where nothing is laid ahead no bay is, either: its command comes as soon as the root is known.
        self._early = not self.by_root or not base.steps
        self.lost = False
        """Whether something of it could not be proven dead: then it is never used again, and its uid and group kept."""
        self.built: object = None
        """What the fork that waits was told to build its root from; None: nothing yet."""
        self.prepared: object = None
        """What it was told to finish it with; None: nothing yet."""
        self.bay: Bay | None = None
        """What is ready for the next sandbox of one shape; the fork was told to build that."""
        self._mappable: dict[int, bool] = {}
        self._server: SlotServer | None = None
        with contextlib.ExitStack() as stack:
            self._leases: list[UidLease] = []
            self.group: Group | None = None
            hierarchy = usable_hierarchy()
            try:
                for _ in range(2 if self.by_root else 0):
                    self._leases.append(lease_uid())
                    stack.callback(self._leases[-1].release)
                if hierarchy is not None:
                    self.group = Group(hierarchy, Limits(), pid1=False)
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
        if self._server is not None and self._leased % _LOOK_EVERY == 0 and not self._heavy:
            self._heavy = self._server.resident_bytes() > _RESIDENT_MOST
        return self._heavy or self._leased >= _LEASES_MOST or time.monotonic() - self._born > _LIFE_S

    @property
    def uid(self) -> int | None:
        """The kernel uid of its sandboxes; None: the caller's own."""
        return self._leases[1].uid if self.by_root else None

    @property
    def owners(self) -> int:
        """A user namespace's descriptor: a mount with it shows root's files as the sandbox's. -1 where only root could."""
        return self._server.owners if self._server is not None else -1

    def tenant(self, limits: Limits) -> Tenant:
        """The slot as the user of a sandbox's folders, its group under these limits. Raises `OSError` when the kernel refuses."""
        if self.group is not None:
            self.group.limit(limits)
        return Tenant(self.uid, self.group, maps_root=self.maps_root)

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
        self._server = SlotServer(Role(uids, self.network, self.user, self.group, self.base, self.interpreter))
        try:
            self._server.ask(early=self._early)
        except OSError as error:
            self.stop()
            raise local_failure(error, "ask a slot server for a fork") from error

    def ask(self) -> None:
        """Have the server end what it forked and get ready for another, ahead of need. Says nothing when it cannot be asked.

        It is gone then, or this process has no descriptor left; whoever needs the fork starts the server anew.
        """
        self.built = self.prepared = None
        if self._server is not None:
            with contextlib.suppress(OSError):
                self._server.ask(early=self._early)

    def tell(self, word: str, fields: dict[str, Any], fds: Sequence[int]) -> None:
        """Tell the server something about the fork. Says nothing when it is gone. Raises `OSError`."""
        if self._server is not None:
            self._server.tell(word, fields, fds)

    @property
    def fork(self) -> Fork | None:
        """The fork that was asked for, waiting already or not yet; None without one."""
        return self._server.fork if self._server is not None else None

    @property
    def waits(self) -> bool:
        """Whether a fork is there and has done all that it can before a request."""
        fork = self.fork
        try:
            return fork is not None and fork.has_said("waiting") and not fork.has_said("ended")
        except OSError:
            return False

    @property
    def end_fd(self) -> int | None:
        """Readable when the server has ended; None when there is none."""
        return self._server.pidfd if self._server is not None else None

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
            self.let_go()
            fork = self._server.fork
            if fork is not None and fork.mounts >= 0:
                os.close(fork.mounts)
                fork.mounts = -1

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


def _close_all(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)


def _holds_mounts(path: Path) -> bool:
    inside = os.fsencode(path).rstrip(b"/") + b"/"
    table = Path("/proc/self/mountinfo").read_bytes()
    # The kernel writes a blank and a backslash in a path in octal; one that has some is looked for in vain, and tried.
    return any(line.split(b" ")[4].startswith(inside) for line in table.splitlines())

"""Slots that this process has: idle ones for the next sandbox, leased ones, and their end with the process."""

from __future__ import annotations

import atexit
import logging
import os
import threading

from assay.failures import FailureEvent
from assay.sandbox.slots import Slot

_log = logging.getLogger(__name__)


class SlotPool:
    """Safe from many threads and event loops: an idle slot belongs to none."""

    def __init__(self) -> None:
        """No slot is started before one is needed."""
        self._lock = threading.Lock()
        self._idle: list[Slot] = []
        self._all: set[Slot] = set()
        self._growing: threading.Thread | None = None
        self._pid = 0
        # In a forked child the parent's slots are not its own, and a lock that another thread held would stay locked.
        os.register_at_fork(after_in_child=self._forget)

    def take(self, network: bool, user: int) -> Slot:
        """A slot for one sandbox alone until `give_back`, whose commands see themselves under the uid `user`.

        Blocks while one is started. Raises `FailureEvent`.
        """
        dead: list[Slot] = []
        try:
            with self._lock:
                self._own()
                fitting = [
                    slot
                    for slot in reversed(self._idle)
                    if (slot.network, slot.user, slot.by_root) == (network, user, os.geteuid() == 0)
                ]
                # One whose fork waits already: to join a group can take the kernel as long as a short command.
                ready = [slot for slot in fitting if slot.waits]
                for slot in ready or fitting:
                    self._idle.remove(slot)
                    if slot.why_gone() is None:
                        if not ready:
                            self._grow(network, user)
                        return slot
                    self._all.discard(slot)
                    dead.append(slot)
        finally:
            for slot in dead:
                _close(slot)
        slot = Slot(network, user)
        with self._lock:
            self._all.add(slot)
        return slot

    def _grow(self, network: bool, user: int) -> None:
        """Start one more slot meanwhile: sandboxes come faster than these get ready again. The caller holds the lock."""
        if self._growing is None and len(self._all) < _idle_most():
            self._growing = threading.Thread(target=self._add, args=(network, user), name="assay-slot", daemon=True)
            self._growing.start()

    def _add(self, network: bool, user: int) -> None:
        slot = None
        try:
            slot = Slot(network, user)
        except FailureEvent as error:
            # Not needed by anybody: whoever needs one is told why there is none.
            _log.info("no further slot could be started: %s", error)
        with self._lock:
            self._growing = None
            if slot is not None:
                self._all.add(slot)
                # Taken last: behind those that wait already.
                self._idle.insert(0, slot)

    def _grown(self) -> None:
        with self._lock:
            growing = self._growing
        if growing is not None:
            growing.join()

    def give_back(self, slot: Slot) -> None:
        """Let others use the slot. Only when no process of its sandbox lives."""
        if slot.prepared is not None and not slot.lost:
            # For a command that never came.
            slot.ask()
        with self._lock:
            if not slot.lost and self._pid == os.getpid():
                self._idle.append(slot)
                # The one not used for longest goes, or the first kind to come would leave no room for another.
                surplus = self._idle.pop(0) if len(self._idle) > _idle_most() else None
            else:
                surplus = slot
            if surplus is not None:
                self._all.discard(surplus)
        if surplus is not None:
            _close(surplus)

    def close_idle(self) -> None:
        """End the servers that no sandbox has. The next sandbox starts one again."""
        self._grown()
        with self._lock:
            idle, self._idle = self._idle, []
            self._all -= set(idle)
        if self._pid == os.getpid():
            for slot in idle:
                _close(slot)

    def _own(self) -> None:
        if self._pid != os.getpid():
            self._pid = os.getpid()
            atexit.register(self._close_all)

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._idle, self._all, self._growing = [], set(), None

    def _close_all(self) -> None:
        if self._pid == os.getpid():
            self._grown()
            for slot in self._all:
                _close(slot)
            self._idle, self._all = [], set()


def _close(slot: Slot) -> None:
    try:
        slot.close()
    except (FailureEvent, OSError) as error:
        _log.warning("a slot could not be closed: %s", error)


def _idle_most() -> int:
    """How many idle servers are kept: each is a few megabytes, and starting one takes as long as a verification."""
    return 4 * (os.cpu_count() or 1)


POOL = SlotPool()

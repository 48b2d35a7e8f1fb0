"""Slots that this process has: idle ones for the next sandbox, leased ones, and their end with the process."""

from __future__ import annotations

import atexit
import logging
import os
import threading
from typing import NamedTuple

from assay.failures import FailureEvent
from assay.sandbox.interpreter import Interpreter
from assay.sandbox.slots import Slot
from assay.sandbox.sources import Laid

_log = logging.getLogger(__name__)


class _Kind(NamedTuple):
    network: bool
    user: int
    base: Laid
    interpreter: Interpreter | None


class SlotPool:
    """Safe from many threads and event loops: an idle slot belongs to none."""

    def __init__(self) -> None:
        """No slot is started before one is needed."""
        self._lock = threading.Lock()
        self._idle: list[Slot] = []
        self._all: set[Slot] = set()
        self._growing: threading.Thread | None = None
        self._wanted: dict[_Kind, int] = {}
        self._unusable: set[_Kind] = set()
        self._pid = 0
        # In a forked child the parent's slots are not its own, and a lock that another thread held would stay locked.
        os.register_at_fork(after_in_child=self._forget)

    def take(self, network: bool, user: int, base: Laid, interpreter: Interpreter | None = None) -> Slot:
        """A slot for one sandbox alone until `give_back`, whose commands see themselves under the uid `user`.

        It has laid `base` for them. Its server is `interpreter` where such a one is there; it is not waited for, but started
        meanwhile for who comes later, since who runs one command only is served as soon without. Blocks while a slot is
        started where there is none at all. Raises `FailureEvent`.
        """
        dead: list[Slot] = []
        try:
            with self._lock:
                self._own()
                for kind in dict.fromkeys((interpreter, None)):
                    kept = _Kind(network, user, base, kind)
                    fitting = [slot for slot in reversed(self._idle) if _kind_of(slot) == (kept, os.geteuid() == 0)]
                    # One whose fork waits already: to join a group can take the kernel as long as a short command.
                    ready = [slot for slot in fitting if slot.waits]
                    if not ready:
                        self._want(kept, len(fitting))
                    for slot in ready or fitting:
                        self._idle.remove(slot)
                        if slot.why_gone() is None:
                            slot.lease()
                            return slot
                        self._all.discard(slot)
                        dead.append(slot)
        finally:
            for slot in dead:
                _close(slot)
        slot = Slot(network, user, base)
        slot.lease()
        with self._lock:
            self._all.add(slot)
        return slot

    def get_ready(self, network: bool, user: int, base: Laid, interpreter: Interpreter) -> None:
        """Have an idle slot whose server is this interpreter, for the next sandbox that wants it.

        Blocks while one is started. Raises `FailureEvent`.
        """
        kind = (_Kind(network, user, base, interpreter), os.geteuid() == 0)
        with self._lock:
            self._own()
            if any(_kind_of(slot) == kind and slot.why_gone() is None for slot in self._idle):
                return
        slot = Slot(network, user, base, interpreter)
        with self._lock:
            self._all.add(slot)
            self._idle.append(slot)

    def _want(self, kind: _Kind, idle: int) -> None:
        """Start one more slot of a kind that sandboxes keep coming for while none is ready. The caller holds the lock."""
        self._wanted[kind] = self._wanted.get(kind, 0) + 1
        often = idle or (kind.interpreter is not None and self._wanted[kind] > 1)
        if often and self._growing is None and kind not in self._unusable and len(self._all) < _idle_most():
            self._growing = threading.Thread(target=self._add, args=(kind,), name="assay-slot", daemon=True)
            self._growing.start()

    def _add(self, kind: _Kind) -> None:
        slot = None
        try:
            slot = Slot(kind.network, kind.user, kind.base, kind.interpreter)
        except (FailureEvent, OSError) as error:
            # Not needed by anybody: whoever needs one is told why there is none.
            _log.info("no further slot could be started: %s", error)
        with self._lock:
            self._growing = None
            if slot is not None:
                # What stood in the way of another's start may have passed.
                self._unusable.clear()
                self._all.add(slot)
                # Taken last: behind those that wait already.
                self._idle.insert(0, slot)
            elif kind.interpreter is not None:
                self._unusable.add(kind)

    def _grown(self) -> None:
        with self._lock:
            growing = self._growing
        if growing is not None:
            growing.join()

    def give_back(self, slot: Slot) -> None:
        """Let others use the slot. Only when no process of its sandbox lives."""
        if slot.prepared is not None and not slot.lost and not slot.worn:
            # For a command that never came.
            slot.ask()
        with self._lock:
            if not slot.lost and not slot.worn and self._pid == os.getpid():
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
        self._wanted, self._unusable = {}, set()

    def _close_all(self) -> None:
        if self._pid == os.getpid():
            self._grown()
            for slot in self._all:
                _close(slot)
            self._idle, self._all = [], set()


def _kind_of(slot: Slot) -> tuple[_Kind, bool]:
    return _Kind(slot.network, slot.user, slot.base, slot.interpreter), slot.by_root


def _close(slot: Slot) -> None:
    try:
        slot.close()
    except (FailureEvent, OSError) as error:
        _log.warning("a slot could not be closed: %s", error)


def _idle_most() -> int:
    """How many idle servers are kept: each is a few megabytes, and starting one takes as long as a verification."""
    return 4 * (os.cpu_count() or 1)


POOL = SlotPool()

"""Slots that this process has: idle ones for the next sandbox, leased ones, and their end with the process."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from assay.failures import FailureEvent
from assay.sandbox.bays import Shape, lay_out
from assay.sandbox.interpreter import Interpreter
from assay.sandbox.launch import SETUP_S
from assay.sandbox.slots import Slot
from assay.sandbox.sources import Laid
from assay.workspaces import finish_removals

_log = logging.getLogger(__name__)
_MOMENT_S = 0.02
_QUIET_TURNS = 100
"""After so many times in which there was nothing to do the thread that renews ends."""
_IN_HAND_S = 0.1


class SlotKind(NamedTuple):
    """What a slot is for, as `Slot` is given it."""

    network: bool
    user: int
    """The uid that its sandboxes see as their own."""
    base: Laid
    """What it has laid for them."""
    interpreter: Interpreter | None = None


class SlotPool:
    """Safe from many threads and event loops: an idle slot belongs to none."""

    def __init__(self) -> None:
        """No slot is started before one is needed."""
        self._lock = threading.Lock()
        self._renewed = threading.Condition(self._lock)
        self._moment = threading.Event()
        self._idle: list[Slot] = []
        self._all: set[Slot] = set()
        self._returned: deque[tuple[Slot, Shape, contextlib.ExitStack]] = deque()
        self._in_hand: set[Slot] = set()
        """Slots that are being given a bay right now."""
        self._renewing: threading.Thread | None = None
        self._ended = False
        self._growing: threading.Thread | None = None
        self._wanted: dict[SlotKind, int] = {}
        self._unusable: set[SlotKind] = set()
        self._pid = 0
        # In a forked child the parent's slots are not its own, and a lock that another thread held would stay locked.
        os.register_at_fork(after_in_child=self._forget)

    def take_ready(self, kind: SlotKind, shape: Shape) -> Slot | None:
        """A slot as `take` gives it, whose bay has this shape and is ready. Never blocks; None when there is none."""
        with self._lock:
            self._own()
            for slot in reversed(self._idle):
                if _fits(slot, kind) and _has(slot, shape) and slot.waits and slot.why_gone() is None:
                    self._idle.remove(slot)
                    slot.lease()
                    return slot
        return None

    def take(self, kind: SlotKind, shape: Shape | None) -> Slot:
        """A slot for one sandbox alone until `give_back` or `leave`.

        Its server is the kind's interpreter where such a one is there; it is not waited for, but started meanwhile for who
        comes later, since who runs one command only is served as soon without. It has a bay of this shape, or none. Blocks
        while a slot is started where there is none at all. Raises `FailureEvent`.
        """
        dead: list[Slot] = []
        try:
            slot = self._next(kind, shape, dead) or self._next(kind._replace(interpreter=None), shape, dead)
        finally:
            for gone in dead:
                _close(gone)
        if slot is None:
            slot = Slot(kind.network, kind.user, kind.base)
            with self._lock:
                self._all.add(slot)
        slot.lease()
        if slot.bay is not None and not _has(slot, shape):
            try:
                slot.leave_bay()
            except BaseException:
                self.give_back(slot)
                raise
        return slot

    def _next(self, kind: SlotKind, shape: Shape | None, dead: list[Slot]) -> Slot | None:
        """Take a slot of this kind: an idle one, else one that came back, as soon as it is renewed; None when there is none."""
        deadline = time.monotonic() + _IN_HAND_S
        while True:
            with self._lock:
                self._own()
                slot = self._best(kind, shape, dead)
                coming = any(_fits(slot, kind) for slot, _, _ in self._returned)
                in_hand = any(_fits(slot, kind) for slot in self._in_hand)
            if slot is not None or time.monotonic() > deadline:
                return slot
            if coming:
                self.renew()
            elif in_hand:
                with self._renewed:
                    self._renewed.wait(_IN_HAND_S)
            else:
                return None

    def _best(self, kind: SlotKind, shape: Shape | None, dead: list[Slot]) -> Slot | None:
        """Take an idle slot of this kind, the one that is nearest to being ready. The caller holds the lock."""
        fitting = [slot for slot in reversed(self._idle) if _fits(slot, kind)]
        # One whose fork waits already: to join a group can take the kernel as long as a short command.
        fitting.sort(
            key=lambda slot: (not (_has(slot, shape) or slot.bay is None), not _has(slot, shape), not slot.waits)
        )
        if not any(_has(slot, shape) and slot.waits for slot in fitting):
            self._want(kind, shape, len(fitting))
        for slot in fitting:
            self._idle.remove(slot)
            if slot.why_gone() is None:
                return slot
            self._all.discard(slot)
            dead.append(slot)
        return None

    def get_ready(self, kind: SlotKind) -> None:
        """Have an idle slot of this kind, for the next sandbox that wants it. Blocks while one is started.

        Raises `FailureEvent`.
        """
        with self._lock:
            self._own()
            if any(_fits(slot, kind) and slot.why_gone() is None for slot in self._idle):
                return
        slot = Slot(*kind)
        with self._lock:
            self._all.add(slot)
            self._idle.append(slot)

    def _want(self, kind: SlotKind, shape: Shape | None, idle: int) -> None:
        """Start one more slot of a kind that sandboxes keep coming for while none is ready. The caller holds the lock."""
        self._wanted[kind] = self._wanted.get(kind, 0) + 1
        often = idle or (kind.interpreter is not None and self._wanted[kind] > 1)
        # One kind leaves room for others: who alternates between two would start a server each time.
        fits = sum(_fits(slot, kind) for slot in self._all) < _idle_most() // 2 + 1 and len(self._all) < _idle_most()
        if often and self._growing is None and kind not in self._unusable and fits:
            self._growing = _started(self._add, "assay-slot", kind, shape)

    def _add(self, kind: SlotKind, shape: Shape | None) -> None:
        slot = None
        try:
            slot = Slot(*kind)
            if shape is not None:
                lay_out(slot, shape)
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
        if slot.built is not None and slot.bay is None and not slot.lost and not slot.worn:
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

    def leave(self, slot: Slot, shape: Shape, left: contextlib.ExitStack) -> None:
        """`give_back`, for a slot that is to have another bay of the shape, which it gets a moment later. Does not block.

        `left` is what has to be freed of the one before.
        """
        with self._lock:
            self._returned.append((slot, shape, left))
            if self._renewing is None and not self._ended:
                self._renewing = _started(self._renew_all, "assay-bays")

    def meanwhile(self) -> None:
        """Somebody waits for a command: a good moment to give slots that came back their bays."""
        if self._returned:
            self._moment.set()

    def _renew_all(self) -> None:
        idle = 0
        try:
            while True:
                # Not at once: whoever gave a slot back is about to say what came of it, and would wait for the interpreter's
                # lock.
                self._moment.wait(_MOMENT_S)
                self._moment.clear()
                idle = 0 if self._renew_those_there() else idle + 1
                with self._lock:
                    if idle >= _QUIET_TURNS and not self._returned:
                        self._renewing = None
                        return
        except BaseException:
            # Another one is started for what comes.
            with self._lock:
                self._renewing = None
            raise

    def _renew_those_there(self) -> bool:
        """Renew until there is none left; whether there was one."""
        found = False
        while self.renew():
            found = True
        return found

    def renew(self) -> bool:
        """Give one of the slots that came back its bay, and let others use it; whether there was one."""
        with self._lock:
            if not self._returned:
                return False
            slot, shape, left = self._returned.popleft()
            self._in_hand.add(slot)
        try:
            left.close()
            if slot.built is not None:
                # For a command that never came.
                slot.ask()
            slot.let_go()
            if not slot.lost and not slot.worn:
                lay_out(slot, shape)
        except (FailureEvent, OSError) as error:
            # Whoever takes it lays it out, and is told then.
            _log.info("no bay could be laid out: %s", error)
        finally:
            try:
                self.give_back(slot)
            finally:
                with self._renewed:
                    self._in_hand.discard(slot)
                    self._renewed.notify_all()
        return True

    def settle(self, patience_s: float = _IN_HAND_S) -> None:
        """Have every slot that came back renewed; another thread that is renewing one is given `patience_s` to be done."""
        self._renew_those_there()
        with self._renewed:
            self._renewed.wait_for(lambda: not self._in_hand, patience_s)

    def close_idle(self) -> None:
        """End the servers that no sandbox has. The next sandbox starts one again."""
        self._grown()
        self.settle(SETUP_S)
        with self._lock:
            idle, self._idle = self._idle, []
            self._all -= set(idle)
        if self._pid == os.getpid():
            for slot in idle:
                _close(slot)
        finish_removals()

    def _own(self) -> None:
        if self._pid != os.getpid():
            self._pid = os.getpid()
            atexit.register(self._close_all)

    def _forget(self) -> None:
        for slot in self._all:
            slot.forget()
        self._lock = threading.Lock()
        self._renewed, self._moment = threading.Condition(self._lock), threading.Event()
        self._idle, self._all, self._growing = [], set(), None
        self._returned, self._in_hand, self._renewing, self._ended = deque(), set(), None, False
        self._wanted, self._unusable = {}, set()

    def _close_all(self) -> None:
        if self._pid == os.getpid():
            self._ended = True
            self._grown()
            self.settle(SETUP_S)
            for slot in self._all:
                _close(slot)
            self._idle, self._all = [], set()


def _started(work: Callable[..., None], name: str, *arguments: object) -> threading.Thread | None:
    """A thread that does work which can wait; None where no further one can be had."""
    thread = threading.Thread(target=work, args=arguments, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError:
        return None
    return thread


def _fits(slot: Slot, kind: SlotKind) -> bool:
    mine = (slot.network, slot.user, slot.base, slot.interpreter)
    return mine == kind and slot.by_root == (os.geteuid() == 0)


def _has(slot: Slot, shape: Shape | None) -> bool:
    if slot.bay is None:
        return shape is None
    return slot.bay.shape == shape and slot.bay.whole


def _close(slot: Slot) -> None:
    try:
        slot.close()
    except (FailureEvent, OSError) as error:
        _log.warning("a slot could not be closed: %s", error)


def _idle_most() -> int:
    """How many idle servers are kept: each is a few megabytes, and starting one takes as long as a verification."""
    return 4 * (os.cpu_count() or 1)


POOL = SlotPool()

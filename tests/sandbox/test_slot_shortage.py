"""What a slot and the pool of slots do when this process is short of something: descriptors, threads. It passes."""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest

from assay.failures import FailureEvent
from assay.sandbox import Sandbox, SandboxSpec, Writable
from assay.sandbox.namespaces import NamespacesProvider
from assay.sandbox.procfs import descendants
from assay.sandbox.slotpool import SlotPool
from assay.sandbox.slots import Slot
from assay.sandbox.sources import NOTHING
from scarcity import few_descriptors

SPEC = SandboxSpec(mounts=(Writable("/out"),))


async def says(sandbox: Sandbox) -> tuple[int | None, bytes, str | None]:
    result = await sandbox.exec(["echo", "here"], timeout_s=30)
    return result.code, result.stdout, result.fault


@pytest.mark.parametrize("left", [0, 1])
async def test_a_fork_that_could_not_be_asked_for_costs_no_later_sandbox(one_slot: SlotPool, left: int) -> None:
    provider = NamespacesProvider()
    first = await provider.create(SPEC)
    assert await says(first) == (0, b"here\n", None)
    await first.close()
    one_slot.settle()
    (slot,) = one_slot._idle
    with few_descriptors(left):
        slot.ask()
    assert not slot.waits
    for _ in range(2):
        sandbox: Any = await provider.create(SPEC)
        assert sandbox._maker.slot is slot
        assert await says(sandbox) == (0, b"here\n", None)
        await sandbox.close()
        one_slot.settle()


@pytest.mark.parametrize("left", range(0, 24, 3))
def test_a_slot_that_cannot_be_started_leaves_no_process(left: int) -> None:
    before = set(descendants(os.getpid()))
    # What is imported for the first one must be there.
    FailureEvent("provider_unavailable", "")
    try:
        with few_descriptors(left):
            slot = Slot(network=False, user=1000, base=NOTHING)
    except FailureEvent as failure:
        assert "Too many open files" in failure.reason  # noqa: PT017 - with enough of them it starts
    else:
        slot.close()
    assert set(descendants(os.getpid())) <= before


async def test_without_another_thread_a_slot_is_renewed_by_who_comes_next(
    one_slot: SlotPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = NamespacesProvider()
    first: Any = await provider.create(SPEC)
    assert await says(first) == (0, b"here\n", None)

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        await first.close()
    second: Any = await provider.create(SPEC)
    assert second._maker.slot is first._maker.slot
    assert await says(second) == (0, b"here\n", None)
    await second.close()
    # A thread can be had again.
    one_slot.settle()
    assert [slot.bay is not None for slot in one_slot._idle] == [True] * len(one_slot._idle)

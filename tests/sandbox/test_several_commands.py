"""A sandbox and its second command: who is quicker with another sandbox, and who gets ready for one meanwhile."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from assay.sandbox import Overlay, ReadOnly, SandboxSpec, Writable
from assay.sandbox.bubblewrap import BubblewrapProvider
from assay.sandbox.namespaces import NamespacesProvider
from assay.sandbox.slotpool import SlotPool
from assay.workspaces import scratch_folder

root = pytest.mark.skipif(os.geteuid() != 0, reason="only root's supervisor makes mounts itself, so only root has bays")


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that every uid can pass, with one in it that is another's and only that one's to read."""
    with scratch_folder("several") as folder:
        (folder / "others").mkdir()
        (folder / "others" / "file").write_text("text")
        (folder / "others" / "file").chmod(0o600)
        if os.geteuid() == 0:
            os.chown(folder / "others" / "file", 12_345, 12_345)
        yield folder


@root
@pytest.mark.parametrize(
    ("mount", "for_one"),
    [
        (lambda at: Writable("/app"), True),
        (lambda at: Overlay(at, "/app", own=True), True),
        (lambda at: Overlay(at / "others", "/app"), False),
        (lambda at: ReadOnly(at / "others", "/app"), False),
        (lambda at: Writable("/usr/assay-place"), False),
    ],
    ids=["nothing shown", "a capture shown", "a copy written to", "a copy read", "a place in the base"],
)
async def test_another_is_as_quick_where_nothing_is_copied(
    mount: Any, for_one: bool, one_slot: SlotPool, place: Path
) -> None:
    sandbox = await NamespacesProvider().create(SandboxSpec(mounts=(mount(place),)))
    try:
        assert sandbox.for_one is for_one
    finally:
        await sandbox.close()


async def test_bubblewrap_makes_none_ready(place: Path) -> None:
    provider = BubblewrapProvider()
    if not provider.capabilities():
        pytest.skip("bubblewrap cannot make sandboxes on this machine: `assay doctor` says why")
    sandbox = await provider.create(SandboxSpec(mounts=(Writable("/app"),)))
    try:
        assert not sandbox.for_one
    finally:
        await sandbox.close()


@root
@pytest.mark.parametrize("again", [False, True])
async def test_who_says_so_is_ready_for_the_second_command(again: bool, one_slot: SlotPool) -> None:
    sandbox: Any = await NamespacesProvider().create(SandboxSpec(mounts=(Writable("/app"),), again=again))
    ready = []
    try:
        for _ in range(3):
            result = await sandbox.exec(["/bin/sh", "-c", "echo said >> /app/file; cat /app/file"], timeout_s=30)
            ready.append(sandbox._maker.slot.prepared is not None)
        assert result.stdout == b"said\n" * 3
    finally:
        await sandbox.close()
    # Who did not say so is believed after two.
    assert ready == [again, True, True]

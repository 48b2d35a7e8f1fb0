"""Pages that a fork will write to are copied ahead, nothing else about them changes, and a kernel may know no call for it."""

from __future__ import annotations

import asyncio
import ctypes
import mmap
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from assay.sandbox import SandboxSpec
from assay.sandbox.launcher import kernel, pages
from assay.sandbox.namespaces import get_ready
from assay.sandbox.procfs import children
from assay.sandbox.slotpool import SlotPool
from warm import PYTHON

Make = Callable[..., Awaitable[Any]]

PAGE = mmap.PAGESIZE


def shared() -> tuple[mmap.mmap, int]:
    """Sixteen pages of this process that a fork shares with it, each with its number in it, and their address."""
    memory = mmap.mmap(-1, 16 * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for number in range(16):
        memory[number * PAGE] = number
    return memory, ctypes.addressof(ctypes.c_char.from_buffer(memory))


@pytest.mark.parametrize("known", [True, False])
def test_a_fork_has_just_these_to_itself(monkeypatch: pytest.MonkeyPatch, known: bool) -> None:
    memory, first = shared()
    if not known:
        # No system call of any kernel.
        monkeypatch.setattr(kernel, "_PROCESS_MADVISE", 100_000)
    wanted = [2, 3, 4, 9]
    ranges = pages._ranges([(first + number * PAGE, first + (number + 1) * PAGE) for number in wanted])
    assert [(ranges[0] - first) // PAGE, ranges[1] // PAGE, (ranges[2] - first) // PAGE, ranges[3] // PAGE] == [
        2,
        3,
        9,
        1,
    ]
    says, said = os.pipe()
    fork = os.fork()
    if fork == 0:
        try:
            kernel.populate(ranges)
            copied = pages._copied(os.getpid(), [(first, first + 16 * PAGE)])
            same = all(memory[number * PAGE] == number for number in range(16))
            os.write(said, bytes([same, *((start - first) // PAGE for start, _ in copied)]))
        finally:
            os._exit(0)
    os.close(said)
    os.waitpid(fork, 0)
    assert list(os.read(says, 99)) == [1, *wanted]
    os.close(says)


def test_one_call_takes_all_ranges() -> None:
    every_third = [(number * 3 * PAGE, (number * 3 + 1) * PAGE) for number in range(5000)]
    ranges = pages._ranges(every_third)
    assert len(ranges) // 2 <= pages._RANGES_MOST
    covered = [(ranges[at], ranges[at] + ranges[at + 1]) for at in range(0, len(ranges), 2)]
    assert all(any(start <= first and end <= stop for start, stop in covered) for first, end in every_third[::100])


_LEARNS_NOTHING = r"""
from launcher import turning
read = turning.read_sources
same = "\ndef learn(settings, **_): return settings\nlearn_script = learn\n"
turning.read_sources = lambda: [(name, text + same if name == "pages" else text) for name, text in read()]
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: nobody else may look into what has given up its rights")
@pytest.mark.parametrize("scripts", [False, True])
async def test_what_waits_has_the_pages_of_a_sample(
    change_servers: Callable[[str], None], own_pool: SlotPool, launched: Make, scripts: bool
) -> None:
    """A server that could not learn would say nothing of it: its forks only take longer."""
    taken = []
    for source in ("", _LEARNS_NOTHING):
        change_servers(source)
        own_pool.close_idle()
        await get_ready(SandboxSpec(interpreter=PYTHON, scripts=scripts))
        sandbox = await launched(interpreter=PYTHON, scripts=scripts)
        slot = sandbox._maker.slot
        async with asyncio.timeout(30):
            while not slot.waits:
                await asyncio.sleep(0.002)
        (server,) = children(slot._server._popen.pid)
        _, command = children(server)
        with Path(f"/proc/{command}/maps").open() as file:
            own = [line.split()[0].split("-") for line in file if line.split()[1] == "rw-p"]
        taken.append(len(pages._copied(command, [(int(first, 16), int(end, 16)) for first, end in own])))
    assert taken[0] > 1.5 * taken[1]

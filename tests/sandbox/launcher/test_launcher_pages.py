"""Pages that a fork will write to are copied ahead, nothing else about them changes, and a kernel may know no call for it."""

from __future__ import annotations

import ctypes
import mmap
import os

import pytest

from assay.sandbox.launcher import kernel, pages

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

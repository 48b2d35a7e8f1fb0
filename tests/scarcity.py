"""This process short of something, for the length of a block."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterator


@contextlib.contextmanager
def few_descriptors(left: int) -> Iterator[None]:
    """A block in which this process can open `left` more, and no further one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    top = max(map(int, os.listdir("/proc/self/fd"))) + 2 + left
    resource.setrlimit(resource.RLIMIT_NOFILE, (top, hard))
    held: list[int] = []
    try:
        with contextlib.suppress(OSError):
            while True:
                held.append(os.open("/dev/null", os.O_RDONLY))
        assert len(held) >= left
        for _ in range(left):
            os.close(held.pop())
        yield
    finally:
        for fd in held:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

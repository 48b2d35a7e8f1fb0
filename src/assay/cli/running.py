"""Running something that takes a while: progress on a terminal, and a clean end when it is interrupted."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

import click

T = TypeVar("T")
Tell = Callable[[str], None]


def run(work: Callable[[Tell], Awaitable[T]], *, quiet: bool = False) -> T:
    """Run `work` to its end, showing what it tells on a terminal's stderr. `quiet`: it shows its progress itself.

    Ctrl-C and SIGTERM cancel it, so that its sandboxes are killed and its folders removed, and end with 130 and 143. A
    `WrongArgument` is wrong usage: exit code 2.
    """
    from assay.grading import WrongArgument

    terminated = False

    async def supervised() -> T:
        nonlocal terminated
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - asyncio.run made one

        def stop() -> None:
            nonlocal terminated
            terminated = True
            task.cancel()

        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop)
        return await work(tell)

    with _progress(quiet) as tell:
        try:
            return asyncio.run(supervised())
        except asyncio.CancelledError:
            if not terminated:
                raise
            raise SystemExit(143) from None
        except WrongArgument as error:
            raise click.UsageError(str(error)) from None


def run_blocking(work: Callable[[Tell], T]) -> T:
    """Run `work`, which waits for nothing but the disk, in this thread. SIGTERM ends it as Ctrl-C does, with 143."""

    def stop(number: int, frame: object) -> None:
        raise SystemExit(143)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        with _progress() as tell:
            return work(tell)
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _progress(quiet: bool = False) -> Iterator[Tell]:
    if quiet or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console

    with Console(stderr=True).status("starting") as status:
        yield lambda text: status.update(text)

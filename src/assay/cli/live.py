"""How a command on a run goes on: a bar on a terminal, now and then a line elsewhere. On stderr."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from .output import counted, printable

if TYPE_CHECKING:
    from assay.runs import Happened, Tally

_EVERY_S = 10.0
_KINDS_MAX = 3
_TOLD_MAX = 20
"""Sentences of a kind that are printed before they are only counted."""


class Live:
    """Shows a tally as it changes."""

    def __init__(self, show: Callable[[Tally], None], say: Callable[[str], None]) -> None:
        """`show` a state, `say` a sentence that stays."""
        self._show, self._say = show, say
        self._told: Counter[str] = Counter()

    def watch(self, tally: Tally, happened: Happened) -> None:
        """See `assay.runs.Watch`."""
        if happened.what in ("agent_failed", "skipped"):
            one = happened.identity
            about = f"{happened.about['kind']}: {happened.about['reason']}"
            self._sentence(happened.what, f"{one.task_id}, rollout {one.rollout}: {about}")
        self._show(tally)

    def tell(self, text: str) -> None:
        """A sentence about what is being prepared."""
        self._sentence("prepared", text)

    def _sentence(self, what: str, text: str) -> None:
        self._told[what] += 1
        if self._told[what] <= _TOLD_MAX:
            self._say(printable(text)[:500])
        elif self._told[what] == _TOLD_MAX + 1:
            self._say("(more of the kind are counted at the end)")


@contextmanager
def live(clock: Callable[[], float] = time.monotonic) -> Iterator[Live]:
    """For the length of a block."""
    if sys.stderr.isatty():
        with _bar() as shown:
            yield shown
        return
    last = clock()

    def show(tally: Tally) -> None:
        nonlocal last
        if clock() - last >= _EVERY_S:
            last = clock()
            click.echo(f"{tally.done}/{tally.todo}  {in_words(tally)}", err=True)

    yield Live(show, lambda text: click.echo(text, err=True))


def in_words(tally: Tally) -> str:
    """Graded, masked and without an answer by kind, running mean, rate, time left."""
    parts = [f"graded {tally.graded}"]
    for what, kinds in (("masked", tally.masked), ("no answer", tally.agent_failed)):
        if kinds:
            shown = [f"{kind} {number}" for kind, number in kinds.most_common(_KINDS_MAX)]
            more = [counted(len(kinds) - _KINDS_MAX, "more kind")] if len(kinds) > _KINDS_MAX else []
            parts.append(f"{what} {kinds.total()} ({', '.join([*shown, *more])})")
    if tally.skipped:
        parts.append(f"skipped {tally.skipped.total()}")
    if tally.mean is not None:
        parts.append(f"mean {tally.mean:.4g}")
    if tally.done:
        parts.append(f"{tally.rate:.3g}/s")
    if tally.left_s:
        parts.append(f"{_duration(tally.left_s)} left")
    return "  ".join(parts)


@contextmanager
def _bar() -> Iterator[Live]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    console = Console(stderr=True, highlight=False)
    columns = (BarColumn(bar_width=24), MofNCompleteColumn(), TextColumn("{task.fields[words]}", markup=False))
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task("", total=None, words="")

        def show(tally: Tally) -> None:
            progress.update(bar, total=tally.todo, completed=tally.done, words=in_words(tally))

        yield Live(show, lambda text: progress.console.print(text, markup=False))


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"

"""Running a command that writes to a run, and saying what it did."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .live import in_words, live
from .output import counted, print_json, printable
from .running import run as run_to_its_end
from .runplace import grading_from, told_plainly

if TYPE_CHECKING:
    from assay.runs import Done, OpenRun, Place, RunSettings, Setting

_PROBLEMS_MAX = 20


def work_on(
    place: Place,
    values: dict[str, Any],
    work: Callable[[OpenRun, Setting], Awaitable[Done]],
    *,
    who: str,
    settings: RunSettings | None = None,
    more: Callable[[OpenRun, Done], dict[str, Any]] | None = None,
    show: Callable[[OpenRun, Done], None] | None = None,
) -> int:
    """Open a run, do `work` on it, print what came of it; the exit code.

    `values` are the options of `work_options`. `settings` begin a run. `more` is put into the JSON object, `show` prints it
    for people.
    """
    from assay.runs import Setting, open_run, summarise

    with told_plainly(), open_run(place, who=who, state=values["state"], settings=settings) as opened:
        with live() as shown:
            setting = Setting(
                grading_from(opened.settings.grading, values),
                absolute(values["dataset"]) if values.get("dataset") else None,
                values["concurrency"],
                values["state"],
                watch=shown.watch,
                tell=shown.tell,
            )

            async def supervised(_: Any) -> Done:
                try:
                    return await work(opened, setting)
                except asyncio.CancelledError:
                    click.echo(f"stopped; `assay resume {place.folder}` goes on where it was", err=True)
                    raise

            done = run_to_its_end(supervised, quiet=True)
        report = summarise(opened.store.database)
        added = more(opened, done) if more is not None else {}
        if values["as_json"]:
            replayed = {"replayed": done.replayed.to_dict()} if done.replayed is not None else {}
            about = {"run": str(place.folder), "command_id": done.command_id, **done.tally.to_dict()}
            ended = {"stopped": done.tally.stopped, "problems": list(done.problems)}
            print_json({**about, **replayed, **added, **ended, "report": report.to_dict()})
        else:
            if show is not None:
                show(opened, done)
            from .report import print_report

            print_report(report)
    return _ended(done, place)


def _ended(done: Done, place: Place) -> int:
    tally = done.tally
    for problem in done.problems[:_PROBLEMS_MAX]:
        click.echo(f"cannot be used: {printable(problem)}", err=True)
    if done.replayed is not None and done.replayed.refused:
        click.echo(f"{done.replayed.refused} of the source could not be taken", err=True)
    # It is over: no time is left of it.
    click.echo(in_words(replace(tally, todo=tally.done)), err=True)
    if tally.stopped is not None:
        click.echo(f"ended early: {tally.stopped}; then `assay resume {place.folder}` goes on where it was", err=True)
    for command, number in tally.exhausted.items():
        click.echo(
            f"{counted(number, 'row was', 'rows were')} tried as often as --attempts allows, and not again: "
            f"`assay {command} {place.folder} --attempts N` with a greater N allows more",
            err=True,
        )
    for bug in tally.bugs[:1]:
        click.echo(bug, err=True)
    if tally.bugs:
        rows = counted(len(tally.bugs), "row was left as it was", "rows were left as they were")
        click.echo(
            f"This is a bug in Assay ({rows}); please report it to the project's issue "
            "tracker with the lines above and the command you ran.",
            err=True,
        )
        return 1
    refused = done.replayed is not None and done.replayed.refused > 0
    left = tally.open or tally.exhausted or tally.stopped is not None
    return 3 if left or done.problems or refused else 0


def absolute(path: Path) -> str:
    """A path that a later command can find from anywhere."""
    return str(path.expanduser().absolute())

"""`assay resume`: what a run had left to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from .inputs import Place
from .runplace import json_option, place_options, told_plainly, work_options
from .working import work_on


@click.command(name="resume")
@place_options
@click.option("--dataset", type=Place(), metavar="DIR", help="Where the dataset is now, when it was moved.")
@click.option(
    "--attempts",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    metavar="N",
    help="For each kind of failure.",
)
@work_options
@json_option
def command(run: Path, store: str | None, attempts: int, **values: Any) -> int:
    """Go on with RUN: tasks and rollouts without an answer, answers without any verdict.

    No agent works again for an answer that is kept. Exit code 3 when a row ended without a reward.
    """
    from assay.runs import collect, find_place

    with told_plainly():
        place = find_place(run, store=store)
    return work_on(
        place,
        values,
        lambda opened, setting: collect(opened, setting, name="resume", budget=attempts),
        who=f"assay resume {run}",
    )

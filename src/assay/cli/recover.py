"""`assay recover`: answers whose verification failed for something that may have passed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from .inputs import Place
from .runplace import json_option, place_options, told_plainly, work_options
from .working import work_on


@click.command(name="recover")
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
@click.option(
    "--session-lost", is_flag=True, help="Answers of lost sessions, too, though their verifier is not stateless."
)
@work_options
@json_option
def command(run: Path, store: str | None, attempts: int, session_lost: bool, **values: Any) -> int:
    """Verify the answers of RUN that have no verdict, or one masked by a judge, a route or the infrastructure.

    No agent runs. What a verifier is to blame for waits for `assay regrade`. Exit code 3 when a row ended without a reward.
    """
    from assay.runs import find_place, recover

    with told_plainly():
        place = find_place(run, store=store)
    return work_on(
        place,
        values,
        lambda opened, setting: recover(opened, setting, budget=attempts, session_lost=session_lost),
        who=f"assay recover {run}",
    )

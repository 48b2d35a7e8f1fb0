"""`assay status`: how far a run is."""

from __future__ import annotations

from pathlib import Path

import click

from .output import console, print_json
from .runplace import json_option, place_options, reading

_MEANS = {
    "missing": "no answer yet: `assay resume`",
    "scored": "graded",
    "recoverable": "an answer that can be verified: `assay resume`, `assay recover`",
    "exhausted": "tried as often as it may be: --attempts N allows more",
    "terminal": "masked for good: `assay regrade`, when the verifier is mended",
}


@click.command(name="status")
@place_options
@json_option
def command(run: Path, store: str | None, as_json: bool) -> int:
    """Count the states of RUN's rows, and what masks them. Works while another command writes."""
    from assay.answers import totals
    from assay.runs import masked_by_kind

    with reading(run, store) as database:
        counted = totals(database)
    masked = masked_by_kind(counted)
    if as_json:
        print_json(
            {
                "states": dict(counted.states),
                "masked": masked,
                "unanswered": dict(counted.unanswered_kinds),
                "planned": counted.planned,
                "answered": counted.answered,
                "graded": counted.graded,
                "mean": counted.mean,
                "held": counted.held,
            }
        )
        return 0
    out = console()
    for state, rows in counted.states.items():
        if rows:
            out.print(f"{state:12} {rows:>8}   {_MEANS[state]}", markup=False)
    for kind, rows in masked.items():
        out.print(f"  masked     {rows:>8}   {kind}", markup=False)
    for kind, rows in counted.unanswered_kinds.items():
        out.print(f"  no answer  {rows:>8}   {kind}", markup=False)
    if counted.held:
        out.print(f"{counted.held} of {counted.planned} are being worked on, or were until not long ago", markup=False)
    if not counted.planned:
        out.print("nothing is planned: the run was stopped before it began; give the `assay run` command again")
    return 0

"""`assay status`: how far a run is."""

from __future__ import annotations

from pathlib import Path

import click

from .output import console, counted, print_json
from .runplace import json_option, place_options, reading

_MEANS = {
    "missing": "no answer yet: `assay resume`",
    "scored": "graded",
    "recoverable": "an answer that can be verified: `assay resume`, `assay recover`",
    "exhausted": "tried as often as --attempts allowed: a greater N allows more",
    "terminal": "no further try settles it: `assay regrade`, when the verifier is mended",
}


@click.command(name="status")
@place_options
@json_option
def command(run: Path, store: str | None, as_json: bool) -> int:
    """Count the states of RUN's rows, and what masks them. Works while another command writes."""
    from assay.answers import totals
    from assay.runs import masked_by_kind

    with reading(run, store) as database:
        found = totals(database)
    masked = masked_by_kind(found)
    if as_json:
        print_json(
            {
                "states": dict(found.states),
                "masked": masked,
                "unanswered": dict(found.unanswered_kinds),
                "planned": found.planned,
                "answered": found.answered,
                "graded": found.graded,
                "mean": found.mean,
                "held": found.held,
            }
        )
        return 0
    out = console()
    for state, rows in found.states.items():
        if rows:
            out.print(f"{state:12} {rows:>8}   {_MEANS[state]}", markup=False)
    for kind, rows in masked.items():
        out.print(f"  masked     {rows:>8}   {kind}", markup=False)
    for kind, rows in found.unanswered_kinds.items():
        out.print(f"  no answer  {rows:>8}   {kind}", markup=False)
    if found.held:
        one, many = "row is being worked on, or was", "rows are being worked on, or were"
        out.print(f"{counted(found.held, one, many)} until not long ago", markup=False)
    if not found.planned:
        out.print("nothing is planned: the run was stopped before it began; give the `assay run` command again")
    return 0

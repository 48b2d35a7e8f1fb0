"""`assay export`: a run as JSONL."""

from __future__ import annotations

from pathlib import Path

import click

from .inputs import Place
from .output import print_json
from .runplace import choice_from, choice_options, json_option, place_options, reading


@click.command(name="export")
@place_options
@click.option("--out", type=Place(), metavar="DIR", help="Where to (default: RUN).")
@choice_options
@json_option
def command(
    run: Path, store: str | None, out: Path | None, task: str | None, where: tuple[str, ...], as_json: bool
) -> int:
    """Write RUN as rollouts.jsonl (graded rows) and rollouts_failures.jsonl (masked ones), each whole or not at all."""
    from assay.runs import export

    choice = choice_from(task, where)
    with reading(run, store) as database:
        written = export(database, out or run, choice=choice)
    if as_json:
        print_json(written.to_dict())
        return 0
    click.echo(f"{written.graded} graded rows in {written.rows}")
    failed = f", {written.agent_failed} without an answer among them" if written.agent_failed else ""
    click.echo(f"{written.masked + written.agent_failed} masked rows in {written.failures}{failed}")
    if written.ungraded or written.missing:
        click.echo(
            f"in neither: {written.ungraded} answers without a verdict, {written.missing} rows not worked on yet"
        )
    return 0

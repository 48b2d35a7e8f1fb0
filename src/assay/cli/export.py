"""`assay export`: a run as JSONL."""

from __future__ import annotations

from pathlib import Path

import click

from .inputs import Place
from .output import counted, print_json
from .runplace import choice_from, choice_options, json_option, place_options, reading


@click.command(name="export")
@place_options
@click.option("--out", type=Place(), metavar="DIR", help="Where to (default: RUN).")
@choice_options
@json_option
def command(
    run: Path, store: str | None, out: Path | None, task: str | None, where: tuple[str, ...], as_json: bool
) -> int:
    """Write RUN as rollouts.jsonl (graded rows) and rollouts_failures.jsonl (masked rows, and those without
    an answer), each whole or not at all."""
    from assay.runs import export

    choice = choice_from(task, where)
    with reading(run, store) as database:
        written = export(database, out or run, choice=choice)
    if as_json:
        print_json(written.to_dict())
        return 0
    click.echo(f"{counted(written.graded, 'graded row')} in {written.rows}")
    failed = f" and {counted(written.agent_failed, 'row')} without an answer" if written.agent_failed else ""
    click.echo(f"{counted(written.masked, 'masked row')}{failed} in {written.failures}")
    if written.ungraded or written.missing:
        click.echo(
            f"in neither: {counted(written.ungraded, 'answer')} without a verdict, "
            f"{counted(written.missing, 'row')} not worked on yet"
        )
    return 0

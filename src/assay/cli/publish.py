"""`assay publish`: a dataset as Harbor tasks."""

from __future__ import annotations

from pathlib import Path

import click

from .inputs import Place
from .output import counted


@click.command(name="publish")
@click.argument("dataset", type=Place())
@click.argument("out", type=Place())
def command(dataset: Path, out: Path) -> None:
    """Write the tasks of DATASET into the new folder OUT, as any Harbor runs them.

    All or nothing: OUT appears only when every task passed its check.
    """
    from assay.tasks import TaskInvalid, publish

    try:
        report = publish(dataset, out)
    except TaskInvalid as refused:
        raise click.UsageError(refused.reason) from None
    except OSError as error:
        raise click.UsageError(f"{error.filename or out}: {error.strerror}") from None
    click.echo(f"wrote {counted(len(report.tasks), 'task')} to {out}")

"""`assay lint`: what is wrong with a task or a dataset, before it runs."""

from __future__ import annotations

from pathlib import Path

import click

from .inputs import Place
from .output import console, counted, print_json, printable


@click.command(name="lint")
@click.argument("task_or_dataset", type=Place())
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout, and nothing else there.")
def command(task_or_dataset: Path, as_json: bool) -> int:
    """Read a task or a dataset without running anything, and say what is wrong: file, line, what to write instead.

    Exit code 3 when there is an error; warnings alone end with 0.
    """
    from assay.tasks import lint

    findings = lint(task_or_dataset)
    errors = sum(finding.level == "error" for finding in findings)
    if as_json:
        rows = [
            {"path": str(f.path), "line": f.line, "level": f.level, "code": f.code, "message": f.message}
            for f in findings
        ]
        print_json({"errors": errors, "warnings": len(findings) - errors, "findings": rows})
    else:
        out = console()
        for finding in findings:
            where = f"{finding.path}:{finding.line}" if finding.line is not None else str(finding.path)
            out.print(f"{printable(where)}: ", end="", markup=False)
            out.print(finding.level, style="red" if finding.level == "error" else "yellow", end="")
            out.print(f" [{finding.code}] {printable(finding.message)}", markup=False)
        out.print(f"{counted(errors, 'error')}, {counted(len(findings) - errors, 'warning')}")
    return 3 if errors else 0

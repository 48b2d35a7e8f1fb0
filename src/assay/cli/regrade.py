"""`assay regrade`: kept answers, today's verifiers, and a table of what changed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .inputs import Place
from .output import console, counted, printable
from .runplace import choice_from, choice_options, json_option, place_options, told_plainly, work_options
from .working import work_on

if TYPE_CHECKING:
    from collections.abc import Mapping

    from assay.runs import Done, OpenRun

_ROWS_SHOWN = 50


@click.command(name="regrade")
@place_options
@click.option("--verifier", type=Place(), metavar="FILE", help="A Python verifier, in place of the tasks' own.")
@choice_options
@click.option("--changed-tasks", is_flag=True, help="Answers to another version of their task, too.")
@click.option("--dataset", type=Place(), metavar="DIR", help="Where the dataset is now, when it was moved.")
@work_options
@json_option
def command(
    run: Path,
    store: str | None,
    verifier: Path | None,
    task: str | None,
    where: tuple[str, ...],
    changed_tasks: bool,
    **values: Any,
) -> int:
    """Verify kept answers of RUN again, all or those chosen, each workspace restored in a sandbox.

    Old verdicts stay, and no agent runs. Prints what changed. Exit code 3 when a row ended without a reward.
    """
    from assay.runs import find_place, regrade

    choice = choice_from(task, where)
    with told_plainly():
        place = find_place(run, store=store)
    return work_on(
        place,
        values,
        lambda opened, setting: regrade(opened, setting, choice=choice, verifier=verifier, changed_tasks=changed_tasks),
        who=f"assay regrade {run}",
        more=_changes,
        show=_print_changes,
    )


def _changes(opened: OpenRun, done: Done) -> dict[str, Any]:
    from assay.runs import Changes, changed_rows

    found = Changes()
    rows = [
        {
            "task_id": change.identity.task_id,
            "rollout": change.identity.rollout,
            "change": kind,
            "before": change.before,
            "after": change.after,
        }
        for kind, change in changed_rows(opened.store.database, done.command_id, found)
    ]
    return {"changes": found.to_dict(), "changed": rows}


def _print_changes(opened: OpenRun, done: Done) -> None:
    from rich.table import Table

    from assay.runs import Changes, changed_rows

    found, shown = Changes(), 0
    table = Table("task", "rollout", "before", "now", "change", title="what changed", title_justify="left")
    for kind, change in changed_rows(opened.store.database, done.command_id, found):
        shown += 1
        if shown <= _ROWS_SHOWN:
            name = printable(change.identity.task_id)
            table.add_row(name, str(change.identity.rollout), _outcome(change.before), _outcome(change.after), kind)
    out = console()
    if shown:
        out.print(table)
    if shown > _ROWS_SHOWN:
        out.print(f"… and {counted(shown - _ROWS_SHOWN, 'more row')} (--json prints all)", markup=False)
    kinds = ", ".join(f"{kind} {number}" for kind, number in found.counts.items())
    out.print(f"changes: {kinds or 'none: there was nothing to verify'}", markup=False)
    for label, counts in (("graded now by", found.verifiers), ("before by", found.verifiers_before)):
        for digest, rows in counts.most_common(5):
            out.print(f"  {label:14}{digest[:19]}  {counted(rows, 'row')}", markup=False)
        if len(counts) > 5:
            out.print(f"  {'':14}and {counted(len(counts) - 5, 'more verifier')}", markup=False)
    if found.kept_back:
        out.print(
            f"  {counted(found.kept_back, 'failed verdict is', 'failed verdicts are')} kept, but a graded one of the same "
            "verifier stays current",
            markup=False,
        )


def _outcome(side: Mapping[str, Any] | None) -> str:
    if side is None:
        return "-"
    return f"{side['reward']:g}" if side["reward"] is not None else str(side["kind"])

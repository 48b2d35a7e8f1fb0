"""`assay compare`: what differs between two runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from .inputs import Place
from .output import console, counted, print_json, printable
from .runplace import choice_from, choice_options, json_option, reading

if TYPE_CHECKING:
    from assay.answers import Outcome
    from assay.runs import Comparison

_SHOWN = 50


@click.command(name="compare")
@click.argument("run_a", type=Place())
@click.argument("run_b", type=Place())
@choice_options
@json_option
def command(run_a: Path, run_b: Path, task: str | None, where: tuple[str, ...], as_json: bool) -> int:
    """What differs between RUN_A and RUN_B, row by row and in the means of the rows that are graded in both.

    With --json: a line for each row that differs, then {"summary": …}.
    """
    from assay.runs import Comparison, compare

    choice = choice_from(task, where)
    comparison, shown = Comparison(), 0
    out = console()
    with reading(run_a, None) as first, reading(run_b, None) as second:
        for row in compare(first, second, comparison, choice=choice):
            if as_json:
                print_json(row.to_dict())
                continue
            shown += 1
            if shown <= _SHOWN:
                one = row.identity
                both = f"{_outcome(row.a):>24}  →  {_outcome(row.b)}"
                out.print(f"{printable(one.task_id)}, rollout {one.rollout}: {both}", markup=False)
    if as_json:
        print_json({"summary": comparison.to_dict()})
        return 0
    if shown > _SHOWN:
        out.print(f"… and {counted(shown - _SHOWN, 'more row')} (--json prints all)", markup=False)
    _print(comparison)
    return 0


def _print(found: Comparison) -> None:
    out = console()
    if found.mean_a is not None and found.mean_b is not None and found.delta is not None:
        interval = f"  [{found.interval[0]:+.4f}, {found.interval[1]:+.4f}]  95 %" if found.interval is not None else ""
        out.print(
            f"means over {counted(found.common, 'row')} graded in both: {found.mean_a:.4f}  →  {found.mean_b:.4f}",
            markup=False,
        )
        out.print(f"difference {found.delta:+.4f}{interval}", markup=False)
    else:
        out.print("no row is graded in both, so there is no mean to compare", markup=False)
    out.print(f"rows: {found.better} better, {found.worse} worse, {found.same} the same", markup=False)
    only = (
        (found.graded_only_a, "graded in the first run alone"),
        (found.graded_only_b, "graded in the second run alone"),
        (found.only_a, "no part of the second run"),
        (found.only_b, "no part of the first run"),
        (found.other_verifier, "graded by different verifiers, which the difference may come from"),
    )
    for rows, what in only:
        if rows:
            out.print(f"      {rows} {what}", markup=False)


def _outcome(one: Outcome | None) -> str:
    if one is None:
        return "not in it"
    if one.reward is not None:
        return f"{one.reward:g}"
    return one.kind or ("no verdict" if one.answer_id is not None else "no answer")

"""`assay report`: what a run came to, and what its mean leaves out."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .output import console, counted, print_json, printable
from .runplace import choice_from, choice_options, json_option, place_options, reading

if TYPE_CHECKING:
    from collections.abc import Iterator

    from assay.answers import Histogram
    from assay.runs import Report

_SHOWN = 10
_BAR = 40
_LABEL = 12
_METRICS_SHOWN = 20
_WHO = {
    "verifier": "the verifiers: mend them, then `assay regrade`",
    "infrastructure": "the infrastructure: `assay recover`",
    "unknown": "not known: nothing shows yet that the verifier works",
    "submission": "the submissions",
    "none": "nobody: what was given cannot be used",
}


@click.command(name="report")
@place_options
@choice_options
@json_option
def command(run: Path, store: str | None, task: str | None, where: tuple[str, ...], as_json: bool) -> int:
    """The mean of RUN with its 95 % interval, and every row that is not in it. Works while another command writes."""
    from assay.runs import summarise

    choice = choice_from(task, where)
    with reading(run, store) as database:
        report = summarise(database, choice=choice)
    if as_json:
        print_json(report.to_dict())
    else:
        print_report(report)
    return 0


def print_report(report: Report) -> None:
    """A report for a person."""
    out = console()
    for label, value in _lines(report):
        out.print(f"{label:14}{value}", markup=False)
    if report.histogram is not None:
        for line in _bars(report.histogram):
            out.print(line, markup=False)


def _lines(report: Report) -> Iterator[tuple[str, str]]:
    totals = report.totals
    yield "mean reward", _mean(report)
    yield (
        "denominator",
        f"{counted(totals.graded, 'graded row')} of {totals.planned:,}, {counted(report.tasks, 'task')}",
    )
    if report.partial:
        yield "PARTIAL", f"{counted(totals.planned - totals.graded, 'row is', 'rows are')} not in the mean:"
        if totals.unanswered:
            kinds = ", ".join(f"{kind} {rows}" for kind, rows in totals.unanswered_kinds.items())
            yield "", f"{totals.unanswered} without an answer{f' ({kinds})' if kinds else ''}"
        if totals.ungraded:
            yield "", f"{counted(totals.ungraded, 'answer')} without any verdict: `assay resume`"
        for one in totals.masked:
            late = f", {one.provisional} of them until there is evidence" if one.provisional else ""
            yield "", f"{one.rows} masked: {one.kind}, caused by {_WHO[one.caused_by or 'none']}{late}"
    if report.mixed:
        yield "MIXED", f"the graded rows of {counted(report.mixed_tasks, 'task')} are of more than one verifier:"
        for graded in report.mixed_named[:_SHOWN]:
            yield "", f"{printable(graded.task_id)}: {graded.rows} by {(graded.verifier_digest or 'none')[:19]}"
        yield "", "`assay regrade` grades all with today's"
    for k, estimate, tasks in report.pass_at:
        yield f"pass@{k}", f"{estimate:.4f}  tasks with that many graded tries: {tasks}"
    for metric in report.metrics[:_METRICS_SHOWN]:
        yield "metric", f"{printable(metric.name)}  {metric.mean:.4g}  over {counted(metric.rows, 'row')}"
    if len(report.metrics) > _METRICS_SHOWN:
        yield "", f"and {counted(len(report.metrics) - _METRICS_SHOWN, 'more metric')} (--json names all)"
    if totals.unproven_zeros:
        of = counted(totals.unproven_zeros, "zero is of a verifier that was", "zeros are of verifiers that were")
        yield "unproven", f"{of} never seen to give more"
    if totals.floored:
        rows = counted(totals.floored, "row is", "rows are")
        yield "floored", f"{rows} graded at the floor: the submission broke the verification"
    if totals.flaky:
        rows = counted(totals.flaky, "row was", "rows were")
        yield "flaky", f"{rows} graded only when the verification was repeated"
    if report.unproven_tasks:
        names = ", ".join(map(printable, report.unproven_named[:_SHOWN]))
        more = f" and {report.unproven_tasks - _SHOWN} more" if report.unproven_tasks > _SHOWN else ""
        yield "no evidence", f"no answer shows that the verifier works: {names}{more}"
    verifiers = list(totals.verifiers.items())
    for digest, graded_by in verifiers[:3]:
        yield "verifier", f"{(digest or 'none')[:19]}  {counted(graded_by, 'row')}"
    if len(verifiers) > 3:
        yield "", f"and {counted(len(verifiers) - 3, 'more verifier')} (--json names all)"


def _mean(report: Report) -> str:
    mean = report.totals.mean
    if mean is None:
        return "none: nothing is graded"
    if report.interval is None:
        return f"{mean:.4f}  (one task alone has no interval)"
    low, high = report.interval
    return f"{mean:.4f}  [{low:.4f}, {high:.4f}]  95 %, bootstrapped over {counted(report.graded_tasks, 'task')}"


def _bars(histogram: Histogram) -> Iterator[str]:
    most = max(histogram.counts)
    names = _names(histogram)
    width = max(_LABEL, *map(len, names))
    for name, rows in zip(names, histogram.counts, strict=True):
        length = round(rows / most * _BAR) if most else 0
        bar = "█" * max(length, 1 if rows else 0)
        yield f"{name:>{width}}  {bar} {rows:,}"


def _names(histogram: Histogram) -> list[str]:
    """The rewards that each bin takes in: `[0.9, 1]` with both its bounds is the last, others are without the upper one."""
    bins = len(histogram.counts)
    if bins == 1:
        return [f"{histogram.low:.4g}"]
    step = (histogram.high - histogram.low) / bins
    edges = [*(histogram.low + step * number for number in range(bins)), histogram.high]
    # As many digits as it takes to tell bounds apart.
    digits = next((n for n in range(4, 17) if len({f"{edge:.{n}g}" for edge in edges}) == len(edges)), 17)
    shown = [f"{edge:.{digits}g}" for edge in edges]
    return [f"[{low}, {high}{']' if number == bins else ')'}" for number, (low, high) in enumerate(pairwise(shown), 1)]

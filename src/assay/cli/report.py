"""`assay report`: what a run came to, and what its mean leaves out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from .output import console, print_json, printable
from .runplace import choice_from, choice_options, json_option, place_options, reading

if TYPE_CHECKING:
    from collections.abc import Iterator

    from assay.answers import Histogram
    from assay.runs import Report

_SHOWN = 10
_BAR = 40
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
    counted = report.totals
    yield "mean reward", _mean(report)
    yield "denominator", f"{counted.graded} graded rows of {counted.planned}, {report.tasks} tasks"
    if report.partial:
        yield "PARTIAL", f"{counted.planned - counted.graded} rows are not in the mean:"
        if counted.unanswered:
            kinds = ", ".join(f"{kind} {rows}" for kind, rows in counted.unanswered_kinds.items())
            yield "", f"{counted.unanswered} without an answer{f' ({kinds})' if kinds else ''}"
        if counted.ungraded:
            yield "", f"{counted.ungraded} answers without any verdict: `assay resume`"
        for one in counted.masked:
            late = f", {one.provisional} of them until there is evidence" if one.provisional else ""
            yield "", f"{one.rows} masked: {one.kind}, caused by {_WHO[one.caused_by or 'none']}{late}"
    if report.mixed:
        yield "MIXED", f"the graded rows of {report.mixed_tasks} tasks are of more than one verifier:"
        for graded in report.mixed_named[:_SHOWN]:
            yield "", f"{printable(graded.task_id)}: {graded.rows} by {(graded.verifier_digest or 'none')[:19]}"
        yield "", "`assay regrade` grades all with today's"
    for k, estimate, tasks in report.pass_at:
        yield f"pass@{k}", f"{estimate:.4f}  tasks with that many graded tries: {tasks}"
    for metric in report.metrics[:_METRICS_SHOWN]:
        yield "metric", f"{printable(metric.name)}  {metric.mean:.4g}  over {metric.rows} rows"
    if len(report.metrics) > _METRICS_SHOWN:
        yield "", f"and {len(report.metrics) - _METRICS_SHOWN} metrics more (--json names all)"
    if counted.unproven_zeros:
        yield "unproven", f"{counted.unproven_zeros} zeros are of verifiers that were never seen to give more"
    if counted.floored:
        yield "floored", f"{counted.floored} rows are graded at the floor: the submission broke the verification"
    if counted.flaky:
        yield "flaky", f"{counted.flaky} rows were graded only when the verification was repeated"
    if report.unproven_tasks:
        names = ", ".join(map(printable, report.unproven_named[:_SHOWN]))
        more = f" and {report.unproven_tasks - _SHOWN} more" if report.unproven_tasks > _SHOWN else ""
        yield "no evidence", f"no answer shows that the verifier works: {names}{more}"
    verifiers = list(counted.verifiers.items())
    for digest, rows in verifiers[:3]:
        yield "verifier", f"{(digest or 'none')[:19]}  {rows} rows"
    if len(verifiers) > 3:
        yield "", f"and {len(verifiers) - 3} verifiers more (--json names all)"


def _mean(report: Report) -> str:
    mean = report.totals.mean
    if mean is None:
        return "none: nothing is graded"
    if report.interval is None:
        return f"{mean:.4f}  (one task alone has no interval)"
    low, high = report.interval
    return f"{mean:.4f}  [{low:.4f}, {high:.4f}]  95 %, bootstrapped over {report.graded_tasks} tasks"


def _bars(histogram: Histogram) -> Iterator[str]:
    most = max(histogram.counts)
    width = (histogram.high - histogram.low) / len(histogram.counts)
    for number, rows in enumerate(histogram.counts):
        length = round(rows / most * _BAR) if most else 0
        bar = "█" * max(length, 1 if rows else 0)
        yield f"{histogram.low + number * width:>12.4g}  {bar} {rows}"

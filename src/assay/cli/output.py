"""Printing for people (rich, colours on a terminal only) and for programs (JSON on stdout)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.console import Console

    from assay.grading import Verdict

_SHOWN_LINES = 15
MOST_DROPPED = 50
"""How many a verdict lists."""

_WHO = {
    "submission": "the submission: the verifier is known to work, so a run that breaks it is worth the floor",
    "verifier": "the verifier: it does not grade the task's own solution either",
    "infrastructure": "the infrastructure: neither the answer nor the verifier",
    "unknown": "not known: nothing shows yet that this verifier works",
    None: "what was given: nothing was run",
}

_NEXT = {
    "verifier": "mend the verifier (`assay check TASK` grades its solution), then verify the same workspace again",
    "infrastructure": "verify the same workspace again; the answer is not lost",
    "unknown": "any answer that is graded above the floor settles it, or a solution that is (see `assay check TASK`)",
}

_TEACH_THEMSELVES = ("assay:guarantee_unmet", "assay:image_missing")


def counted(number: int, one: str, many: str | None = None) -> str:
    """A number and what is counted, as it is said of one and of many: "1 row", "2 rows". `many`: where an s does not make it."""
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"


def print_json(value: Mapping[str, Any]) -> None:
    """One JSON object on a line of stdout."""
    click.echo(json.dumps(value, ensure_ascii=False, allow_nan=False).encode("utf-8", "backslashreplace"))


def console() -> Console:
    """A console for stdout."""
    from rich.console import Console

    return Console(highlight=False, soft_wrap=True)


def print_verdict(verdict: Verdict) -> None:
    """A verdict for a person: the reward or who is to blame, what was measured, the verifier's last lines."""
    from rich.text import Text

    out = console()
    if verdict.graded:
        out.print(Text.assemble((verdict.task_id, "bold"), "  graded  ", (f"reward {verdict.reward:g}", "bold green")))
    else:
        out.print(Text.assemble((verdict.task_id, "bold"), "  ", ("no verdict", "bold red"), "  (this is not a zero)"))
    for label, value in _facts(verdict):
        out.print(Text.assemble((f"  {label:12}", "dim"), value))
    lines = verdict.log_tail.rstrip("\n").splitlines()[-_SHOWN_LINES:]
    if lines and (verdict.failure is not None or not verdict.proven):
        out.print(Text("  the verifier's last lines:", style="dim"))
        for line in lines:
            out.print(Text("    " + printable(line)))


def printable(text: str) -> str:
    """Text from a sandbox as it is safe to show: control characters, which could drive a terminal, are escaped."""
    return "".join(c if c.isprintable() or c == "\t" else repr(c)[1:-1] for c in text)


def _step_outcome(step: Mapping[str, Any]) -> str:
    if step["status"] == "not_reached":
        return "not reached"
    return "no verdict" if step["reward"] is None else f"reward {step['reward']:g}"


def _facts(verdict: Verdict) -> Iterable[tuple[str, str]]:
    if verdict.metrics:
        yield "metrics", "  ".join(f"{printable(name)} {value:g}" for name, value in verdict.metrics.items())
    for step in verdict.steps:
        yield "step", f"{printable(step['step'])}  {_step_outcome(step)}"
    for check in verdict.checks:
        yield "check", f"{check['score']:g}  {printable(check['name'])}  {printable(check['note'])}".rstrip()
    if verdict.failure is not None:
        yield "failure", f"{verdict.failure['kind']}: {printable(verdict.failure['reason'])}"
        if verdict.failure["kind"] not in _TEACH_THEMSELVES:
            yield "caused by", _WHO[verdict.caused_by]
        if verdict.caused_by in _NEXT and verdict.failure["kind"] not in _TEACH_THEMSELVES:
            yield "next", _NEXT[verdict.caused_by]
    if verdict.graded and verdict.failure is None and not verdict.proven:
        yield "unproven", "this verifier was never seen to give more than this: a zero may be the verifier's own"
    if verdict.flaky:
        yield "flaky", "graded only when it was repeated"
    if verdict.discarded_reward is not None:
        yield "discarded", f"a reward of {verdict.discarded_reward:g} that was written before the limit"
    if verdict.limits_hit:
        yield "limits hit", ", ".join(verdict.limits_hit)
    if verdict.unmet:
        yield "not enforced", ", ".join(verdict.unmet) + " (this machine or sandbox cannot)"
    if verdict.replaced:
        shown = ", ".join(map(printable, verdict.replaced))
        yield "replaced", f"not as in the task's image, so the agent may have decided this verdict: {shown}"
    if verdict.dropped_files:
        kinds = sorted({str(found["type"]) for found in verdict.dropped_files})
        more = "or more " if len(verdict.dropped_files) >= MOST_DROPPED else ""
        yield (
            "dropped",
            f"{len(verdict.dropped_files)} {more}of the workspace that no verifier sees: {', '.join(kinds)}",
        )
    if verdict.found and verdict.failure is not None:
        yield "found", ", ".join(f"{printable(f['path'])} ({f['type']}, {f['bytes']} B)" for f in verdict.found[:10])
    if verdict.logs["folder"]:
        yield "logs", str(verdict.logs["folder"])
    if verdict.sandbox is not None:
        yield "sandbox", f"{verdict.sandbox}, {verdict.trust}, on {verdict.base or 'nothing'}"
    yield "time", f"{verdict.timing.total_s:.3f} s, the verifier {verdict.timing.run_s:.3f} s"

"""What commands on a run have in common: where it is, what they work with, which rows they are for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .inputs import Place, judge_option

if TYPE_CHECKING:
    from assay.answers import Choice, Database
    from assay.runs import GradingSettings

Function = Callable[..., Any]


def place_options(function: Function) -> Function:
    """RUN, and where its rows are when not in it."""
    return _all(
        function,
        click.argument("run", type=Place()),
        click.option("--store", metavar="URL", help="Where its rows are, when they are not in RUN."),
    )


def json_option(function: Function) -> Function:
    """`--json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON on stdout, and nothing else there.")(
        function
    )


def work_options(function: Function) -> Function:
    """The options of every command that grades the answers of a run."""
    return _all(
        function,
        click.option("--concurrency", type=click.IntRange(min=1), metavar="N", help="At once (default: cores)."),
        click.option("--sandbox", metavar="NAME", help="Sandbox provider (default: the best there is)."),
        click.option(
            "--rootfs", metavar="NAME_OR_DIR|host", help="Root filesystem to grade on, in place of the tasks' images."
        ),
        click.option("--network/--no-network", default=None, help="Let verifiers use the network."),
        click.option(
            "--timeout",
            type=click.FloatRange(min=0, min_open=True),
            metavar="S",
            help="Seconds, in place of the tasks' own limits.",
        ),
        click.option(
            "--control/--no-control",
            default=None,
            help="Whether repeats, untouched environments and solutions are run for evidence.",
        ),
        click.option(
            "--warm/--no-warm",
            default=None,
            help="Whether Python verifiers and submissions run in forks of an interpreter that waits, where the sandbox has one.",
        ),
        judge_option,
        click.option("--state", type=Place(), metavar="DIR", help="Where evidence and images are kept."),
    )


def choice_options(function: Function) -> Function:
    """Which rows a command is for."""
    return _all(
        function,
        click.option("--task", metavar="GLOB", help="Tasks by their id."),
        click.option(
            "--where", multiple=True, metavar="FIELD=VALUE", help="Rows by what is known of them: status=failed, kind=…"
        ),
    )


def choice_from(task: str | None, where: tuple[str, ...]) -> Choice:
    """The choice of `--task` and `--where`."""
    from assay.answers import choice_of

    with told_plainly():
        return choice_of(task, where)


def grading_from(before: GradingSettings, values: dict[str, Any]) -> GradingSettings:
    """How answers are graded: as before, but for what was given."""
    from dataclasses import replace

    judges = {**before.judges, **dict(values["judges"])}
    for url in judges.values():
        if "@" in url.partition("://")[2].partition("/")[0]:
            raise click.BadParameter("a URL with a password would be kept; use api_key_env", param_hint="--judge")
    given = {
        "sandbox": values["sandbox"],
        "rootfs": values["rootfs"],
        "network": values["network"],
        "timeout_s": values["timeout"],
        "control": values["control"],
        "warm": values["warm"],
    }
    return replace(before, judges=judges, **{name: value for name, value in given.items() if value is not None})


@contextmanager
def told_plainly() -> Iterator[None]:
    """What is wrong with a run, or with what was given, is told as wrong usage: exit code 2."""
    from assay.failures import FailureEvent
    from assay.grading import WrongArgument

    try:
        yield
    except WrongArgument as error:
        raise click.UsageError(str(error)) from None
    except FailureEvent as failure:
        from assay.tasks import TaskInvalid

        if isinstance(failure, TaskInvalid):
            # Wrong is the dataset, not how the command was given.
            raise
        raise click.UsageError(failure.reason) from None


@contextmanager
def reading(run: Path, store: str | None) -> Iterator[Database]:
    """The rows of a run, to be read."""
    from assay.runs import find_place, read_run

    with told_plainly(), read_run(find_place(run, store=store)) as opened:
        yield opened.database


def _all(function: Function, *options: Callable[[Function], Function]) -> Function:
    for option in reversed(options):
        function = option(function)
    return function

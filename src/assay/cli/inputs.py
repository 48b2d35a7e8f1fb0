"""What a person gives on the command line, read with errors that say where and what to write instead."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from assay.grading import AskJudge
    from assay.tasks import Task

MAX_INPUT_BYTES = 256 * 1024 * 1024


def read_json_object(path: Path, option: str) -> dict[str, Any]:
    """The JSON object in a file given with `option`."""
    from assay.tasks import strict_json

    try:
        value = strict_json(_read(path, option))
    except ValueError as error:
        raise click.BadParameter(f"{path}: {error}", param_hint=option) from None
    if not isinstance(value, dict):
        raise click.BadParameter(f"{path}: must hold a JSON object, has {type(value).__name__}", param_hint=option)
    return value


def read_response(path: Path, option: str) -> dict[str, Any] | str:
    """The response in a file: a Responses API object in a `.json`, plain text in any other.

    The text is the agent's own: that it looks like an object must not make it one.
    """
    if path.suffix == ".json":
        return read_json_object(path, option)
    content = _read(path, option)
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise click.BadParameter(f"{path}: is not UTF-8 text (byte {error.start})", param_hint=option) from None


def _read(path: Path, option: str) -> bytes:
    try:
        if path.stat().st_size > MAX_INPUT_BYTES:
            raise click.BadParameter(f"{path}: larger than {MAX_INPUT_BYTES} bytes", param_hint=option)
        return path.read_bytes()
    except OSError as error:
        raise click.BadParameter(f"{path}: {error.strerror}", param_hint=option) from None


class Place(click.Path):
    """A path that is not empty: an unset variable of a shell script must not mean the current folder."""

    def __init__(self) -> None:
        """Any kind of path, there or not."""
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path; fails for an empty text."""
        if value == "":
            self.fail("is empty; an unset variable?", param, ctx)
        return super().convert(value, param, ctx)


def judge_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """`--judge`, as `judges`: pairs of a name and a URL."""
    return click.option(
        "--judge",
        "judges",
        multiple=True,
        callback=_judge_urls,
        metavar="NAME=URL",
        help="Where a model is that the verifier asks, in place of the dataset's own. May be given again.",
    )(function)


def _judge_urls(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """The name and the base URL of each `NAME=URL`."""
    pairs = tuple((name, url) for name, _, url in (value.partition("=") for value in values))
    for (name, url), value in zip(pairs, values, strict=True):
        if not name or not url.startswith(("http://", "https://")):
            raise click.BadParameter(f"must be NAME=URL, such as default=http://127.0.0.1:8000/v1, got {value!r}")
    return pairs


def judge_for(task: Task, judges: tuple[tuple[str, str], ...]) -> AskJudge | None:
    """What asks the judges of a task; the client is loaded only where there are some."""
    if not judges and not task.settings.judges:
        return None
    from assay.client import judges_of

    return judges_of(task.settings.judges, dict(judges))


def grading_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options of every command that runs a verifier."""
    options = (
        click.option(
            "--sandbox", default="auto", metavar="NAME", help="Sandbox provider (default: the best there is)."
        ),
        click.option(
            "--rootfs", metavar="NAME_OR_DIR|host", help="Root filesystem to grade on, in place of the task's image."
        ),
        click.option("--network", is_flag=True, help="Let the verifier use the network."),
        judge_option,
        click.option("--timeout", type=float, metavar="S", help="Seconds, in place of the task's own limit."),
        click.option("--state", type=Place(), metavar="DIR", help="Where evidence and images are kept."),
        click.option("--json", "as_json", is_flag=True, help="Print JSON on stdout, and nothing else there."),
    )
    for option in reversed(options):
        function = option(function)
    return function

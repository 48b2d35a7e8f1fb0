"""`assay serve`: a dataset's verifiers behind HTTP."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from .inputs import Place, judge_option
from .output import counted, print_json
from .runplace import told_plainly

if TYPE_CHECKING:
    from assay.server.catalogue import Catalogue

F = TypeVar("F", bound=Callable[..., Any])
_MIB = 1024 * 1024
_TOKEN_MIN = 16


def _count(name: str, default: int, what: str) -> Callable[[F], F]:
    return click.option(name, type=click.IntRange(min=1), default=default, show_default=True, metavar="N", help=what)


def _seconds(name: str, default: float, what: str) -> Callable[[F], F]:
    return click.option(
        name,
        type=click.FloatRange(min=0, min_open=True),
        default=default,
        show_default=True,
        metavar="S",
        help=what,
    )


@click.command(name="serve")
@click.argument("dataset", type=Place())
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on; another needs a token.")
@click.option("--port", type=click.IntRange(0, 65535), default=8089, show_default=True, help="0: any that is free.")
@click.option("--concurrency", type=click.IntRange(min=1), metavar="N", help="Verifications at once (default: cores).")
@click.option(
    "--grace",
    type=click.FloatRange(min=0),
    default=30.0,
    show_default=True,
    metavar="S",
    help="Seconds for what runs, after SIGTERM.",
)
@click.option(
    "--token-file",
    type=Place(),
    metavar="FILE",
    help="Tokens, one a line, each a client of its own (else: ASSAY_TOKEN).",
)
@click.option("--sandbox", default="auto", metavar="NAME", help="Sandbox provider (default: the best there is).")
@click.option(
    "--rootfs", metavar="NAME_OR_DIR|host", help="Root filesystem to grade on, in place of the tasks' images."
)
@click.option("--network", is_flag=True, help="Let verifiers use the network: none of them is stateless then.")
@judge_option
@click.option(
    "--timeout", type=click.FloatRange(min=0, min_open=True), metavar="S", help="In place of the tasks' own limits."
)
@click.option("--no-control", is_flag=True, help="Run no repeat, untouched environment or solution for evidence.")
@click.option("--no-warm", is_flag=True, help="Start an interpreter anew for each Python verifier and submission.")
@click.option("--state", type=Place(), metavar="DIR", help="Where evidence, images, keys and verdicts are kept.")
@click.option(
    "--keys", type=Place(), metavar="FILE", help="Where keys and verdicts are kept (default: in the state folder)."
)
@_count("--queue", 2048, "Verifications that may wait.")
@_count("--max-body", 64 * _MIB, "Bytes of one request.")
@_count("--max-snapshot", 4096 * _MIB, "Bytes of one uploaded workspace.")
@_count("--max-held", 1024 * _MIB, "Bytes of all requests' bodies together, as they came.")
@_count("--max-header", 16 * 1024, "Bytes of a request's head.")
@_seconds("--head-timeout", 10.0, "Seconds for a request's head to come.")
@_seconds("--body-timeout", 600.0, "Seconds for a request's body to come.")
@_count("--max-connections", 4096, "Connections at once.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON on stdout, and nothing else there.")
def command(
    dataset: Path,
    host: str,
    port: int,
    concurrency: int | None,
    grace: float,
    token_file: Path | None,
    sandbox: str,
    rootfs: str | None,
    network: bool,
    judges: tuple[tuple[str, str], ...],
    timeout: float | None,
    no_control: bool,
    no_warm: bool,
    state: Path | None,
    keys: Path | None,
    queue: int,
    max_body: int,
    max_snapshot: int,
    max_held: int,
    max_header: int,
    head_timeout: float,
    body_timeout: float,
    max_connections: int,
    as_json: bool,
) -> int:
    """Grade over HTTP what agents send for the tasks of DATASET.

    Ends with 0 after SIGTERM or Ctrl-C, when what ran has finished or been cut off.
    """
    import asyncio
    import dataclasses
    import logging

    from assay.sandbox import get_provider
    from assay.server import Limits, SandboxGrader, Settings, serve

    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.WARNING)
    # What somebody sent that is no HTTP was answered, and is nothing to fill a log with.
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    try:
        provider = get_provider(sandbox)
        # Looking ends, too, what a server that was killed had left running, before anything is verified again.
        provider.capabilities()
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--sandbox") from None
    settings = Settings(
        dataset,
        host=host,
        port=port,
        grace_s=grace,
        tokens=_tokens(token_file),
        grader=SandboxGrader(provider, rootfs, network, timeout, not no_control, state, dict(judges), warm=not no_warm),
        network=network,
        state=state,
        keys=keys,
        limits=Limits(max_body, max_snapshot, max_held, max_header, head_timeout, body_timeout, max_connections, queue),
    )
    if concurrency is not None:
        settings = dataclasses.replace(settings, concurrency=concurrency)

    def ready(url: str, catalogue: Catalogue) -> None:
        if as_json:
            print_json({"url": url, "tasks": len(catalogue.ids), "reverify_mode": catalogue.reverify_mode})
            return
        click.echo(
            f"{counted(len(catalogue.ids), 'task')} ({catalogue.reverify_mode}) on {url}, its routes at {url}/docs"
        )
        for invalid in catalogue.invalid:
            click.echo(f"left out: {'; '.join(invalid.problems)}", err=True)

    with told_plainly():
        asyncio.run(serve(settings, ready=ready))
    return 0


def _tokens(path: Path | None) -> tuple[str, ...]:
    """Of the file, else of the environment. A token on the command line would be in every list of processes."""
    if path is None:
        given = os.environ.get("ASSAY_TOKEN", "")
        found, where = ([given] if given else []), "ASSAY_TOKEN"
    else:
        try:
            found, where = path.read_text(encoding="utf-8").split(), "--token-file"
        except (OSError, UnicodeDecodeError) as error:
            raise click.BadParameter(f"{path}: cannot be read: {error}", param_hint="--token-file") from None
        if not found:
            raise click.BadParameter(f"{path}: holds no token", param_hint="--token-file")
    for token in found:
        if len(token) < _TOKEN_MIN or not token.isascii() or not token.isprintable():
            raise click.BadParameter(
                f"a token is {_TOKEN_MIN} or more printable ASCII characters, such as `openssl rand -hex 32` prints",
                param_hint=where,
            )
    return tuple(found)

"""`assay rootfs`: images as folders."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .output import console, counted, print_json, printable
from .running import T, run_blocking

if TYPE_CHECKING:
    from assay.images import ImportedImage

_STATE = click.option("--state", type=click.Path(path_type=Path), metavar="DIR", help="Where images are kept.")
_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON on stdout, and nothing else there.")


@click.group(name="rootfs")
def command() -> None:
    """Images as folders, to grade on without a container engine.

    A task that names a docker_image, or has a Dockerfile, is graded on the folder of its image's name.
    """


@command.command(name="import")
@click.argument("archive", type=click.Path(path_type=Path))
@click.argument("name")
@_STATE
@_JSON
def import_(archive: Path, name: str, state: Path | None, as_json: bool) -> int:
    """Make a folder from the image in ARCHIVE and keep it under NAME, as task.toml writes it.

    ARCHIVE comes from `docker save`, `podman save`, `docker export` or `podman export`, or is an OCI layout. Exit code: 2
    for an archive or a name that cannot be used, 3 when the folder cannot be written.
    """
    from assay.images import import_image
    from assay.workspaces import ArchiveInvalid

    def work(tell: Callable[[str], None]) -> ImportedImage:
        try:
            return import_image(archive, name, _shelf(state), tell=tell)
        except ArchiveInvalid as refused:
            raise click.UsageError(f"{printable(str(archive))}: {refused}") from None

    return _done(lambda: run_blocking(work), lambda image: _print_import(image, as_json))


@command.command(name="list")
@_STATE
@_JSON
def list_(state: Path | None, as_json: bool) -> int:
    """List the images that are here, with where each came from."""
    from assay.images import list_images

    return _done(lambda: list_images(_shelf(state)), lambda images: _print_list(images, as_json))


@command.command(name="rm")
@click.argument("name")
@_STATE
@_JSON
def rm(name: str, state: Path | None, as_json: bool) -> int:
    """Remove the image NAME. One that a verification uses is not removed."""
    from assay.images import remove_image

    def removed(_: None) -> None:
        if as_json:
            print_json({"removed": name})
        else:
            click.echo(f"removed {name}")

    return _done(lambda: remove_image(name, _shelf(state)), removed)


def _done(work: Callable[[], T], show: Callable[[T], None]) -> int:
    from assay.failures import FailureEvent

    try:
        result = work()
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    except FailureEvent as failure:
        click.echo(f"{failure.kind}: {failure.reason}", err=True)
        return 3
    except OSError as error:
        click.echo(f"{error.filename or ''}: {error.strerror}".removeprefix(": "), err=True)
        return 3
    show(result)
    return 0


def _shelf(state: Path | None) -> Path:
    from assay.grading import state_dir

    return state_dir(state) / "rootfs"


def _record(image: ImportedImage) -> dict[str, Any]:
    return {**asdict(image), "folder": str(image.folder)}


def _print_import(image: ImportedImage, as_json: bool) -> None:
    if as_json:
        print_json(_record(image))
        return
    what = counted(len(image.layers), "layer") if image.layers else "a plain root filesystem"
    entries = counted(image.entries, "entry", "entries")
    click.echo(f"imported {image.name}: {what}, {entries}, {image.bytes / 1e6:,.1f} MB")
    click.echo(f"  folder   {printable(str(image.folder))}")
    click.echo(f"  workdir  {printable(image.workdir) if image.workdir else '/app (the image names none)'}")
    if image.dropped_count:
        shown = ", ".join(image.dropped[:5]) + (", …" if image.dropped_count > 5 else "")
        click.echo(f"  dropped  {counted(image.dropped_count, 'device or FIFO', 'devices and FIFOs')}: {shown}")


def _print_list(images: tuple[ImportedImage, ...], as_json: bool) -> None:
    if as_json:
        for image in images:
            print_json(_record(image))
        return
    if not images:
        click.echo("no images; `assay rootfs import ARCHIVE NAME` makes one", err=True)
        return
    from rich.table import Table
    from rich.text import Text

    rows = Table.grid(padding=(0, 2))
    for image in images:
        size = f"{image.bytes / 1e6:,.0f} MB" if image.bytes else ""
        rows.add_row(*map(Text, (image.name, image.format, size, image.workdir or "", image.imported_at[:10])))
    console().print(rows)

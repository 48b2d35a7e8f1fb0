"""Where a run is: the folder `RUN`, which holds its rows and workspaces or says where they are.

| in RUN | is |
|---|---|
| `run.sqlite` | the rows, where no `--store` was given |
| `snapshots/` | the workspaces, where no `--snapshots` was given |
| `places.json` | URLs that were given instead, without a password |
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from assay.answers import Snapshots, Store, StoreUnusable, open_store
from assay.grading.state import state_dir
from assay.runs.settings import RunSettings

_ROWS: Final = "run.sqlite"
_SNAPSHOTS: Final = "snapshots"
_PLACES: Final = "places.json"
_NEW: Final = ".new-"
_SHOWN: Final = 3
"""Entries of a folder that are named."""
_NAMESPACE_MAX: Final = 63
"""PostgreSQL cuts longer names without a word."""
_DIGITS: Final = 16
_PASSWORD: Final = re.compile(r"(://[^/@:]*):[^@/]*@")


@dataclass(frozen=True, slots=True)
class Place:
    """Where the parts of a run are."""

    folder: Path
    store: str
    snapshots: str

    @property
    def namespace(self) -> str:
        """The schema of the run in PostgreSQL: several machines that name their folder alike share a run."""
        name = "run_" + re.sub(r"[^a-z0-9_]+", "_", self.folder.name.lower()).strip("_")
        if len(name) <= _NAMESPACE_MAX:
            return name
        # Cut alone, two long names that begin alike would be one run.
        digest = hashlib.sha256(name.encode()).hexdigest()[:_DIGITS]
        return f"{name[: _NAMESPACE_MAX - _DIGITS - 1]}_{digest}"


@dataclass(frozen=True, slots=True)
class OpenRun:
    """A run that is open: its rows, its workspaces, what it was asked for."""

    place: Place
    store: Store
    snapshots: Snapshots
    settings: RunSettings


def is_run(folder: Path) -> bool:
    """Whether a folder is a run's."""
    return (folder / _ROWS).is_file() or (folder / _PLACES).is_file()


def run_around(file: Path) -> Path | None:
    """The folder of the run that a file is a part of; None for any other."""
    part = file.name == _PLACES or file.name.startswith(_ROWS)
    return file.parent if part and is_run(file.parent) else None


def find_place(folder: Path, *, store: str | None = None, snapshots: str | None = None) -> Place:
    """Where a run's parts are: as given, else as `places.json` says, else in the folder itself.

    Raises `StoreUnusable` for a `places.json` that cannot be read, and for a file in the folder's place.
    """
    folder = folder.expanduser().absolute()
    if folder.is_file():
        whole = run_around(folder)
        raise StoreUnusable(f"{folder}: is a file; give the run's folder{f', {whole}' if whole is not None else ''}")
    noted: dict[str, str] = {}
    try:
        noted = json.loads((folder / _PLACES).read_text("utf-8"))
        if not isinstance(noted, dict) or not all(isinstance(value, str) for value in noted.values()):
            raise StoreUnusable(f"{folder / _PLACES}: must be an object of texts; give --store URL again")
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as error:
        raise StoreUnusable(f"{folder / _PLACES}: cannot be read ({error}); give --store URL again") from None
    rows = store or noted.get("store") or str(folder / _ROWS)
    return Place(folder, rows, snapshots or noted.get("snapshots") or str(folder / _SNAPSHOTS))


def make_place(folder: Path, *, store: str | None = None, snapshots: str | None = None) -> Place:
    """`find_place`, with the folder made and what was given noted in it.

    Raises `StoreUnusable`, also for a folder that holds other things and no run.
    """
    # A later command may be given in another folder.
    store, snapshots = (_absolute(text) if text is not None else None for text in (store, snapshots))
    place = find_place(folder, store=store, snapshots=snapshots)
    try:
        place.folder.mkdir(parents=True, exist_ok=True)
        _refuse_other_things(place.folder)
        if store is not None or snapshots is not None:
            given = {"store": store, "snapshots": snapshots}
            _write(
                place.folder / _PLACES, {name: _PASSWORD.sub(r"\1@", value) for name, value in given.items() if value}
            )
    except OSError as error:
        raise StoreUnusable(f"{place.folder}: cannot be made a run's folder: {error.strerror}") from None
    return place


@contextmanager
def open_run(
    place: Place, *, who: str, state: Path | str | None = None, settings: RunSettings | None = None
) -> Iterator[OpenRun]:
    """Open a run to write to it; with `settings` it is begun if it was not. `who` is the command, for others to be told.

    Raises `StoreUnusable`: it is not there, another command writes to it, a newer Assay wrote it, or (with `settings`) it
    is a run of something else.
    """
    if settings is None and not _is_there(place):
        raise StoreUnusable(
            f"{place.folder}: there is no run; `assay run DATASET --agent … --out {place.folder}` makes one"
        )
    unpacked = state_dir(state) / "unpacked"
    with open_store(place.store, namespace=place.namespace, who=who) as store:
        kept = store.create_run_now(settings.to_json()) if settings is not None else store.run_now()
        if kept is None:
            raise StoreUnusable(f"{place.folder}: the run was never begun; give the `assay run` command again")
        known = RunSettings.from_json(kept.settings)
        if settings is not None and (differences := settings.differs_from(known)):
            raise StoreUnusable(
                f"{place.folder}: is a run of something else ({'; '.join(differences)}); give another --out, or go on with "
                f"`assay resume {place.folder}`"
            )
        if settings is not None:
            # How many, and how they are graded, is for each command to say.
            known = replace(known, rollouts=settings.rollouts, grading=settings.grading)
        yield OpenRun(place, store, Snapshots(place.snapshots, unpacked=unpacked), known)


@contextmanager
def read_run(place: Place) -> Iterator[Store]:
    """Open a run's rows to read them, also while another command writes. Raises `StoreUnusable`."""
    if not _is_there(place):
        raise StoreUnusable(
            f"{place.folder}: there is no run; `assay run DATASET --agent … --out {place.folder}` makes one"
        )
    with open_store(place.store, namespace=place.namespace, writing=False) as store:
        yield store


def _refuse_other_things(folder: Path) -> None:
    """A run that was stopped while its folder was made has left parts of one."""
    names = sorted(path.name for path in folder.iterdir())
    others = [name for name in names if not name.startswith((_ROWS, _NEW)) and name != _SNAPSHOTS]
    if others and not is_run(folder):
        more = f" and {len(others) - _SHOWN} more" if len(others) > _SHOWN else ""
        raise StoreUnusable(
            f"{folder}: holds {', '.join(others[:_SHOWN])}{more} and no run; give --out a folder that is new or empty"
        )


def _is_there(place: Place) -> bool:
    return "://" in place.store or Path(place.store).is_file()


def _absolute(text: str) -> str:
    return text if "://" in text or "::" in text else str(Path(text).expanduser().absolute())


def _write(path: Path, record: dict[str, str]) -> None:
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=_NEW)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        json.dump(record, file)
        file.flush()
        os.fsync(file.fileno())
    Path(name).replace(path)

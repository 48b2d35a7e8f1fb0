"""What people give the commands of many answers by mistake: said at the start, with what to give instead, and nothing is made."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
import pytest

import commands
from assay.cli.main import cli
from commands import Ended, make_task

GRADING = "def verify(workspace):\n    return float((workspace / 'answer.txt').exists())\n"
AGENT = ["--agent", "command", "--command", "touch answer.txt", "--sandbox", "process", "--no-control"]


class Place:
    """A dataset of two tasks, a run of it, and words by which commands name them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("one", "two"):
            make_task(folder / "data" / name, GRADING)
        (folder / "empty").mkdir()
        assert self.done("run", "DATA", *AGENT, "--out", "RUN").code == 0

    def done(self, *words: str) -> Ended:
        return commands.inline(*self.named(words), state=self.folder / "state", cwd=self.folder)

    def named(self, words: tuple[str, ...]) -> list[str]:
        names = {"DATA": "data", "RUN": "run", "NEW": "new", "EMPTY": "empty"}
        return [str(self.folder / names[word]) if word in names else word for word in words]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    made = Place(tmp_path_factory.mktemp("mistakes"))
    before = sorted(made.folder.iterdir())
    yield made
    assert sorted(made.folder.iterdir()) == before, "something was made by mistake"


def said(done: Ended) -> str:
    """What was told as wrong usage, on one line."""
    assert done.code == 2, done
    assert done.stdout == "", done
    return " ".join(done.stderr.split())


def having(option: str) -> set[str]:
    """The commands that take an option."""
    found = {name: cli.get_command(click.Context(cli), name) for name in cli.list_commands(click.Context(cli))}
    return {name for name, one in found.items() if one is not None and any(option in p.opts for p in one.params)}


ON_ROOTFS = {
    "run": ("run", "DATA", *AGENT, "--out", "NEW"),
    "resume": ("resume", "RUN"),
    "recover": ("recover", "RUN"),
    "regrade": ("regrade", "RUN"),
    "serve": ("serve", "DATA", "--port", "0"),
}
EACH_ITSELF = {"verify", "check"}
"""They grade one answer, or say of each task what is wrong."""


@pytest.mark.parametrize("given", ["/nope", "no-such-image:1", "EMPTY"])
@pytest.mark.parametrize("command", sorted(ON_ROOTFS))
def test_a_root_filesystem_that_is_none_is_found_at_the_start(place: Place, command: str, given: str) -> None:
    assert set(ON_ROOTFS) | EACH_ITSELF == having("--rootfs")
    task = str(place.folder / "data" / "one")
    verdict = place.done("verify", task, "--workspace", task, "--rootfs", given, "--json").record
    assert verdict["failure"]["kind"] == "assay:image_missing"
    words = place.named((*ON_ROOTFS[command], "--rootfs", given))
    # A server that found nothing wrong would serve until somebody ends it.
    done = commands.apart(*words, state=place.folder / "state") if command == "serve" else place.done(*words)
    assert " ".join(verdict["failure"]["reason"].split()) in said(done)


ON_TASKS = {
    "regrade": ("regrade", "RUN"),
    "report": ("report", "RUN"),
    "compare": ("compare", "RUN", "RUN"),
    "export": ("export", "RUN", "--out", "NEW"),
}


@pytest.mark.parametrize("glob", ["three", "o?", "[!a-z]*", ""])
@pytest.mark.parametrize("command", sorted(ON_TASKS))
def test_a_pattern_that_fits_no_task_is_no_empty_run(place: Place, command: str, glob: str) -> None:
    assert set(ON_TASKS) == having("--task")
    told = said(place.done(*ON_TASKS[command], "--task", glob))
    assert repr(glob) in told
    assert "there are one, two" in told


def test_a_pattern_has_to_fit_in_one_of_two_runs(place: Place, tmp_path: Path) -> None:
    make_task(tmp_path / "data" / "three", GRADING)
    other = str(tmp_path / "other")
    assert place.done("run", str(tmp_path / "data"), *AGENT, "--out", other).code == 0
    assert place.done("compare", "RUN", other, "--task", "thr*").code == 0
    assert "there are one, three, two" in said(place.done("compare", "RUN", other, "--task", "x"))


def test_that_nothing_failed_is_no_mistake(place: Place) -> None:
    done = place.done("report", "RUN", "--where", "status=failed", "--json")
    assert (done.code, done.record["planned"]) == (0, 0)


IN_PLACE_OF_A_RUN = {
    "status": ("status", "FILE"),
    "report": ("report", "FILE"),
    "export": ("export", "FILE"),
    "compare": ("compare", "RUN", "FILE"),
    "resume": ("resume", "FILE"),
    "recover": ("recover", "FILE"),
    "regrade": ("regrade", "FILE"),
    "run": ("run", "DATA", *AGENT, "--out", "FILE"),
    "replay": ("run", "DATA", "--agent", "replay", "--from", "FILE", "--out", "ELSEWHERE"),
}


@pytest.mark.parametrize("command", sorted(IN_PLACE_OF_A_RUN))
def test_a_file_of_a_run_in_place_of_its_folder(place: Place, tmp_path: Path, command: str) -> None:
    given = {"FILE": str(place.folder / "run" / "run.sqlite"), "ELSEWHERE": str(tmp_path / "elsewhere")}
    words = [given.get(word, word) for word in IN_PLACE_OF_A_RUN[command]]
    assert f"folder, {place.folder / 'run'}" in said(place.done(*words))


def test_any_other_file_in_place_of_a_runs_folder(place: Place, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    assert "is a file; give the run's folder" in said(place.done("status", str(tmp_path / "file")))


HOLDS = {
    "a file": ["notes.txt"],
    "a dataset": ["task.toml", "tests/verifier.py"],
    "much": ["a", "b", "c", "d", "e"],
    "an export": ["rollouts.jsonl", "rollouts_failures.jsonl"],
}


@pytest.mark.parametrize("what", HOLDS)
def test_a_run_is_begun_in_no_folder_that_holds_other_things(place: Place, tmp_path: Path, what: str) -> None:
    for name in HOLDS[what]:
        (tmp_path / "out" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "out" / name).write_text("")
    before = sorted(tmp_path.rglob("*"))
    told = said(place.done("run", "DATA", *AGENT, "--out", str(tmp_path / "out")))
    assert "no run; give --out a folder that is new or empty" in told
    assert HOLDS[what][0].partition("/")[0] in told
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("left", [[], ["run.sqlite.lock"], [".new-x", "snapshots"]], ids=str)
def test_a_run_that_was_stopped_while_its_folder_was_made_is_begun_again(
    place: Place, tmp_path: Path, left: list[str]
) -> None:
    (tmp_path / "out").mkdir()
    for name in left:
        (tmp_path / "out" / name).mkdir() if name == "snapshots" else (tmp_path / "out" / name).write_text("")
    assert place.done("run", "DATA", *AGENT, "--out", str(tmp_path / "out")).code == 0

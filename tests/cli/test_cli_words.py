"""What commands print for people: one of a thing is said as one, and a bin of a histogram is named by what it takes in."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import assay.cli
import commands
from assay.answers import Histogram
from assay.cli.output import counted
from assay.cli.report import _bars
from commands import make_task

SOURCES = sorted(Path(assay.cli.__file__).parent.glob("*.py"))
OF_ONE = re.compile(
    r"(?<![\d.,])1 (?:\w+ )?(?:\w+s|\w+ies|devices and FIFOs)\b(?! (?:is|was)\b)|(?<![\d.,])1 \w+ are\b"
)
NO_NOUN = {"less", "is", "was", "this", "unless", "as", "bytes", "s"}
"""Words with an s at their end that are none, or no count of one: bytes and seconds are told by the thousand."""


@pytest.mark.parametrize(
    ("number", "words", "expected"),
    [
        (0, ("row",), "0 rows"),
        (1, ("row",), "1 row"),
        (2, ("row",), "2 rows"),
        (1, ("entry", "entries"), "1 entry"),
        (12345, ("entry", "entries"), "12,345 entries"),
    ],
)
def test_a_number_and_what_is_counted(number: int, words: tuple[str, ...], expected: str) -> None:
    assert counted(number, *words) == expected


def plurals_after_values(source: str) -> list[str]:
    """Words of f-strings that follow a value and look like what it counts: `{number} rows`, `{number} more rows`."""
    found = []
    for text in (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.JoinedStr)):
        for value, after in zip(text.values, text.values[1:], strict=False):
            if isinstance(value, ast.FormattedValue) and isinstance(after, ast.Constant):
                match = re.match(r" (?:more |graded |masked |failed )?(\w+s)\b", str(after.value))
                if match and match[1] not in NO_NOUN and "of" not in str(after.value).split()[:2]:
                    found.append(f"{ast.unparse(value.value)}{after.value}")
    return found


@pytest.mark.parametrize("file", SOURCES, ids=lambda path: path.name)
def test_nothing_is_counted_without_the_helper(file: Path) -> None:
    assert plurals_after_values(file.read_text(encoding="utf-8")) == []


def test_what_is_counted_without_the_helper_is_found() -> None:
    assert plurals_after_values('f"{a} rows, {len(b)} more tasks: {c} s, {d}"') == ["a rows, ", "len(b) more tasks: "]


def test_one_row_of_one_task_is_told_as_one(tmp_path: Path) -> None:
    grades = "def verify(workspace):\n    return {'reward': float((workspace / 'a').exists()), 'speed': 2}\n"
    make_task(tmp_path / "data" / "one", grades)
    (tmp_path / "data" / "two").mkdir()
    (tmp_path / "data" / "two" / "task.toml").write_text("x = 1\n")
    agent = ["--agent", "command", "--sandbox", "process", "--no-control", "--command"]
    said = []
    for words in (
        ("run", tmp_path / "data", *agent, "touch b", "--out", tmp_path / "a"),
        ("run", tmp_path / "data", *agent, "touch a", "--out", tmp_path / "b"),
        ("regrade", tmp_path / "a"),
        ("report", tmp_path / "a"),
        ("status", tmp_path / "a"),
        ("export", tmp_path / "a"),
        ("compare", tmp_path / "a", tmp_path / "b"),
        ("lint", tmp_path / "data" / "one"),
    ):
        done = commands.inline(*words, state=tmp_path / "state")
        said.append(done.stdout + done.stderr)
    text = "\n".join(said)
    for wanted in (
        "1 graded row of 2",
        "1 row is not in the mean",
        "over 1 row",
        "1 zero is of a verifier that was",
        "1 warning",
    ):
        assert wanted in text
    wrong = [found[0] for found in OF_ONE.finditer(text) if not set(found[0].split()) & NO_NOUN]
    assert wrong == [], text


@pytest.mark.parametrize(
    ("low", "high", "first", "last"),
    [
        (0.0, 1.0, "[0, 0.1)", "[0.9, 1]"),
        (-1.0, 1.0, "[-1, -0.8)", "[0.8, 1]"),
        (0.0, 2.0, "[0, 0.2)", "[1.8, 2]"),
        (0.99999, 1.0, "[0.99999, 0.999991)", "[0.999999, 1]"),
        (0.0, 1e-9, "[0, 1e-10)", "[9e-10, 1e-09]"),
    ],
)
def test_a_bin_is_named_by_the_rewards_that_it_takes_in(low: float, high: float, first: str, last: str) -> None:
    names = [line.rpartition("  ")[0].strip() for line in _bars(Histogram(low, high, tuple(range(10))))]
    assert (names[0], names[-1]) == (first, last)
    assert len(set(names)) == 10
    # Each begins where the one before ends.
    bounds = [name.strip("[]()").split(", ") for name in names]
    assert [end for _, end in bounds[:-1]] == [begin for begin, _ in bounds[1:]]


def test_one_reward_alone_is_a_bin_of_its_own() -> None:
    assert [line.split() for line in _bars(Histogram(1.0, 1.0, (4,)))] == [["1", "█" * 40, "4"]]

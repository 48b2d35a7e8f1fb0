"""The files that travel: which, the same every time, and in the language of Python 3.8."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

import assay.verifiers
from assay.verifiers import vendored
from assay.verifiers.vendored import vendored_files

ROOM = Path(vendored.__file__).parent
PYTHON_FILES = sorted(vendored_files())

# Names of the standard library that came after 3.8, and that one is used to.
NEWER = re.compile(
    r"\b(removeprefix|removesuffix|is_relative_to|readlink\(\)|hardlink_to|orig_argv|stdlib_module_names|"
    r"to_thread|TaskGroup|timeout_at|Runner|zoneinfo|graphlib|tomllib|pairwise|batched|bit_count|StrEnum|"
    r"functools\.cache|cached_property|aclosing|chdir\(|strict=|slots=|kw_only|match_hostname|anext|aiter|"
    r"waitstatus_to_exitcode|pidfd_open|get_annotations|set_int_max_str_digits|randbytes|nullcontext\(\)\.)"
)


def test_what_travels() -> None:
    assert PYTHON_FILES == [
        "assay/__init__.py",
        "assay/verifiers/__init__.py",
        "assay/verifiers/alone.py",
        "assay/verifiers/asking.py",
        "assay/verifiers/calling.py",
        "assay/verifiers/checks.py",
        "assay/verifiers/delivery.py",
        "assay/verifiers/errors.py",
        "assay/verifiers/files.py",
        "assay/verifiers/functions.py",
        "assay/verifiers/imports.py",
        "assay/verifiers/judging.py",
        "assay/verifiers/rewards.py",
        "assay/verifiers/submission.py",
        "nemo_gym/__init__.py",
        "nemo_gym/verifiers/__init__.py",
        "run_verifier.py",
    ]
    files = vendored_files()
    assert files["run_verifier.py"] == (ROOM / "runner.py").read_bytes()
    assert files["assay/__init__.py"] == b""
    for path in PYTHON_FILES:
        if path.startswith("assay/verifiers/"):
            assert files[path] == (ROOM / Path(path).name).read_bytes()


def test_every_file_of_the_room_travels_or_makes_the_others_travel() -> None:
    travelling = {Path(path).name for path in PYTHON_FILES if path.startswith("assay/verifiers/")}
    assert {path.name for path in ROOM.glob("*.py")} == travelling | {"compiled.py", "runner.py", "vendored.py"}


def test_the_version_changes_with_any_file(monkeypatch: pytest.MonkeyPatch) -> None:
    files = vendored_files()
    versions = {vendored.RUNNER_VERSION}
    for path in files:
        monkeypatch.setattr(vendored, "vendored_files", lambda path=path: {**files, path: files[path] + b"\n"})
        versions.add(vendored.__getattr__("RUNNER_VERSION"))
    monkeypatch.setattr(vendored, "vendored_files", lambda: files)
    assert vendored.__getattr__("RUNNER_VERSION") in versions
    assert len(versions) == len(files) + 1
    assert all(re.fullmatch("sha256:[0-9a-f]{64}", version) for version in versions)
    with pytest.raises(AttributeError, match="no attribute 'VERSION'"):
        vendored.__getattr__("VERSION")


@pytest.mark.parametrize("path", [*PYTHON_FILES, "compiled.py", "vendored.py"])
def test_the_grammar_is_that_of_3_8(path: str) -> None:
    source = vendored_files().get(path)
    source = source if source is not None else (ROOM / path).read_bytes()
    ast.parse(source, path, feature_version=(3, 8))
    assert not NEWER.search(source.decode())


@pytest.mark.parametrize("path", PYTHON_FILES)
def test_annotations_are_not_evaluated(path: str) -> None:
    """`str | None` and `list[int]` are spelled freely where nothing evaluates them: in quotes, or with the import."""
    tree = ast.parse(vendored_files()[path])
    postponed = any(isinstance(node, ast.ImportFrom) and node.module == "__future__" for node in tree.body)
    for node in ast.walk(tree):
        given = [getattr(node, "annotation", None), getattr(node, "returns", None)]
        for annotation in given if not postponed else []:
            assert annotation is None or isinstance(annotation, ast.Constant | ast.Name), ast.unparse(annotation)


@pytest.mark.parametrize(
    "path", ["run_verifier.py", *(f"assay/verifiers/{n}.py" for n in ("calling", "delivery", "imports", "rewards"))]
)
def test_what_runs_before_the_path_is_clean_imports_nothing_of_ours_or_planted(path: str) -> None:
    for node in ast.walk(ast.parse(vendored_files()[path])):
        if isinstance(node, ast.ImportFrom):
            assert node.module != "__future__"


def test_every_file_compiles_under_every_interpreter(every_python: Any, tmp_path: Path) -> None:
    for path, content in vendored_files().items():
        target = tmp_path / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    program = (
        "import sys, warnings; warnings.simplefilter('error')\n"
        "for path in sys.argv[1:]:\n  with open(path, 'rb') as opened: compile(opened.read(), path, 'exec')\n"
        "sys.path.insert(0, '.'); import assay.verifiers, nemo_gym.verifiers\n"
        "assert nemo_gym.verifiers.__all__ is assay.verifiers.__all__\n"
        "assert nemo_gym.verifiers.CannotGrade is assay.verifiers.CannotGrade\n"
    )
    ended = subprocess.run(
        [every_python.path, "-I", "-S", "-B", "-c", program, *PYTHON_FILES], cwd=tmp_path, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert (ended.returncode, ended.stderr) == (0, "")


def test_the_exported_names_are_sorted_and_there() -> None:
    names = assay.verifiers.__all__
    assert names == sorted(names)
    assert all(getattr(assay.verifiers, name).__module__.startswith("assay.verifiers.") for name in names)


def test_the_helpers_behave_the_same_in_the_oldest_and_the_newest(bench: Any, every_python: Any) -> None:
    (bench.workspace / "answer.txt").write_text("42\n")
    (bench.workspace / "answer.json").write_text('{"n": 42, "f": 0.5}')
    (bench.workspace / "long.json").write_text("1" * 100_000)
    (bench.workspace / "nan.json").write_text("NaN")
    (bench.workspace / "deep.json").write_text("[" * 200_000)
    (bench.workspace / "link").symlink_to("answer.txt")
    source = (
        "from nemo_gym.verifiers import *\n"
        "def verify(workspace):\n"
        "  for name in ('long.json', 'nan.json', 'deep.json', 'none'):\n"
        "    assert read_json(workspace, name, 'bad') == 'bad', name\n"
        "  assert read_json(workspace, 'answer.json') == {'n': 42, 'f': 0.5}\n"
        "  for path in ('link', '../app/answer.txt', str(workspace / 'answer.txt')):\n"
        "    assert not file_exists(workspace, path)\n"
        "  assert file_exists(str(workspace), 'answer.txt') and read_text(workspace, 'answer.txt') == '42'\n"
        "  return check('equal', text_file_equals(workspace, 'answer.txt', '42'))\n"
    )
    ended = bench.run(every_python, source)
    assert (ended.code, ended.rewards.get("reward.txt")) == (0, "1.0\n"), ended.stderr

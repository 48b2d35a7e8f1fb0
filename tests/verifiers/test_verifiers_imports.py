"""What a verification imports: the vendored helpers, the author's listed files, the standard library, and nothing planted."""

from __future__ import annotations

import json
import os
import py_compile
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from assay.verifiers import imports

PLANTED = "raise SystemExit('planted')\n"
TAKES_STANDARD = (
    "import json, csv, asyncio, inspect, decimal\n"
    "def verify():\n"
    "  folder = __file__.rpartition('/')[0]\n"
    "  return not [m for m in (json, csv, asyncio, inspect, decimal) if m.__file__.startswith(folder)]\n"
)


def byte_code(folder: Path, python: Any, source: str) -> bytes:
    """What `python` compiles `source` to, as a file that it imports."""
    import subprocess

    (folder / "planted_source.py").write_text(source)
    compiled = folder / "planted_source.pyc"
    subprocess.run(
        [python.path, "-c", "import py_compile, sys; py_compile.compile(sys.argv[1], sys.argv[2], doraise=True)",
         folder / "planted_source.py", compiled],
        check=True,
    )  # fmt: skip
    return compiled.read_bytes()


STANDARD = ("json", "os", "posix", "__future__", "csv", "asyncio", "inspect", "traceback", "pathlib")
FORMS = [
    *((name, "module", where) for name in STANDARD for where in ("", ".ng/")),
    *((name, form, "") for name in ("json", "csv") for form in ("package", "namespace", "byte-code", "extension")),
    *(("json", form, ".ng/") for form in ("package", "byte-code", "extension")),
]


@pytest.mark.parametrize(("name", "form", "where"), FORMS)
def test_a_planted_module_is_as_if_it_did_not_exist(
    bench: Any, python: Any, tmp_path: Path, name: str, form: str, where: str
) -> None:
    bench.verifier.write_text(TAKES_STANDARD)
    bench.list_files()
    if form == "module":
        bench.write(f"{where}{name}.py", PLANTED)
    elif form == "package":
        bench.write(f"{where}{name}/__init__.py", PLANTED)
    elif form == "namespace":
        bench.write(f"{where}{name}/part.py", PLANTED)
    elif form == "byte-code":
        bench.write(f"{where}{name}.pyc", byte_code(tmp_path, python, PLANTED))
    else:
        bench.write(f"{where}{name}.so", b"\x7fELF planted")
    ended = bench.run(python)
    assert (ended.code, ended.rewards) == (0, {"reward.txt": "1.0\n"}), ended.stderr


def test_planted_start_up_modules_under_every_interpreter(bench: Any, every_python: Any) -> None:
    bench.verifier.write_text(TAKES_STANDARD)
    bench.list_files()
    for name in ("os", "json", "__future__", "re", "enum", "_sha2", "_json", "genericpath", "typing"):
        bench.write(f".ng/{name}.py", PLANTED)
        bench.write(f"{name}.py", PLANTED)
    for flags in ([], ["-I"], ["-S"]):
        ended = bench.run(every_python, flags=flags)
        assert (ended.code, ended.rewards) == (0, {"reward.txt": "1.0\n"}), ended.stderr


def test_without_a_manifest_the_runners_own_imports_are_clean_all_the_same(bench: Any, python: Any) -> None:
    bench.write(".ng/json.py", PLANTED)
    bench.write("os.py", PLANTED)
    for flags in ([], ["-S"]):
        ended = bench.run(python, "def verify(): return 1", listed=False, flags=flags)
        assert (ended.code, ended.rewards) == (0, {"reward.txt": "1.0\n"}), ended.stderr


def test_the_authors_own_files_are_imported(bench: Any, python: Any, tmp_path: Path) -> None:
    bench.write("helper.py", "VALUE = 1")
    bench.write("package/__init__.py", "from .inner import VALUE")
    bench.write("package/inner.py", "VALUE = 1")
    bench.write("spread/part.py", "VALUE = 1")
    bench.write("compiled.pyc", byte_code(tmp_path, python, "VALUE = 1"))
    with zipfile.ZipFile(bench.tests / "archive.zip", "w") as archive:
        archive.writestr("zipped.py", "VALUE = 1")
        archive.writestr("deep/inside.py", "VALUE = 1")
    source = (
        "import importlib.util, inspect, pathlib, pkgutil, sys\n"
        "here = pathlib.Path(__file__).parent\n"
        "sys.path[:0] = [str(here / 'archive.zip'), str(here / 'archive.zip' / 'deep')]\n"
        "import helper, package, package.inner, spread.part, compiled, zipped, inside, verifier\n"
        "def verify():\n"
        "  modules = (helper, package, package.inner, spread.part, compiled, zipped, inside)\n"
        "  assert inspect.getsource(helper).strip() == 'VALUE = 1'\n"
        "  assert [m.name for m in pkgutil.iter_modules(package.__path__)] == ['inner']\n"
        "  assert verifier.verify is verify\n"
        "  return sum(m.VALUE for m in modules)\n"
    )
    ended = bench.run(python, source)
    assert (ended.code, ended.rewards) == (0, {"reward.txt": "7.0\n"}), ended.stderr
    assert not list(bench.tests.rglob("__pycache__"))


@pytest.mark.parametrize(
    "imported", ["altered", "gone", "unlisted", "folder.unlisted", "linked.module", "zipped", "bare_folder"]
)
def test_what_is_not_as_it_was_laid_is_not_imported_and_named(bench: Any, python: Any, imported: str) -> None:
    bench.write("altered.py", "VALUE = 1")
    bench.write("gone.py", "VALUE = 1")
    bench.write("folder/__init__.py", "")
    bench.write("linked/module.py", "VALUE = 1")
    with zipfile.ZipFile(bench.tests / "archive.zip", "w") as archive:
        archive.writestr("zipped.py", "VALUE = 1")
    bench.verifier.write_text(
        f"import sys\nsys.path.insert(0, {str(bench.tests / 'archive.zip')!r})\nimport {imported}"
    )
    bench.list_files()
    bench.write("altered.py", "VALUE = 2")
    (bench.tests / "gone.py").unlink()
    bench.write("unlisted.py", "VALUE = 1")
    bench.write("folder/unlisted.py", "VALUE = 1")
    (bench.tests / "bare_folder").mkdir()
    (bench.tests / "linked" / "module.py").unlink()
    (bench.tests / "linked").rmdir()
    (bench.workspace / "module.py").write_text("VALUE = 2")
    (bench.tests / "linked").symlink_to(bench.workspace)
    with zipfile.ZipFile(bench.tests / "archive.zip", "w") as archive:
        archive.writestr("zipped.py", "VALUE = 2")
    ended = bench.run(python)
    assert (ended.code, ended.rewards) == (2, {})
    assert f"No module named '{imported}'" in ended.last_line
    named = {"altered": "altered.py", "unlisted": "unlisted.py", "folder.unlisted": "folder/unlisted.py",
             "zipped": "archive.zip", "linked.module": "linked/module.py", "bare_folder": "bare_folder"}  # fmt: skip
    if imported in named:
        passed_over = ended.last_line.partition("so never imported: ")[2].partition(")")[0].split(", ")
        assert set(passed_over) == {"archive.zip", named[imported]}


def test_a_planted_initialiser_does_not_take_over_a_folder_of_modules(bench: Any, python: Any) -> None:
    bench.write("spread/part.py", "VALUE = 1")
    bench.verifier.write_text("import spread.part\ndef verify(): return spread.part.VALUE")
    bench.list_files()
    bench.write("spread/__init__.py", PLANTED)
    assert bench.run(python).rewards == {"reward.txt": "1.0\n"}


@pytest.mark.parametrize("loaded", ["imported", "by path"])
def test_planted_byte_code_is_not_read(bench: Any, python: Any, tmp_path: Path, loaded: str) -> None:
    bench.write("helper.py", "VALUE = 1 # it is an honest one")
    how = "import helper\n"
    if loaded == "by path":
        how = (
            "import importlib.util as u, pathlib\n"
            "spec = u.spec_from_file_location('helper', pathlib.Path(__file__).with_name('helper.py'))\n"
            "helper = u.module_from_spec(spec)\nspec.loader.exec_module(helper)\n"
        )
    bench.verifier.write_text(how + "def verify(): return helper.VALUE")
    bench.list_files()
    compiled = bytearray(byte_code(tmp_path, python, "VALUE = 2 # it is a planted one"))
    status = (bench.tests / "helper.py").stat()
    compiled[8:16] = int(status.st_mtime).to_bytes(4, "little") + status.st_size.to_bytes(4, "little")
    tag = f"cpython-{python.version[0]}{python.version[1]}"
    bench.write(f"__pycache__/helper.{tag}.pyc", bytes(compiled))
    honest = bench.run(python)
    assert honest.rewards == {"reward.txt": "1.0\n"}, honest.stderr
    assert [path.name for path in (bench.tests / "__pycache__").iterdir()] == [f"helper.{tag}.pyc"]


@pytest.mark.parametrize(
    ("python_path", "flags"),
    [
        *((place, []) for place in ("", "tests", "workspace", "elsewhere", "relative")),
        *(("elsewhere", [flag]) for flag in ("-I", "-S", "-s")),
        ("tests", ["-S"]),
        ("", ["-I"]),
    ],
)
def test_the_helpers_are_always_the_vendored_ones(
    bench: Any, python: Any, tmp_path: Path, python_path: str, flags: list[str]
) -> None:
    places = {"": "", "tests": bench.tests, "workspace": bench.workspace, "elsewhere": tmp_path / "e", "relative": "."}
    for folder in (bench.tests, bench.workspace, tmp_path / "e"):
        for package in ("assay", "nemo_gym"):
            (folder / package / "verifiers").mkdir(parents=True)
            (folder / package / "__init__.py").write_text("")
            (folder / package / "verifiers" / "__init__.py").write_text("def read_text(*_): return 'forged'\n")
    (tmp_path / "e" / "json.py").write_text(PLANTED)
    (tmp_path / "e" / "library.py").write_text("VALUE = 1")
    (bench.workspace / "a").write_text("honest\n")
    source = (
        "import assay, nemo_gym, sys\n"
        "from assay.verifiers import read_text\nfrom nemo_gym.verifiers import read_text as same\nimport json\n"
        f"library = __import__('library').VALUE if {python_path == 'elsewhere' and '-I' not in flags} else 1\n"
        "def verify(workspace):\n"
        "  assert read_text is same and read_text(workspace, 'a') == 'honest'\n"
        "  assert all(m.__file__.startswith(sys.path[0] + '/') for m in (assay, nemo_gym)), sys.path\n"
        "  assert not [p for p in sys.path if p.startswith(str(workspace)) or not p.startswith('/')], sys.path\n"
        "  return library\n"
    )
    env = {"PYTHONPATH": str(places[python_path])} if python_path else {}
    ended = bench.run(python, source, flags=flags, env=env, listed=flags != ["-s"])
    assert (ended.code, ended.rewards) == (0, {"reward.txt": "1.0\n"}), ended.stderr


def test_a_start_up_hook_that_has_imported_the_names_is_undone(bench: Any, every_python: Any, tmp_path: Path) -> None:
    (tmp_path / "assay" / "verifiers").mkdir(parents=True)
    (tmp_path / "assay" / "verifiers" / "__init__.py").write_text("def read_text(*_): return 'forged'\n")
    (tmp_path / "nemo_gym").mkdir()
    (tmp_path / "sitecustomize.py").write_text(
        "import sys, assay.verifiers, nemo_gym\n"
        "class Finder:\n"
        "  def find_spec(self, name, path=None, target=None):\n"
        "    if name.startswith('assay'): raise ImportError('taken over')\n"
        "sys.meta_path.insert(0, Finder())\n"
    )
    (bench.workspace / "a").write_text("honest\n")
    source = (
        "from nemo_gym.verifiers import read_text\ndef verify(workspace): return read_text(workspace, 'a') == 'honest'"
    )
    ended = bench.run(every_python, source, env={"PYTHONPATH": str(tmp_path)})
    assert (ended.code, ended.rewards) == (0, {"reward.txt": "1.0\n"}), ended.stderr


def test_nothing_comes_from_the_workspace_or_the_current_directory(bench: Any, python: Any, tmp_path: Path) -> None:
    (bench.workspace / "lib").mkdir()
    for folder in (bench.workspace, bench.workspace / "lib", tmp_path):
        (folder / "of_the_agent.py").write_text(PLANTED)
    path = os.pathsep.join(map(str, [bench.workspace, bench.workspace / "lib", "lib", tmp_path, ""]))
    ended = bench.run(python, "import of_the_agent", env={"PYTHONPATH": path}, cwd=tmp_path)
    assert ended.code == 2
    assert "No module named 'of_the_agent'" in ended.last_line


def test_the_order_of_the_path(bench: Any, python: Any, tmp_path: Path) -> None:
    """The runner's folder, the verifier's, the tests folder, the standard library, then what the image adds."""
    bench.verifier = bench.write("sub/verifier.py", "")
    source = "import sys\ndef verify(): raise ValueError('|'.join(sys.path))"
    path = os.pathsep.join(map(str, [bench.tests, bench.tests / "sub", bench.tests / ".ng", tmp_path]))
    ended = bench.run(python, source, env={"PYTHONPATH": path})
    found = ended.messages[0]["raised"].partition(": ")[2].split("|")
    assert found[:3] == [str(bench.tests / ".ng"), str(bench.tests / "sub"), str(bench.tests)]
    assert len(found) == len(set(found))
    standard = next(index for index, entry in enumerate(found) if entry.endswith("lib-dynload"))
    assert standard < found.index(str(tmp_path))


@pytest.mark.parametrize("workspace", ["/", "prefix"])
def test_an_interpreter_inside_the_workspace_still_works(bench: Any, python: Any, workspace: str) -> None:
    bench.workspace = Path("/" if workspace == "/" else Path(python.path).parents[1])
    ended = bench.run(python, "import csv, decimal\ndef verify(): return 1", cwd=bench.root)
    assert (ended.code, ended.rewards) == (0, {"reward.txt": "1.0\n"}), ended.stderr


def test_the_verifier_itself_must_be_the_one_that_was_laid(bench: Any, python: Any) -> None:
    bench.verifier.write_text("def verify(): return 0")
    bench.list_files()
    bench.verifier.write_text("def verify(): return 1")
    ended = bench.run(python)
    assert (ended.code, ended.rewards) == (2, {})
    assert "is not the file that the shim laid" in ended.last_line


def test_task_data_must_be_what_was_laid(bench: Any, python: Any) -> None:
    data = bench.write(".ng/task_data.json", '{"expected": 1}')
    bench.verifier.write_text("def verify(task_data): return task_data['expected']")
    bench.list_files()
    data.write_text('{"expected": 2}')
    ended = bench.run(python, options=["--task-data", str(data)])
    assert (ended.code, ended.rewards) == (2, {})
    assert "is not the file that the shim laid" in ended.last_line


@pytest.mark.parametrize("content", ["", "[]", '{"files": []}', '{"files": {"a": 1}}', "{", "FIFO"])
def test_a_manifest_that_cannot_be_used_is_no_free_pass(bench: Any, python: Any, content: str) -> None:
    bench.verifier.write_text("def verify(): return 1")
    if content == "FIFO":
        os.mkfifo(bench.tests / ".ng" / "manifest.json")
    else:
        bench.write(".ng/manifest.json", content)
    ended = bench.run(python)
    assert (ended.code, ended.rewards) == (2, {})
    assert "manifest.json cannot be used" in ended.last_line


def test_a_tests_folder_behind_a_link(bench: Any, python: Any) -> None:
    bench.write("helper.py", "VALUE = 1")
    bench.verifier.write_text("import json, helper\ndef verify(): return helper.VALUE")
    bench.list_files()
    bench.write("json.py", PLANTED)
    (bench.root / "link").symlink_to(bench.tests)
    bench.tests = bench.root / "link"
    for verifier in (bench.tests / "verifier.py", bench.verifier):
        bench.verifier = verifier
        ended = bench.run(python)
        assert (ended.code, ended.rewards) == (0, {"reward.txt": "1.0\n"}), ended.stderr


def test_a_verifier_with_the_name_of_a_standard_module(bench: Any, python: Any) -> None:
    bench.verifier = bench.tests / "json.py"
    ended = bench.run(python, "import decimal\ndef verify(): return 1")
    assert (ended.code, ended.rewards) == (0, {"reward.txt": "1.0\n"}), ended.stderr


def test_only_what_is_needed_is_imported(bench: Any, python: Any) -> None:
    """A plain verifier starts without the modules that take long to load."""
    source = (
        "import sys\ndef verify(workspace, task_data):\n"
        "  slow = {'asyncio', 'inspect', 'argparse', 'hashlib', 'typing', 'socket', 'subprocess', 'traceback', 'shutil'}\n"
        "  raise ValueError(sorted(slow & set(sys.modules)))"
    )
    assert bench.run(python, source, flags=["-S"]).messages == [{"raised": "ValueError: []"}]


def test_in_process_the_host_keeps_its_modules(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import assay
    from assay.verifiers import runner

    monkeypatch.setattr(sys, "path", list(sys.path))
    hooks, finders = list(sys.path_hooks), list(sys.meta_path)
    bench.verifier.write_text("def verify(workspace): return 0.5")
    monkeypatch.setattr(sys, "modules", sys.modules)
    code = runner.main(
        ["--verifier", str(bench.verifier), "--workspace", str(bench.workspace), "--reward-dir", str(bench.rewards)]
    )
    sys.modules.pop("verifier")
    assert code == 0
    assert (bench.rewards / "reward.txt").read_text() == "0.5\n"
    assert (sys.path_hooks, sys.meta_path, sys.modules["assay"]) == (hooks, finders, assay)
    assert sys.path[0] == str(bench.tests)


def test_byte_code_helper_makes_what_the_interpreter_imports(tmp_path: Path) -> None:
    """The planted byte-code above would run if it were imported: this one does."""
    (tmp_path / "m.py").write_text("VALUE = 2")
    py_compile.compile(str(tmp_path / "m.py"), str(tmp_path / "n.pyc"), doraise=True)
    import subprocess

    shown = subprocess.run(
        [sys.executable, "-c", "import n; print(n.VALUE)"], cwd=tmp_path, capture_output=True, check=True
    )
    assert json.loads(shown.stdout) == 2


def test_a_real_path_is_what_the_library_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "folder (deleted)" / "in").mkdir(parents=True)
    (tmp_path / "file").write_text("")
    for name, target in (
        ("link", "folder (deleted)/in"),
        ("chain", "link"),
        ("lost", "nowhere/at/all"),
        ("loop", "loop"),
    ):
        (tmp_path / name).symlink_to(target)
    (tmp_path / "closed").mkdir(0o000)
    monkeypatch.chdir(tmp_path)
    names = [
        ".",
        "..",
        "file",
        "file/",
        "link",
        "chain",
        "chain/../x",
        "lost",
        "loop",
        "closed",
        "folder (deleted)",
        "",
        "none",
    ]
    for path in [*names, *(str(tmp_path / name) for name in names), "/", "/proc/self/fd/0", "a\0b"]:
        try:
            expected = os.path.realpath(path)
        except ValueError:
            with pytest.raises(ValueError, match="null"):
                imports.real_path(path)
            continue
        assert imports.real_path(path) == expected, path

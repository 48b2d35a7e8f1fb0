from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from assay.tasks import (
    TaskInvalid,
    as_response,
    load_task,
    solution_response,
    stage_environment,
    stage_solution,
    stage_tests,
)
from assay.tasks.stage import FIXED_TIME
from assay.verifiers import vendored

Put = Callable[[str, Mapping[str, str | bytes]], Path]
Snapshot = Callable[[Path], dict[str, tuple[str, int, bytes, int]]]
VERIFIER = "def verify(workspace):\n    return 1\n"
PYTHON = {"task.toml": "", "tests/verifier.py": VERIFIER, "tests/lib/helper.py": "X = 1\n"}
BASH = {"task.toml": "", "tests/test.sh": "#!/bin/bash\n", "tests/data/x.txt": "x"}


def test_a_python_task_gets_the_shim_around_its_own_files(put: Put, tmp_path: Path) -> None:
    staged = stage_tests(load_task(put("t", PYTHON)), tmp_path / "out", task_data={"a": 1}, response=None)
    assert (staged.kind, staged.is_shim, staged.verifier_path) == ("python", True, "verifier.py")
    assert (staged.task_data_path, staged.response_path) == (".ng/task_data.json", None)
    out = tmp_path / "out"
    assert (out / "verifier.py").read_text() == VERIFIER
    assert json.loads((out / ".ng/task_data.json").read_text()) == {"a": 1}
    assert (out / "test.sh").stat().st_mode & 0o777 == 0o755
    for path, content in vendored.vendored_files().items():
        assert (out / ".ng" / path).read_bytes() == content
    assert not (out / ".ng/response.json").exists()


def test_the_manifest_lists_every_file_with_its_digest(put: Put, tmp_path: Path) -> None:
    path = put("t", PYTHON)
    (path / "tests/alias.py").symlink_to("lib/helper.py")
    (path / "tests/dangling.py").symlink_to("nowhere.py")
    (path / "tests/outside.py").symlink_to("/etc/hostname")
    out = tmp_path / "out"
    stage_tests(load_task(path), out, task_data={}, response={"output_text": "hi"})
    files = json.loads((out / ".ng/manifest.json").read_text())["files"]
    expected = {
        str(file.relative_to(out)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in out.rglob("*")
        if file.is_file() and file.name not in {"manifest.json", "outside.py", "response.json"}
    }
    assert files == expected
    assert {"alias.py", "lib/helper.py", "verifier.py", "test.sh", ".ng/run_verifier.py"} <= set(files)


def test_a_datasets_verifier_is_laid_in_the_shims_folder(put: Put, tmp_path: Path) -> None:
    put("d", {"dataset.toml": "", "verifier.py": VERIFIER})
    out = tmp_path / "out"
    staged = stage_tests(load_task(put("d/t", {"task.toml": ""})), out, task_data={}, response={"output_text": "hi"})
    assert (staged.verifier_path, staged.response_path) == (".ng/verifier.py", ".ng/response.json")
    assert (out / ".ng/verifier.py").read_text() == VERIFIER
    assert not (out / "verifier.py").exists()


def test_a_bash_task_is_copied_as_it_is(put: Put, tmp_path: Path, snapshot: Snapshot) -> None:
    path = put("t", BASH)
    (path / "tests/link").symlink_to("data/../data/x.txt")
    staged = stage_tests(load_task(path), tmp_path / "out", task_data={"a": 1}, response=None)
    assert (staged.kind, staged.is_shim, staged.verifier_path) == ("bash", False, "test.sh")
    assert (staged.task_data_path, staged.response_path) == (None, None)
    assert snapshot(tmp_path / "out") == {
        "test.sh": ("file", 0o755, b"#!/bin/bash\n", FIXED_TIME),
        "data": ("folder", 0o755, b"", FIXED_TIME),
        "data/x.txt": ("file", 0o644, b"x", FIXED_TIME),
        "link": ("link", 0o777, b"data/../data/x.txt", FIXED_TIME),
    }


def test_a_bash_task_finds_the_response_in_the_shims_folder(put: Put, tmp_path: Path) -> None:
    task = load_task(put("t", {**BASH, "tests/.ng/response.json": "planted"}))
    staged = stage_tests(task, tmp_path / "out", task_data={}, response={"output_text": "é"})
    assert staged.response_path == ".ng/response.json"
    assert json.loads((tmp_path / "out/.ng/response.json").read_text()) == {"output_text": "é"}


@pytest.mark.parametrize("kind", ["python", "bash"])
def test_nothing_is_written_through_a_link_called_ng(put: Put, tmp_path: Path, kind: str) -> None:
    path = put("t", PYTHON if kind == "python" else BASH)
    (tmp_path / "victim").mkdir()
    (path / "tests/.ng").symlink_to(tmp_path / "victim")
    with pytest.raises(TaskInvalid, match=r"tests/\.ng"):
        stage_tests(load_task(path), tmp_path / "out", task_data={}, response={})
    assert list((tmp_path / "victim").iterdir()) == []


@pytest.mark.parametrize("files", [PYTHON, BASH])
def test_the_same_input_gives_the_same_bytes_modes_and_times(
    put: Put, tmp_path: Path, snapshot: Snapshot, files: Mapping[str, str]
) -> None:
    one, other = load_task(put("one/t", files)), load_task(put("other/t", dict(reversed(files.items()))))
    (other.folder / "tests").chmod(0o700)
    for task, name in ((one, "a"), (other, "b")):
        stage_tests(task, tmp_path / name, task_data={"x": [1, "é"]}, response={"output_text": "r"})
    assert snapshot(tmp_path / "a") == snapshot(tmp_path / "b")
    assert {entry[3] for entry in snapshot(tmp_path / "a").values()} == {FIXED_TIME}


def test_a_published_task_keeps_its_shim_and_takes_new_task_data(put: Put, tmp_path: Path, snapshot: Snapshot) -> None:
    stage_tests(load_task(put("t", PYTHON)), tmp_path / "published/t/tests", task_data={"a": 1}, response=None)
    task = load_task(put("published/t", {"task.toml": ""}))
    assert (task.verifier.kind, task.task_data) == ("bash", {"a": 1})
    same = stage_tests(task, tmp_path / "same", task_data=task.task_data, response=None)
    assert (same.kind, same.is_shim, same.verifier_path) == ("bash", True, "verifier.py")
    assert snapshot(tmp_path / "same") == snapshot(task.folder / "tests")
    staged = stage_tests(task, tmp_path / "new", task_data={"a": 2}, response={"output_text": "r"})
    assert (staged.is_shim, staged.response_path) == (True, ".ng/response.json")
    assert json.loads((tmp_path / "new/.ng/task_data.json").read_text()) == {"a": 2}
    files = json.loads((tmp_path / "new/.ng/manifest.json").read_text())["files"]
    data = (tmp_path / "new/.ng/task_data.json").read_bytes()
    assert files[".ng/task_data.json"] == hashlib.sha256(data).hexdigest()


@pytest.mark.parametrize(
    "change",
    [
        lambda tests: (tests / "test.sh").write_text((tests / "test.sh").read_text() + "\n"),
        lambda tests: (tests / "verifier.py").write_text("def verify(): return 2"),
        lambda tests: (tests / "json.py").write_text("planted"),
        lambda tests: (tests / "lib/helper.py").unlink(),
        lambda tests: (tests / ".ng/run_verifier.py").write_text("print('older')"),
        lambda tests: (tests / ".ng/manifest.json").unlink(),
        lambda tests: (tests / ".ng/manifest.json").write_text("{"),
        lambda tests: (tests / ".ng/manifest.json").write_text("[]"),
    ],
)
def test_a_shim_that_was_changed_is_a_plain_test_sh(put: Put, tmp_path: Path, change: Callable[[Path], Any]) -> None:
    stage_tests(load_task(put("t", PYTHON)), tmp_path / "published/tests", task_data={}, response=None)
    task = load_task(put("published", {"task.toml": ""}))
    change(task.folder / "tests")
    staged = stage_tests(task, tmp_path / "out", task_data={}, response=None)
    assert (staged.is_shim, staged.verifier_path) == (False, "test.sh")


def test_a_shim_of_an_older_runner_is_a_plain_test_sh(
    put: Put, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage_tests(load_task(put("t", PYTHON)), tmp_path / "published/tests", task_data={}, response=None)
    monkeypatch.setattr(vendored, "RUNNER_VERSION", "newer")
    task = load_task(put("published", {"task.toml": ""}))
    assert not stage_tests(task, tmp_path / "out", task_data={}, response=None).is_shim


def test_the_environment_is_what_lies_beside_the_image_files(put: Put, tmp_path: Path) -> None:
    image = ["Dockerfile", "Dockerfile.dev", "docker-compose.yaml", "docker-compose.prod.yml", ".dockerignore"]
    kept = ["data.txt", "sub/Dockerfile", "compose.txt", "my-docker-compose.yaml", ".hidden", "Dockerfiles/x"]
    files = {**BASH, **{f"environment/{name}": name for name in [*image, *kept]}}
    stage_environment(load_task(put("t", files)), tmp_path / "out")
    assert sorted(
        str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*") if path.is_file()
    ) == sorted(kept)


def test_a_task_without_environment_has_an_empty_one(put: Put, tmp_path: Path) -> None:
    stage_environment(load_task(put("t", BASH)), tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_templates_are_rendered_wherever_they_are(put: Put, tmp_path: Path) -> None:
    files = {
        "task.toml": "",
        "tasks.jsonl": '{"task_id": "r", "n": 5}',
        "tests/verifier.py": VERIFIER,
        "tests/expected.template.txt": "{{ n }}",
        "environment/in.template.txt": "n={{ n }}",
        "solution/solve.template.sh": "echo {{ n }}",
    }
    path = put("p", files)
    (path / "solution/solve.template.sh").chmod(0o755)
    task = load_task(path / "r")
    staged = stage_tests(task, tmp_path / "tests", task_data=task.task_data, response=None)
    stage_environment(task, tmp_path / "environment")
    stage_solution(task, tmp_path / "solution")
    assert staged.is_shim
    assert (tmp_path / "tests/expected.txt").read_text() == "5"
    assert not (tmp_path / "tests/expected.template.txt").exists()
    assert (tmp_path / "environment/in.txt").read_text() == "n=5"
    assert (tmp_path / "solution/solve.sh").read_text() == "echo 5"
    assert (tmp_path / "solution/solve.sh").stat().st_mode & 0o777 == 0o755
    assert json.loads((tmp_path / "tests/.ng/task_data.json").read_text()) == {"n": 5}


def test_a_solution_that_is_not_there_says_what_to_write(put: Put, tmp_path: Path) -> None:
    with pytest.raises(TaskInvalid, match=r"solution/solve\.sh: is not there"):
        stage_solution(load_task(put("t", BASH)), tmp_path / "out")


def test_a_folder_that_holds_something_is_not_written_into(put: Put, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/old").touch()
    with pytest.raises(FileExistsError):
        stage_tests(load_task(put("t", BASH)), tmp_path / "out", task_data={}, response=None)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, None),
        ({"solution/response.txt": "four"}, {"output_text": "four"}),
        ({"solution/response.json": '{"id": "r1"}'}, {"id": "r1"}),
        ({"solution/response.json": '{"id": "r1"}', "solution/response.txt": "x"}, {"id": "r1"}),
        ({"solution/response.json": "[]"}, "must be an object"),
        ({"solution/response.json": "{"}, "is not valid JSON"),
        ({"solution/response.txt": b"\xff"}, "is not UTF-8"),
    ],
)
def test_the_solutions_response(put: Put, files: Mapping[str, str | bytes], expected: object) -> None:
    task = load_task(put("t", {**BASH, **files}))
    if isinstance(expected, str):
        with pytest.raises(TaskInvalid, match=expected):
            solution_response(task)
    else:
        assert solution_response(task) == expected


def test_as_response() -> None:
    assert as_response("") == {"output_text": ""}
    assert as_response('{"a": 1}') == {"output_text": '{"a": 1}'}
    assert as_response({"a": 1}) == {"a": 1}


@pytest.mark.parametrize("value", [{"a": float("nan")}, {"a": {1, 2}}])
def test_task_data_that_is_no_json_is_refused(put: Put, tmp_path: Path, value: dict[str, object]) -> None:
    with pytest.raises(TaskInvalid, match="the task data cannot be written as JSON"):
        stage_tests(load_task(put("t", PYTHON)), tmp_path / "out", task_data=value, response=None)


def test_a_socket_in_the_tests_is_refused(put: Put, tmp_path: Path) -> None:
    path = put("t", BASH)
    os.mkfifo(path / "tests/pipe")
    with pytest.raises(TaskInvalid, match="tests/pipe: is a socket, FIFO or device"):
        stage_tests(load_task(path), tmp_path / "out", task_data={}, response=None)


ASKS = "from assay.verifiers import ask_judge\n\ndef verify(workspace):\n    return float(ask_judge('?') == 'yes')\n"


@pytest.mark.parametrize(
    ("files", "asks"),
    [
        ({"tests/verifier.py": "def verify(workspace):\n    return 1\n"}, False),
        ({"tests/verifier.py": ASKS}, True),
        (
            {
                "tests/verifier.py": "import helper\n\ndef verify(workspace):\n    return helper.verify(workspace)\n",
                "tests/helper.py": ASKS,
            },
            True,
        ),
        ({"tests/test.sh": "# ask_judge\n"}, False),
    ],
)
def test_whether_a_verifier_asks_a_judge_is_the_same_when_it_is_published(
    put: Put, tmp_path: Path, files: Mapping[str, str], asks: bool
) -> None:
    task = load_task(put("t", {"task.toml": "", **files}))
    assert task.asks_judge is asks
    stage_tests(task, tmp_path / "published/t/tests", task_data={}, response=None)
    assert load_task(put("published/t", {"task.toml": ""})).asks_judge is asks

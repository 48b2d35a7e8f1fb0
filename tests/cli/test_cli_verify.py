"""`assay verify` as a command: one verdict object, and the exit code it says it has."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from commands import ASSAY, assay, inline, make_task
from matrix import CASES, Case


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    folder.mkdir()
    (folder / "answer.txt").write_text("42\n")
    return folder


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_kind_of_verifier(tmp_path: Path, workspace: Path, case: Case) -> None:
    task = make_task(tmp_path / "task", case.verifier, case.toml)
    # As in a process of its own, where nothing is warm yet.
    words = ("verify", task, "--workspace", workspace, "--no-warm", "--json")
    code, verdict, _ = assay(*words, state=tmp_path / "state")
    assert code == case.code, verdict
    if case.kind == "assay:verifier_timeout" and verdict["caused_by"] == "infrastructure":
        # On a machine this busy that is the honest answer; `tests/grading/test_grade.py` has both cases apart.
        assert "for a processor" in verdict["failure"]["reason"]
        return
    assert verdict["reward"] == case.reward
    assert verdict["status"] == ("graded" if case.reward is not None else "failed")
    assert verdict["metrics"] == dict(case.metrics)
    assert verdict["logs"]["truncated"] is case.truncated
    if case.kind is None:
        assert verdict["failure"] is None
        assert verdict["caused_by"] is None
    else:
        assert verdict["failure"]["kind"] == case.kind, verdict["failure"]
        assert case.said in verdict["failure"]["reason"]
        assert verdict["caused_by"] == "unknown"
        assert verdict["provisional"] is True


GRADES = "def verify(workspace):\n    return float((workspace / 'answer.txt').read_text() == '42\\n')\n"
COUNTS = "import os\ndef verify(workspace):\n    return len(os.listdir(os.fsencode(workspace)))\n"

BAD_TASKS = [
    ("no task.toml", None, "task.toml"),
    ("broken TOML", "x = = 1\n", "line 1"),
    ("negative timeout", "[verifier]\ntimeout_sec = -5\n", "timeout_sec must be a positive number of seconds, got -5"),
    ("text for a number", '[verifier]\ntimeout_sec = "soon"\n', "timeout_sec"),
]


@pytest.mark.parametrize(("name", "toml", "said"), BAD_TASKS, ids=[case[0] for case in BAD_TASKS])
def test_a_bad_task_ends_with_2_and_a_failed_verdict(
    tmp_path: Path, workspace: Path, name: str, toml: str | None, said: str
) -> None:
    task = make_task(tmp_path / "task", GRADES)
    if toml is None:
        (task / "task.toml").unlink()
    else:
        (task / "task.toml").write_text(toml)
    code, verdict, _ = assay("verify", task, "--workspace", workspace, "--json", state=tmp_path / "state")
    assert code == 2
    assert verdict["status"] == "failed"
    assert verdict["reward"] is None
    assert verdict["failure"]["kind"] == "assay:task_invalid"
    assert said in verdict["failure"]["reason"]
    assert verdict["task_id"] == "task"


def test_a_missing_task(tmp_path: Path, workspace: Path) -> None:
    code, verdict, _ = assay("verify", tmp_path / "no", "--workspace", workspace, "--json", state=tmp_path / "state")
    assert (code, verdict["failure"]["kind"]) == (2, "assay:task_invalid")


@pytest.mark.parametrize("kind", ["missing", "file", "fifo"])
def test_a_workspace_that_is_no_folder(tmp_path: Path, kind: str) -> None:
    place = tmp_path / "w"
    if kind == "file":
        place.write_text("x")
    elif kind == "fifo":
        os.mkfifo(place)
    task = make_task(tmp_path / "task", GRADES)
    code, verdict, _ = assay("verify", task, "--workspace", place, "--json", state=tmp_path / "state")
    assert (code, verdict["failure"]["kind"]) == (2, "assay:workspace_invalid")
    assert str(place) in verdict["failure"]["reason"]


def test_an_empty_workspace(tmp_path: Path) -> None:
    (tmp_path / "w").mkdir()
    task = make_task(tmp_path / "task", COUNTS)
    code, verdict, _ = assay("verify", task, "--workspace", tmp_path / "w", "--json", state=tmp_path / "state")
    assert (code, verdict["reward"], verdict["proven"]) == (0, 0.0, False)


def test_a_workspace_6000_deep(tmp_path: Path) -> None:
    top = tmp_path / "w"
    top.mkdir()
    handle = os.open(top, os.O_RDONLY)
    for _ in range(6_000):
        os.mkdir("d", dir_fd=handle)
        deeper = os.open("d", os.O_RDONLY, dir_fd=handle)
        os.close(handle)
        handle = deeper
    os.close(handle)
    task = make_task(tmp_path / "task", GRADES)
    code, verdict, _ = assay("verify", task, "--workspace", top, "--json", state=tmp_path / "state")
    from assay.workspaces import remove_tree

    remove_tree(top)
    assert (code, verdict["failure"]["kind"]) == (3, "assay:workspace_limit")
    assert verdict["caused_by"] == "unknown"


def test_names_that_are_not_utf8(tmp_path: Path, workspace: Path) -> None:
    raw = os.fsencode(workspace)
    with open(raw + b"/\xff\xfe\n", "wb") as file:
        file.write(b"x")
    os.symlink(b"\xff", raw + b"/link\xc3")
    os.mkfifo(raw + b"/pipe\xff")
    task = make_task(tmp_path / "task", COUNTS)
    code, verdict, _ = assay("verify", task, "--workspace", workspace, "--json", state=tmp_path / "state")
    assert (code, verdict["reward"]) == (0, 3.0)
    assert [found["type"] for found in verdict["dropped_files"]] == ["fifo"]


def test_the_workspace_is_never_changed(tmp_path: Path, workspace: Path) -> None:
    task = make_task(
        tmp_path / "task",
        "import shutil\ndef verify(workspace):\n    (workspace / 'new').write_text('x')\n"
        "    (workspace / 'answer.txt').unlink()\n    return 1\n",
    )
    before = sorted(path.name for path in workspace.iterdir())
    code, verdict, _ = assay("verify", task, "--workspace", workspace, "--json", state=tmp_path / "state")
    assert (code, verdict["reward"]) == (0, 1.0)
    assert sorted(path.name for path in workspace.iterdir()) == before


def test_response_and_task_data(tmp_path: Path, workspace: Path) -> None:
    task = make_task(
        tmp_path / "task",
        "def verify(response, task_data):\n"
        "    return {'reward': float(response['output_text'] == task_data['expected']), 'fields': len(task_data)}\n",
    )
    (task / "task_data.json").write_text('{"expected": "5", "other": 1}')
    (tmp_path / "data.json").write_text('{"expected": "4"}')
    (tmp_path / "response.txt").write_text("4")
    code, verdict, _ = assay(
        *("verify", task, "--workspace", workspace, "--json"),
        *("--response", tmp_path / "response.txt", "--task-data", tmp_path / "data.json"),
        state=tmp_path / "state",
    )
    assert (code, verdict["reward"], verdict["metrics"]) == (0, 1.0, {"fields": 2.0})


USAGE = [
    (["--mode", "shared"], "--rootfs"),
    (["--mode", "other"], "separate"),
    (["--timeout", "-1"], "positive number of seconds"),
    (["--timeout", "nan"], "positive number of seconds"),
    (["--sandbox", "dokcer"], "bubblewrap"),
    (["--response", "nothing.json"], "nothing.json"),
    (["--task-data", "nothing.json"], "nothing.json"),
    (["--nonsense"], "--nonsense"),
]


@pytest.mark.parametrize(("options", "said"), USAGE, ids=[" ".join(case[0]) for case in USAGE])
def test_wrong_usage_ends_with_2_and_a_sentence(tmp_path: Path, workspace: Path, options: list[str], said: str) -> None:
    task = make_task(tmp_path / "task", GRADES)
    done = inline("verify", task, "--workspace", workspace, *options, state=tmp_path / "state")
    assert done.code == 2, done
    assert said in done.stderr
    assert done.stdout == ""


def test_logs_are_kept_whatever_happened(tmp_path: Path, workspace: Path) -> None:
    task = make_task(
        tmp_path / "task",
        "def verify(workspace):\n    print('so far', flush=True)\n"
        "    open('/logs/verifier/mine.txt', 'w').write('kept')\n"
        "    open('/logs/verifier/reward.txt', 'w').write('0.5')\n    while True: pass\n",
        "[verifier]\ntimeout_sec = 1.0\n",
    )
    logs = tmp_path / "logs"
    code, verdict, _ = assay(
        "verify", task, "--workspace", workspace, "--json", "--no-control", "--logs", logs, state=tmp_path / "state"
    )
    assert (code, verdict["failure"]["kind"]) == (3, "assay:verifier_timeout")
    folder = Path(verdict["logs"]["folder"])
    assert (folder / "test-stdout.txt").read_text() == "so far\n"
    assert (folder / "verifier" / "mine.txt").read_text() == "kept"
    assert verdict["rule"] == "evidence-1:no-control"
    assert verdict["log_tail"] == "so far\n"
    assert {found["path"] for found in verdict["found"]} == {"mine.txt", "reward.txt"}


def test_for_a_person(tmp_path: Path, workspace: Path) -> None:
    """Reward, metrics and checks; or who caused the failure, and the verifier's last lines. No escape codes in a pipe."""
    task = make_task(
        tmp_path / "good",
        "from assay.verifiers import check\ndef verify(workspace):\n    check('rows', 1.0, note='all there')\n"
        "    return {'reward': 0.5, 'speed': 3}\n",
    )
    broken = make_task(
        tmp_path / "broken", "def verify(workspace):\n    print('\\x1b[31mlooking')\n    raise ValueError\n"
    )
    env = {**os.environ, "ASSAY_STATE": str(tmp_path / "state")}
    shown = [
        subprocess.run(
            [*ASSAY, "verify", task, "--workspace", workspace], capture_output=True, text=True, env=env
        ).stdout
        for task in (task, broken)
    ]
    for text in ("good", "reward 0.5", "speed 3", "rows", "all there"):
        assert text in shown[0]
    for text in ("broken", "no verdict", "not a zero", "verifier_error", "caused by", "looking", "ValueError"):
        assert text in shown[1]
    assert "\x1b" not in shown[0] + shown[1]

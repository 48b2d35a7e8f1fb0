"""A published task is a plain Harbor task, and is graded here with the same verdict."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from commands import assay, inline

EXAMPLES = Path(__file__).resolve().parent.parent.parent / "examples"
PUBLISHED = [
    ("top-words", "top-words"),
    ("clean-orders", "clean-orders"),
    ("meeting-notes/extract/kick-off", "extract-kick-off"),
    ("meeting-notes/extract/moved", "extract-moved"),
]

GRADED = [
    (name, folder, which)
    for name, folder in PUBLISHED
    for which in ("right", "wrong")
    if (EXAMPLES / "workspaces" / name / which).is_dir()
]


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("published")
    for dataset in {name.partition("/")[0] for name, _ in PUBLISHED}:
        done = inline("publish", EXAMPLES / dataset, out / dataset, state=out / "state")
        assert done.code == 0, done.stderr
    return out


@pytest.mark.parametrize(("name", "folder", "which"), GRADED)
def test_a_published_task_gets_the_same_verdict(
    published: Path, tmp_path: Path, name: str, folder: str, which: str
) -> None:
    place = next(
        path.parent
        for path in published.joinpath(name.partition("/")[0]).rglob("task.toml")
        if path.parent.name == folder
    )
    assert (place / "tests" / "test.sh").is_file()
    workspace = EXAMPLES / "workspaces" / name / which
    rewards = []
    for task in (EXAMPLES / name, place):
        code, verdict, _ = assay("verify", task, "--workspace", workspace, "--json", state=tmp_path / "state")
        assert code == 0, verdict
        rewards.append((verdict["reward"], verdict["metrics"], verdict["proven"]))
    assert rewards[0] == rewards[1]
    assert (rewards[0][0] == 1.0) is (which == "right")


def test_a_published_task_whose_shim_is_not_ours_is_read_by_its_files(published: Path, tmp_path: Path) -> None:
    """Run by bash as any Harbor would: the shim starts the runner, and its reward file is the reward."""
    place = next(published.rglob("top-words/**/task.toml")).parent
    shim = place / "tests" / "test.sh"
    changed = tmp_path / "changed"
    subprocess.run(["cp", "-r", place, changed], check=True)
    (changed / "tests" / "test.sh").write_text(shim.read_text() + "\n# changed by hand\n")
    workspace = EXAMPLES / "workspaces" / "top-words" / "right"
    code, verdict, _ = assay("verify", changed, "--workspace", workspace, "--json", state=tmp_path / "state")
    assert (code, verdict["reward"]) == (0, 1.0), verdict
    assert {found["path"] for found in verdict["found"]} >= {"reward.txt"}

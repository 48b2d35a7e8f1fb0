"""`Captured`: an answer that is graded where it lies, by real sandboxes of both isolating providers."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from assay.grading import Captured, WrongArgument, grade
from assay.sandbox import get_provider
from assay.workspaces import Caps, capture
from commands import make_task

READS = """\
import time
def verify(workspace):
    found = sorted(path.name for path in workspace.iterdir())
    mine = (workspace / "answer.txt").read_text()
    (workspace / "answer.txt").write_text("written by the verifier")
    (workspace / "new").write_text("x")
    (workspace / "gone").unlink()
    time.sleep(0.1)
    again = (workspace / "answer.txt").read_text()
    return float(found == ["answer.txt", "gone", "link"] and mine == "42" and again == "written by the verifier")
"""


@pytest.fixture
def captured(tmp_path: Path) -> Captured:
    left = tmp_path / "left"
    left.mkdir()
    (left / "answer.txt").write_text("42")
    (left / "gone").write_text("")
    (left / "link").symlink_to("answer.txt")
    os.mkfifo(left / "fifo")
    taken = capture(left, tmp_path / "captured")
    return Captured(taken.folder, taken.dropped)


@pytest.mark.parametrize("provider", ["namespaces", "bubblewrap"])
async def test_it_is_graded_where_it_lies_by_many_at_once_and_stays_as_it_is(
    tmp_path: Path, captured: Captured, provider: str
) -> None:
    task = make_task(tmp_path / "task", READS)
    before = capture(captured.folder, tmp_path / "before", Caps()).digest
    owners = {path.lstat().st_uid for path in captured.folder.rglob("*")}
    many = [grade(task, captured, sandbox=get_provider(provider), state=tmp_path, control=False) for _ in range(4)]
    for verdict in await asyncio.gather(*many):
        assert (verdict.reward, verdict.failure) == (1.0, None)
        assert [found["path"] for found in verdict.dropped_files] == ["fifo"]
    assert capture(captured.folder, tmp_path / "after", Caps()).digest == before
    assert {path.lstat().st_uid for path in captured.folder.rglob("*")} == owners


async def test_it_is_not_copied(tmp_path: Path, captured: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    task = make_task(tmp_path / "task", READS)
    copied: list[Path] = []
    # The function of this name hides the module.
    monkeypatch.setattr(sys.modules["assay.grading.grade"], "capture", lambda source, *_, **__: copied.append(source))
    monkeypatch.setattr("assay.sandbox.parts.own_copy", lambda source, *_: copied.append(source))
    verdict = await grade(task, captured, sandbox=get_provider("namespaces"), state=tmp_path)
    assert (verdict.reward, copied) == (1.0, [])


async def test_one_that_is_not_there_is_a_wrong_argument(tmp_path: Path) -> None:
    task = make_task(tmp_path / "task", READS)
    with pytest.raises(WrongArgument, match="is not there"):
        await grade(task, Captured(tmp_path / "nowhere"), state=tmp_path)

"""What may take long for a client's sake does not hold up the others: it is done beside the event loop."""

from __future__ import annotations

import asyncio
import base64
import io
import tarfile
import threading
from pathlib import Path

import pytest

from assay.grading import Verdict
from assay.server import SandboxGrader
from assay.server.catalogue import load_catalogue
from assay.server.request import read_verify
from assay.server.threads import scratch
from assay.workspaces import remove_tree
from serving import ScriptedGrader, served, verdict_of


@pytest.fixture
def removed(monkeypatch: pytest.MonkeyPatch) -> dict[str, bool]:
    """What scratch folders were removed, by their first word: whether that was beside the event loop."""
    loop = threading.current_thread()
    beside: dict[str, bool] = {}

    def remove(path: Path) -> None:
        beside[path.name.partition("-")[0]] = threading.current_thread() is not loop
        remove_tree(path)

    monkeypatch.setattr("assay.workspaces.scratch.remove_tree", remove)
    return beside


def archive_of_one_file() -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("empty"))
    return file.getvalue()


async def test_a_workspace_that_came_in_a_request(dataset: Path, tmp_path: Path, removed: dict[str, bool]) -> None:
    folders: list[Path | None] = []

    def see(chosen: object, workspace: Path | None) -> float:
        folders.append(workspace)
        return 1.0

    archive = base64.b64encode(archive_of_one_file()).decode()
    async with served(dataset, ScriptedGrader(see), state=tmp_path / "state") as server:
        assert (await server.verify(workspace={"archive_b64": archive})).status == 200
        assert removed["workspace"]
    assert folders[0] is not None
    assert not folders[0].exists()


async def test_an_upload(dataset: Path, tmp_path: Path, removed: dict[str, bool]) -> None:
    async with served(dataset, state=tmp_path / "state") as server:
        assert (await server.ask("PUT", f"/snapshots/sha256:{'0' * 64}", data=archive_of_one_file())).status == 422
    assert removed["upload"]


async def test_the_logs_of_a_verifier(dataset: Path, removed: dict[str, bool], monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = await load_catalogue(dataset).choose(read_verify(b"{}"))

    async def graded(*_: object, **options: object) -> Verdict:
        return verdict_of(chosen, 1.0)

    monkeypatch.setattr("assay.server.grader.grade", graded)
    assert (await SandboxGrader()(chosen, None, None)).verdict.reward == 1.0
    assert removed["served"]


async def test_a_folder_is_gone_when_its_user_was_cancelled(removed: dict[str, bool]) -> None:
    there = asyncio.Event()
    folders = []

    async def use() -> None:
        async with scratch("x") as folder:
            folders.append(folder)
            there.set()
            await asyncio.Event().wait()

    user = asyncio.create_task(use())
    await there.wait()
    user.cancel()
    with pytest.raises(asyncio.CancelledError):
        await user
    assert (folders[0].exists(), removed["x"]) == (False, True)


async def test_every_digest_of_a_task_that_was_found_is_known(dataset: Path) -> None:
    """Each is computed once, and reads every file."""
    task = await load_catalogue(dataset).find("one")
    assert {"digest", "verifier_digest", "solution_digest"} <= vars(task).keys()

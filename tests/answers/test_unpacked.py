"""The folder of unpacked workspaces: who uses one keeps it, and what comes in costs no more for what is there."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from assay.answers.unpacked import UnpackedWorkspaces


def digest(number: int) -> str:
    return f"sha256:{number:064x}"


def add(unpacked: UnpackedWorkspaces, number: int, size: int) -> None:
    with unpacked.room() as room:
        (room / "workspace").mkdir()
        unpacked.add(digest(number), room / "workspace", size, 0)


def test_coming_in_does_not_look_at_all_that_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once when the first comes, then once for each twentieth of the room."""
    unpacked = UnpackedWorkspaces(tmp_path, 100_000)
    looks: list[int] = []
    entries = unpacked._entries
    monkeypatch.setattr(unpacked, "_entries", lambda: looks.append(1) or entries())
    for number in range(100):
        add(unpacked, number, 500)
    assert len(looks) == 1 + 99 * 500 // 5000
    for number in range(100, 400):
        add(unpacked, number, 500)
    assert len(list(tmp_path.iterdir())) <= 200


def test_one_that_is_being_removed_is_not_there(tmp_path: Path) -> None:
    unpacked = UnpackedWorkspaces(tmp_path, 100_000)
    add(unpacked, 1, 500)
    with unpacked.held(digest(1)) as folder:
        assert folder is not None
    removing = os.open(tmp_path / digest(1).removeprefix("sha256:"), os.O_RDONLY)
    try:
        fcntl.flock(removing, fcntl.LOCK_EX)
        with unpacked.held(digest(1)) as folder:
            assert folder is None
    finally:
        os.close(removing)


def test_one_that_came_and_went_meanwhile_is_no_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody else was first, and theirs made place for another before anybody could look."""
    unpacked = UnpackedWorkspaces(tmp_path, 100_000)
    add(unpacked, 1, 500)
    monkeypatch.setattr(Path, "exists", lambda self: False)
    add(unpacked, 1, 500)
    monkeypatch.undo()
    with unpacked.held(digest(1)) as folder:
        assert folder is not None

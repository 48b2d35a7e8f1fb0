"""Workspaces that clients send: in the request, or uploaded before under the digest of what is in them."""

from __future__ import annotations

import asyncio
import base64
import io
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from assay.server import Limits
from assay.workspaces import capture
from serving import ScriptedGrader, Served, served


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    (folder / "sub").mkdir(parents=True)
    (folder / "answer.txt").write_text("42\n")
    (folder / "sub" / "run.sh").write_text("#!/bin/sh\n")
    (folder / "sub" / "run.sh").chmod(0o755)
    (folder / "link").symlink_to("/etc/passwd")
    return folder


def packed(folder: Path, mode: str = "w:gz") -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode=mode) as archive:  # type: ignore[call-overload] # one of its modes
        archive.add(folder, ".")
    return file.getvalue()


def digest_of(folder: Path, tmp_path: Path) -> str:
    return capture(folder, tmp_path / "captured").digest


def seen(chosen: Any, workspace: Path | None) -> float:
    """What the grader finds."""
    assert workspace is not None
    assert (workspace / "link").is_symlink()
    assert (workspace / "sub" / "run.sh").stat().st_mode & 0o777 == 0o755
    return float((workspace / "answer.txt").read_text())


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:bz2", "w:xz"])
async def test_an_archive_in_the_request(dataset: Path, tmp_path: Path, workspace: Path, mode: str) -> None:
    archive = base64.b64encode(packed(workspace, mode)).decode()
    async with served(dataset, ScriptedGrader(seen), state=tmp_path / "state") as server:
        reply = await server.verify("k", workspace={"archive_b64": archive})
        again = await server.verify("k", workspace={"archive_b64": archive})
    assert (reply.json()["reward"], "workspace" in reply.json()) == (42.0, False)
    assert again.body == reply.body


async def test_uploaded_once_and_verified_often(dataset: Path, tmp_path: Path, workspace: Path) -> None:
    digest = digest_of(workspace, tmp_path)
    async with served(dataset, ScriptedGrader(seen), state=tmp_path / "state") as server:
        path = f"/snapshots/{digest}"
        assert (await server.ask("HEAD", path)).status == 404
        assert (await server.ask("PUT", path, data=packed(workspace))).status == 201
        assert (await server.ask("PUT", path, data=packed(workspace))).status == 200
        assert (await server.ask("HEAD", path)).status == 200
        for _ in range(2):
            assert (await server.verify(workspace={"snapshot": digest})).json()["reward"] == 42.0
    async with served(dataset, ScriptedGrader(seen), state=tmp_path / "state") as again:
        assert (await again.verify(workspace={"snapshot": digest})).json()["reward"] == 42.0


async def test_the_name_must_be_that_of_the_content(dataset: Path, tmp_path: Path, workspace: Path) -> None:
    digest = digest_of(workspace, tmp_path)
    (workspace / "answer.txt").write_text("43\n")
    async with served(dataset, state=tmp_path / "state") as server:
        for data in (packed(workspace), packed(workspace)[:-30], b"no archive", b""):
            refused = await server.ask("PUT", f"/snapshots/{digest}", data=data)
            assert refused.status == 422, refused.body
        assert (await server.ask("HEAD", f"/snapshots/{digest}")).status == 404
        left = [path for path in (tmp_path / "state").rglob("*") if path.is_file() and "sqlite" not in path.name]
    assert left == []


async def test_an_archive_that_leads_outside_stays_inside(dataset: Path, tmp_path: Path) -> None:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name in ("../../outside", "/tmp/outside", "a/../../../outside"):
            entry = tarfile.TarInfo(name)
            entry.size = 4
            archive.addfile(entry, io.BytesIO(b"evil"))
        link = tarfile.TarInfo("up")
        link.type, link.linkname = tarfile.SYMTYPE, ".."
        archive.addfile(link)
        entry = tarfile.TarInfo("up/up/outside")
        entry.size = 4
        archive.addfile(entry, io.BytesIO(b"evil"))
    found: list[str] = []

    def look(chosen: Any, workspace: Path | None) -> float:
        assert workspace is not None
        found.extend(sorted(path.name for path in workspace.parent.iterdir()))
        return 1.0

    async with served(dataset, ScriptedGrader(look), state=tmp_path / "state") as server:
        reply = await server.verify(workspace={"archive_b64": base64.b64encode(file.getvalue()).decode()})
    assert reply.status in (200, 422)
    assert "outside" not in found
    assert not Path("/tmp/outside").exists()


async def slowly(data: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(data), 1000):
        yield data[start : start + 1000]


async def test_an_upload_is_counted_as_it_comes(dataset: Path, tmp_path: Path, workspace: Path) -> None:
    (workspace / "noise").write_bytes(bytes(range(256)) * 100)
    data = packed(workspace, "w")
    async with served(dataset, state=tmp_path / "state", limits=Limits(snapshot_bytes=10_000)) as server:
        refused = await server.ask("PUT", f"/snapshots/{digest_of(workspace, tmp_path)}", data=slowly(data))
    assert refused.status == 413
    async with served(dataset, state=tmp_path / "state", limits=Limits(body_bytes=1000)) as server:
        (tmp_path / "captured2").mkdir()
        digest = capture(workspace, tmp_path / "captured2").digest
        assert (await server.ask("PUT", f"/snapshots/{digest}", data=slowly(data))).status == 201


async def test_too_many_uploads_at_once_are_not_admitted(dataset: Path, tmp_path: Path) -> None:
    async def held(server: Served, gate: asyncio.Event, number: int) -> int:
        async def body() -> AsyncIterator[bytes]:
            yield b"x"
            await gate.wait()

        return (await server.ask("PUT", f"/snapshots/sha256:{number:064x}", data=body())).status

    gate = asyncio.Event()
    async with served(dataset, state=tmp_path / "state") as server:
        asked = [asyncio.create_task(held(server, gate, number)) for number in range(17)]
        done, _ = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED, timeout=30)
        gate.set()
        statuses = await asyncio.gather(*asked)
    assert [task.result() for task in done] == [503]
    assert sorted(statuses) == [422] * 16 + [503]


async def test_a_client_that_goes_away_in_the_middle_leaves_nothing(dataset: Path, tmp_path: Path) -> None:
    async with served(dataset, state=tmp_path / "state") as server:
        _, writer = await asyncio.open_connection("127.0.0.1", int(server.server.url.rpartition(":")[2]))
        writer.write(
            b"PUT /snapshots/sha256:" + b"0" * 64 + b" HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\nabc"
        )
        uploads = tmp_path / "state" / "server" / "uploads"
        async with asyncio.timeout(30):
            while not (uploads.exists() and any(uploads.iterdir())):
                await asyncio.sleep(0)
            writer.close()
            while any(uploads.iterdir()):
                await asyncio.sleep(0)

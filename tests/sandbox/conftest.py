"""Sandboxes and root folders that the tests of this room share."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from assay.sandbox import Sandbox, SandboxSpec, get_provider
from assay.sandbox.bubblewrap import BubblewrapProvider
from assay.sandbox.machine import usable_hierarchy
from assay.sandbox.slotpool import SlotPool

Make = Callable[..., Awaitable[Sandbox]]


def pytest_terminal_summary(terminalreporter: Any) -> None:
    found = usable_hierarchy()
    real = "none here that this user may use" if found is None else f"version {found.version}, the kernel's own"
    recorded = "" if found is not None and found.version == 2 else "; version 2 from a recorded layout alone"
    terminalreporter.write_line(f"control groups: {real}{recorded}")


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    """Makes bubblewrap sandboxes that are closed when the test ends: `await make(mounts=…, limits=…)`."""
    provider, made = BubblewrapProvider(), []

    async def one(**spec: object) -> Sandbox:
        sandbox = await provider.create(SandboxSpec(**spec))
        made.append(sandbox)
        return sandbox

    yield one
    for sandbox in made:
        await sandbox.close()


@pytest.fixture(params=["namespaces", "bubblewrap"])
async def isolating(request: pytest.FixtureRequest) -> AsyncIterator[Make]:
    """As `make`, with each provider that isolates in turn."""
    provider, made = get_provider(request.param), []

    async def one(**spec: object) -> Sandbox:
        sandbox = await provider.create(SandboxSpec(**spec))
        made.append(sandbox)
        return sandbox

    yield one
    for sandbox in made:
        await sandbox.close()


@pytest.fixture
def small_base(tmp_path: Path) -> Path:
    """A root folder with a shell and a few tools of this host's, real folders where the host has links, and links of its own."""
    base = tmp_path / "base"
    for folder in ("bin", "etc", "usr/bin", "var/log", "data/real", "home"):
        (base / folder).mkdir(parents=True)
    libraries = set()
    for tool in ("sh", "cat", "ls", "id", "touch"):
        path = shutil.which(tool, path="/usr/bin:/bin")
        assert path is not None
        shutil.copy(os.path.realpath(path), base / "bin" / tool)
        listed = subprocess.run(["ldd", path], capture_output=True, text=True, check=True).stdout
        libraries |= set(re.findall(r"(/\S+)", listed))
    for library in libraries:
        target = base / library.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(os.path.realpath(library), target)
    (base / "etc" / "passwd").write_text("root:x:0:0::/root:/bin/sh\n")
    (base / "etc" / "own").write_text("the base's own\n")
    (base / "app").symlink_to("data/real")
    (base / "work").symlink_to("/data/real")
    (base / "loop").symlink_to("loop")
    for path in (base, *base.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o755)
    return base


@pytest.fixture
def one_slot(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlotPool]:
    """A pool of one slot, at most, that no other test has used."""
    monkeypatch.setattr("assay.sandbox.slotpool._idle_most", lambda: 1)
    pool = SlotPool()
    monkeypatch.setattr("assay.sandbox.namespaces.POOL", pool)
    yield pool
    pool.close_idle()

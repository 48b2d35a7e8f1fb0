"""Sandboxes of the launcher's, for the tests of each of its rules."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest

from assay.sandbox import Sandbox, SandboxSpec, slotserver
from assay.sandbox.namespaces import NamespacesProvider
from assay.sandbox.slotpool import SlotPool

Make = Callable[..., Awaitable[Sandbox]]
_NO_PROGRAM = r"""
from launcher import init, turning
init.lay = lambda *_: None
read = turning.read_sources
turning.read_sources = lambda: [(n, f"{t}\ndef lay(*_): pass\n" if n == "init" else t) for n, t in read()]
"""


@pytest.fixture
async def launched() -> AsyncIterator[Make]:
    """Makes the launcher's sandboxes, closed when the test ends: `await launched(mounts=…, limits=…)`."""
    provider, made = NamespacesProvider(), []

    async def one(**spec: object) -> Sandbox:
        sandbox = await provider.create(SandboxSpec(**spec))
        made.append(sandbox)
        return sandbox

    yield one
    for sandbox in made:
        await sandbox.close()


@pytest.fixture
def own_pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlotPool]:
    """A pool without slots that other tests have used. Asked for before `launched`, whose sandboxes are closed first then."""
    pool = SlotPool()
    monkeypatch.setattr("assay.sandbox.namespaces.POOL", pool)
    yield pool
    pool.close_idle()


@pytest.fixture
def change_servers(own_pool: SlotPool, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Has each slot server of this test run some Python before anything else."""
    before, _, main = slotserver._PROGRAM.rpartition("from launcher.server")

    def change(source: str) -> None:
        monkeypatch.setattr(slotserver, "_PROGRAM", f"{before}exec({source!r}); from launcher.server{main}")

    return change


@pytest.fixture(params=["program", "fork"])
def form(request: pytest.FixtureRequest, change_servers: Callable[[str], None]) -> str:
    """What pid 1 of a sandbox is: the program of a known machine, then what every other machine gets."""
    if request.param == "program" and os.uname().machine != "x86_64":
        pytest.skip("on this machine pid 1 is a fork")
    if request.param == "fork":
        change_servers(_NO_PROGRAM)
    return str(request.param)

"""What runs a warm verification is killed or stopped from outside in the middle of it: that one is tried again, no other is."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from assay.grading import Captured, grade
from assay.sandbox import SandboxSpec, get_provider, slotrun
from assay.sandbox.namespaces import NamespacesProvider, get_ready
from assay.sandbox.procfs import children
from assay.sandbox.slots import Slot
from commands import make_task

VERIFIER = """\
import time
def verify(workspace):
    time.sleep(float((workspace / "seconds").read_text()))
    return 1.0
"""


def captured(folder: Path, seconds: float) -> Captured:
    folder.mkdir()
    (folder / "seconds").write_text(str(seconds))
    return Captured(folder)


@pytest.mark.parametrize("what", ["init", "server", "keeper", "stopped server"])
async def test_it_costs_a_retry_of_that_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    provider = get_provider("namespaces")
    assert isinstance(provider, NamespacesProvider)
    provider.capabilities()
    slots: list[Slot] = []
    create = NamespacesProvider.create

    async def noted(self: NamespacesProvider, spec: SandboxSpec) -> Any:
        sandbox: Any = await create(self, spec)
        if spec.interpreter is not None:
            slots.append(sandbox._maker.slot)
        return sandbox

    monkeypatch.setattr(NamespacesProvider, "create", noted)
    # A server that is stopped is noticed when its command has ended and nobody says how.
    monkeypatch.setattr(slotrun, "_ANSWERS_S", 0.5)
    await get_ready(SandboxSpec(interpreter="/usr/bin/python3"))
    task = make_task(tmp_path / "task", VERIFIER)
    # An init that is killed may have been killed by what runs in it: that takes evidence, the answer once more among it.
    means = {"sandbox": provider, "state": tmp_path, "control": what == "init"}
    hit = asyncio.create_task(grade(task, captured(tmp_path / "hit", 1.0), **means))  # type: ignore[arg-type] # as `grade` has them
    async with asyncio.timeout(30):
        while not slots or not runs(slots[0]):
            await asyncio.sleep(0.005)
    others = [grade(task, captured(tmp_path / f"other-{n}", 0.1), **means) for n in range(3)]  # type: ignore[arg-type] # as above
    beside = asyncio.gather(*others)
    keeper = slots[0]._server._popen.pid  # type: ignore[union-attr] # it has one
    (server,) = children(keeper)
    init, _ = children(server)
    pid = {"init": init, "server": server, "keeper": keeper, "stopped server": server}[what]
    os.kill(pid, signal.SIGSTOP if what == "stopped server" else signal.SIGKILL)
    for verdict in await beside:
        assert (verdict.reward, verdict.failure) == (1.0, None)
    verdict = await hit
    assert (verdict.reward, verdict.failure) == (1.0, None)
    assert len(slots) == 5, "each was run once, and the one that was hit again"


def runs(slot: Slot) -> bool:
    """Whether a command runs in the slot: beside its init what was forked ahead, which has left the server's session."""
    for server in children(slot._server._popen.pid):  # type: ignore[union-attr] # it has one
        return any(os.getsid(command) == command for command in children(server)[1:])
    return False

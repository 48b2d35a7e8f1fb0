"""A root that cannot be made is a fault of that one command's: its server stays, at home in its own namespaces."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from assay.sandbox import BaseUse, Ended, Overlay, ReadOnly, SandboxSpec, slotrun
from assay.sandbox.namespaces import get_ready
from assay.sandbox.procfs import children
from assay.sandbox.slotrun import SlotRun
from assay.sandbox.slots import Slot
from warm import PYTHON

Make = Callable[..., Awaitable[Any]]
FAILURES = 12
NO_STEP = {"what": "nonsense", "at": "/x", "text": "", "sources": [], "size": None, "perms": None}


@pytest.mark.parametrize("word", ["build", "finish"])
@pytest.mark.parametrize("interpreter", [None, PYTHON])
async def test_the_server_goes_on(
    launched: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, word: str, interpreter: str | None
) -> None:
    await get_ready(SandboxSpec(interpreter=interpreter))
    sandbox = await launched(interpreter=interpreter, mounts=(Overlay(tmp_path, "/app"),))
    assert (await sandbox.exec(["true"], timeout_s=30)).code == 0
    slot = sandbox._maker.slot
    server = server_of(slot)
    home = await namespaces_of(server)
    tell = Slot.tell

    def told_nonsense(self: Slot, said: str, fields: dict[str, Any], fds: Sequence[int]) -> None:
        # Another slot may be getting its bay meanwhile.
        ours = self is slot and said == word
        tell(self, said, {**fields, "steps": [*fields["steps"], NO_STEP]} if ours else fields, fds)

    with monkeypatch.context() as context:
        context.setattr(Slot, "tell", told_nonsense)
        # The fork for this one may have been told before.
        results = [await sandbox.exec(["true"], timeout_s=30)]
        inside = set(children(server))
        before = len(os.listdir(f"/proc/{server}/fd"))
        results += [await sandbox.exec(["true"], timeout_s=30) for _ in range(FAILURES)]
        assert len(os.listdir(f"/proc/{server}/fd")) < before + FAILURES, "each failure leaves a descriptor open"
        faults = [result.fault for result in results if result.how is Ended.FAULT]
        assert len(faults) >= FAILURES
        assert all("there is no step 'nonsense'" in str(fault) for fault in faults)
    # The one after may have been told meanwhile. Of none after them a fork is made ahead.
    sandbox._maker.commands = -2
    results = [await sandbox.exec(["sh", "-c", "ls /; exit 3"], timeout_s=30) for _ in range(2)]
    assert results[-1].code == 3
    assert b"assay-init" not in results[-1].stdout
    assert server_of(slot) == server
    assert await namespaces_of(server) == home
    assert not inside & set(children(server)), "what waited for the rest of its root is dead"


def server_of(slot: Any) -> int:
    (server,) = children(slot._server._popen.pid)
    return server


async def namespaces_of(server: int) -> dict[str, str]:
    """Those of a slot server between two sandboxes, when what it forks is in its own pid namespace, the last it comes back to."""
    place = Path(f"/proc/{server}/ns")
    async with asyncio.timeout(30):
        while True:
            # A pid namespace without a process has no name.
            with contextlib.suppress(FileNotFoundError):
                found = {path.name: os.readlink(path) for path in place.iterdir()}
                if found["pid_for_children"] == found["pid"]:
                    return found
            await asyncio.sleep(0.002)


@pytest.mark.parametrize("kind", ["host", "host's folder", "base", "written base"])
async def test_a_mount_that_is_gone_costs_no_server(
    launched: Make, tmp_path: Path, small_base: Path, kind: str
) -> None:
    """It is found before the server is told of it, or of the rest: of a fork that has no process nobody waits for the end."""
    for name in ("early", "late"):
        (tmp_path / name).mkdir()
    spec: dict[str, Any] = {"base": small_base} if "base" in kind else {}
    given = "/etc/given" if kind == "host's folder" else "/given"
    if kind == "written base":
        spec["base_use"] = BaseUse.WRITTEN
    sandbox = await launched(mounts=(Overlay(tmp_path / "early", "/app"), ReadOnly(tmp_path / "late", given)), **spec)
    slot = sandbox._maker.slot
    script = ["sh", "-c", f"ls {given} && exit 3"]
    assert (await sandbox.exec(script, timeout_s=30)).code == 3
    server = server_of(slot)
    for gone in ("late", "early"):
        (tmp_path / gone).rename(tmp_path / "gone")
        # The fork for this one may have been told while it was there.
        await sandbox.exec(script, timeout_s=30)
        for _ in range(3):
            result = await sandbox.exec(script, timeout_s=30)
            assert result.how is Ended.FAULT
            # An ordinary user's server finds it, by its own name for it.
            assert f"{tmp_path}/{gone}: No such file" in str(result.fault)
        (tmp_path / "gone").rename(tmp_path / gone)
        # And the one for this while it was not.
        await sandbox.exec(script, timeout_s=30)
        assert (await sandbox.exec(script, timeout_s=30)).code == 3
    assert server_of(slot) == server


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: an ordinary user's server makes all mounts itself")
@pytest.mark.parametrize("goes_on", [True, False])
async def test_a_fork_in_the_making_is_proven_dead(
    launched: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, goes_on: bool
) -> None:
    """One that is not to be any more before it is known: killed when it is, and with its server where that says nothing."""
    monkeypatch.setattr(slotrun, "_ANSWERS_S", 30.0 if goes_on else 0.3)
    sandbox = await launched(mounts=(ReadOnly(tmp_path, "/given"),))
    assert (await sandbox.exec(["true"], timeout_s=30)).code == 0
    slot = sandbox._maker.slot
    server = server_of(slot)
    home = await namespaces_of(server)
    os.kill(server, signal.SIGSTOP)
    prove_dead = SlotRun.prove_dead

    async def proven(self: SlotRun, *arguments: Any) -> bool:
        assert self._fork is not None
        assert (self._fork.made, self._fork.init) == (True, -1)
        if goes_on:
            os.kill(server, signal.SIGCONT)
        return await prove_dead(self, *arguments)

    with monkeypatch.context() as context:
        context.setattr(SlotRun, "prove_dead", proven)
        gone = tmp_path.rename(tmp_path.parent / "gone")
        result = await sandbox.exec(["true"], timeout_s=30)
        gone.rename(tmp_path)
    assert result.how is Ended.FAULT
    assert f"{tmp_path}: No such file" in str(result.fault)
    assert (await sandbox.exec(["sh", "-c", "exit 3"], timeout_s=30)).code == 3
    assert (server_of(slot) == server) is goes_on
    assert not goes_on or await namespaces_of(server) == home

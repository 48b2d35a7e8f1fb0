"""What is counted of a sandbox is the command and all that it starts, whoever's child that is by now, with a group or without."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from assay.sandbox import Capability, Ended, Limits, SandboxSpec, Writable
from assay.sandbox.namespaces import NamespacesProvider, get_ready
from assay.sandbox.slotpool import SlotPool
from assay.sandbox.slotrun import SlotRun
from warm import PYTHON

Make = Callable[..., Awaitable[Any]]


@pytest.fixture(params=["group", "no group"])
def grouped(request: pytest.FixtureRequest, own_pool: SlotPool, monkeypatch: pytest.MonkeyPatch) -> bool:
    """With a control group, where this user may make one, and as on a machine that has none."""
    if request.param == "no group":
        monkeypatch.setattr("assay.sandbox.slots.usable_hierarchy", lambda: None)
    return bool(request.param == "group")


async def python(sandbox: Any, source: str) -> Any:
    return await sandbox.exec([PYTHON, "-I", "-c", source], timeout_s=30)


_FORKS = """
import os, time
count = 0
try:
    while count < 100:
        if os.fork() == 0:
            time.sleep(600)
            os._exit(0)
        count += 1
except OSError:
    pass
print(count, flush=True)
os._exit(0)
"""


@pytest.mark.parametrize("interpreter", [None, PYTHON])
@pytest.mark.parametrize("most", [1, 2, 9])
async def test_as_many_processes_as_were_allowed(
    grouped: bool, launched: Make, most: int, interpreter: str | None
) -> None:
    if Capability.PROCESS_LIMIT not in NamespacesProvider().capabilities():
        pytest.skip("this user may make no group that counts, and the kernel counts by no namespace")
    await get_ready(SandboxSpec(interpreter=interpreter))
    sandbox = await launched(limits=Limits(processes=most), interpreter=interpreter)
    # Nothing of the one before counts for the next.
    for _ in range(3):
        result = await python(sandbox, _FORKS)
        assert (result.how, result.stdout) == (Ended.EXITED, f"{most - 1}\n".encode()), result


_ORPHANS = """
import os, time
for _ in range(40):
    ended, has_ended = os.pipe()
    if os.fork() == 0:
        if os.fork() == 0:
            while time.process_time() < 0.1:
                pass
        os._exit(0)
    os.close(has_ended)
    os.wait()
    os.read(ended, 1)
    os.close(ended)
"""


@pytest.mark.parametrize("form", ["program", "fork"], indirect=True)
async def test_what_orphans_used_before_they_ended_counts(form: str, grouped: bool, launched: Make) -> None:
    """Each ends long before the limit, and is waited for by pid 1 alone: only what that has seen of them adds up."""
    sandbox = await launched(limits=Limits(cpu_s=0.5))
    result = await python(sandbox, _ORPHANS)
    assert (result.how, result.code) == (Ended.CPU_LIMIT, None), result


async def test_all_processes_are_seen(grouped: bool, launched: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[SlotRun] = []

    def noted(*arguments: Any, **named: Any) -> SlotRun:
        runs.append(SlotRun(*arguments, **named))
        return runs[-1]

    monkeypatch.setattr("assay.sandbox.namespaces.SlotRun", noted)
    sandbox = await launched(mounts=(Writable("/out"),))
    source = """
import json, os, time
def child(orphan):
    if os.fork() == 0:
        if orphan and os.fork() != 0:
            os._exit(0)
        time.sleep(60)
    if orphan:
        os.wait()
child(False)
child(True)
with open("/out/new", "w") as file:
    file.write(str(len([name for name in os.listdir("/proc") if name.isdigit()])))
os.rename("/out/new", "/out/on")
time.sleep(60)
"""
    running = asyncio.ensure_future(python(sandbox, source))
    on = sandbox._parts.room.writables["/out"] / "on"
    async with asyncio.timeout(30):
        while not on.exists():
            await asyncio.sleep(0.002)
    (run,) = runs
    inside = set(run.processes())
    # The init, the command, its child, and an orphan of its grandchildren's.
    assert len(inside) == int(on.read_text()) == 4
    assert run.pid1 in inside
    names = sorted(Path(f"/proc/{pid}/comm").read_text() for pid in inside)
    assert names == ["assay-init\n", *["python3\n"] * 3]
    await sandbox.kill()
    assert (await running).how is Ended.SIGNALED

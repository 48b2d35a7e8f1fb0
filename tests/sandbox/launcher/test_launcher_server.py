"""The slot server's life: lost, stuck, left alone, used again; and what one lease leaves for the next: nothing."""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from assay.failures import FailureEvent
from assay.sandbox import MIB, Capability, Ended, Limits, SandboxSpec, Writable
from assay.sandbox import slotpool as pool_module
from assay.sandbox import slotrun as slotrun_module
from assay.sandbox.cgroups import sweep as sweep_groups
from assay.sandbox.machine import usable_hierarchy
from assay.sandbox.namespaces import NamespacesProvider, close_idle
from assay.sandbox.procfs import children, descendants
from assay.sandbox.slotpool import SlotKind, SlotPool
from assay.sandbox.slots import Slot
from assay.sandbox.sources import NOTHING
from assay.workspaces.scratch import sweep as sweep_scratch

Make = Callable[..., Awaitable[Any]]
OUT = (Writable("/out"),)
STAY = ["sh", "-c", "(trap '' TERM; setsid sleep 100) & echo > /out/on; sleep 100"]


def keeper_of(sandbox: Any) -> int:
    return int(sandbox._maker.slot._server._popen.pid)


def server_of(sandbox: Any) -> int:
    (server,) = children(keeper_of(sandbox))
    return server


async def until_on(sandbox: Any) -> None:
    on = sandbox._parts.room.writables["/out"] / "on"
    async with asyncio.timeout(30):
        # It is there a moment before its line is.
        while not on.exists() or not on.stat().st_size:
            await asyncio.sleep(0.002)


@pytest.mark.parametrize("who", [server_of, keeper_of])
async def test_a_killed_server_is_a_fault_and_is_replaced(launched: Make, who: Callable[[Any], int]) -> None:
    sandbox = await launched(mounts=OUT)
    running = asyncio.ensure_future(sandbox.exec(STAY, timeout_s=30))
    await until_on(sandbox)
    inside = descendants(server_of(sandbox))
    assert len(inside) >= 4
    os.kill(who(sandbox), signal.SIGKILL)
    result = await running
    assert result.how is Ended.FAULT
    assert result.fault is not None
    assert "slot server: it was killed by signal 9 from outside" in result.fault
    assert not [pid for pid in inside if b") Z" not in stat_of(pid)]
    again = await sandbox.exec(["cat", "/out/on"], timeout_s=30)
    assert (again.how, again.code, again.stdout) == (Ended.EXITED, 0, b"\n"), "the sandbox keeps its folders"


async def test_a_server_that_dies_while_nothing_runs_is_no_fault(launched: Make) -> None:
    sandbox = await launched()
    server = os.pidfd_open(server_of(sandbox))
    signal.pidfd_send_signal(server, signal.SIGKILL)
    # Gone, with the fork that waits in it: until then that one may take the command, and die with it.
    select.select([server], [], [])
    os.close(server)
    assert (await sandbox.exec(["sh", "-c", "exit 3"], timeout_s=30)).code == 3


@pytest.mark.parametrize("which", [0, 1], ids=["init", "command"])
async def test_a_killed_fork_that_waited_is_no_fault(launched: Make, which: int) -> None:
    sandbox = await launched()
    async with asyncio.timeout(30):
        while len(waiting := children(server_of(sandbox))) < 2:
            await asyncio.sleep(0.002)
    os.kill(waiting[which], signal.SIGKILL)
    async with asyncio.timeout(30):
        while b") Z" not in stat_of(waiting[which]):
            await asyncio.sleep(0.002)
    assert (await sandbox.exec(["sh", "-c", "exit 3"], timeout_s=30)).code == 3


async def test_a_stuck_server_is_replaced(launched: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slotrun_module, "SETUP_S", 0.5)
    monkeypatch.setattr(slotrun_module, "_ANSWERS_S", 0.5)
    sandbox = await launched()
    assert (await sandbox.exec(["true"], timeout_s=30)).code == 0
    stuck = server_of(sandbox)
    os.kill(stuck, signal.SIGSTOP)
    assert [(await sandbox.exec(["true"], timeout_s=30)).code for _ in range(2)] == [0, 0]
    assert server_of(sandbox) != stuck
    assert not Path(f"/proc/{stuck}").exists()


async def test_a_stopped_server_keeps_nothing_from_ending(launched: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slotrun_module, "_ANSWERS_S", 0.5)
    sandbox = await launched(mounts=OUT)
    running = asyncio.ensure_future(sandbox.exec(STAY, timeout_s=1))
    await until_on(sandbox)
    inside = descendants(server_of(sandbox))[1:]
    stopped = server_of(sandbox)
    os.kill(stopped, signal.SIGSTOP)
    assert (await asyncio.wait_for(running, 30)).how is Ended.WALL_LIMIT
    alive = [pid for pid in inside if b") Z" not in stat_of(pid)]
    assert alive == []
    assert (await sandbox.exec(["cat", "/out/on"], timeout_s=30)).stdout == b"\n", "the sandbox keeps its folders"
    assert server_of(sandbox) != stopped


async def test_a_server_stopped_while_a_command_ends_is_a_fault(
    launched: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How the command ended nobody can say: that is no bad verdict, and no time limit either."""
    monkeypatch.setattr(slotrun_module, "_ANSWERS_S", 0.5)
    sandbox = await launched(mounts=OUT)
    running = asyncio.ensure_future(sandbox.exec(["sh", "-c", "echo > /out/on; sleep 0.5"], timeout_s=30))
    await until_on(sandbox)
    os.kill(server_of(sandbox), signal.SIGSTOP)
    result = await asyncio.wait_for(running, 20)
    assert (result.how, result.code, result.signal) == (Ended.FAULT, None, None)
    assert (await sandbox.exec(["cat", "/out/on"], timeout_s=30)).stdout == b"\n"


def stat_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return b") Z"


async def test_an_init_killed_by_nobody_knows_whom_is_no_fault(launched: Make) -> None:
    """The graded side might have found a way to: then a bad verdict must not become the infrastructure's."""
    sandbox = await launched(mounts=OUT)
    running = asyncio.ensure_future(sandbox.exec(STAY, timeout_s=30))
    await until_on(sandbox)
    init, _ = children(server_of(sandbox))
    os.kill(init, signal.SIGKILL)
    result = await running
    assert (result.how, result.signal, result.fault) == (Ended.SIGNALED, signal.SIGKILL, None)


_SUPERVISOR = """
import asyncio, json, os, sys, time
from assay.sandbox import SandboxSpec, Writable
from assay.sandbox.namespaces import NamespacesProvider
from assay.sandbox.procfs import descendants
async def main():
    provider = NamespacesProvider()
    idle = await provider.create(SandboxSpec())
    sandbox = await provider.create(SandboxSpec(mounts=(Writable("/out"),)))
    await idle.exec(["true"])
    await idle.close()
    on = await sandbox.get("/out") / "on"
    script = "(trap '' TERM; sleep 100) & sleep 100 & echo > /out/on; wait"
    running = asyncio.ensure_future(sandbox.exec(["sh", "-c", script]))
    while not on.exists() or not idle._maker.slot.waits:
        await asyncio.sleep(0.002)
    below = descendants(os.getpid())[1:]
    forked = os.fork() if sys.argv[1] == "fork" else -1
    if forked == 0:
        # It holds a copy of every socket: the servers must not wait for the last of them.
        time.sleep(100)
    print(json.dumps([below, forked]), flush=True)
    if sys.argv[1] == "exit":
        raise SystemExit
    await running
asyncio.run(main())
"""


@pytest.mark.parametrize("end", ["kill", "exit", "fork"])
def test_nothing_outlives_the_supervisor(end: str) -> None:
    with subprocess.Popen([sys.executable, "-c", _SUPERVISOR, end], stdout=subprocess.PIPE) as supervisor:
        assert supervisor.stdout is not None
        below, forked = json.loads(supervisor.stdout.readline())
        # Two slots of a keeper and a server each, the two that wait in one and what runs in the other.
        assert len(below) >= 4 + 2 + 4
        watched = [fd for pid in below if (fd := _pidfd(pid)) is not None]
        assert watched or end == "exit"
        if end != "exit":
            supervisor.kill()
        supervisor.wait(30)
    for fd in watched:
        assert readable_within(fd, 30), "a process of a dead supervisor's lives"
        os.close(fd)
    if forked > 0:
        os.kill(forked, signal.SIGKILL)
    # What a killed one left in the kernel and on disk, the next removes when it needs some of its own.
    hierarchy = usable_hierarchy()
    if hierarchy is not None:
        sweep_groups(hierarchy)
        assert not [path for parent in hierarchy.distinct for path in parent.glob(f"assay-*-{supervisor.pid}-*")]
    for place in (Path(tempfile.gettempdir()), Path("/dev/shm")):
        sweep_scratch(place)
        assert not list(place.glob(f"assay-*-{supervisor.pid}-*"))


def _pidfd(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return None


def readable_within(fd: int, timeout_s: float) -> bool:
    return bool(select.select([fd], [], [], timeout_s)[0])


async def test_slots_are_used_again_and_kept_few(own_pool: SlotPool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "_idle_most", lambda: 2)
    provider = NamespacesProvider()
    sandboxes = [await provider.create(SandboxSpec()) for _ in range(3)]
    keepers = {keeper_of(sandbox) for sandbox in sandboxes}
    uids = {sandbox._parts.uid for sandbox in sandboxes}
    assert len(keepers) == 3
    assert len(uids) == (3 if os.geteuid() == 0 else 1)
    for sandbox in sandboxes:
        await sandbox.close()
    own_pool.settle()
    assert len(own_pool._idle) == 2
    assert sum(Path(f"/proc/{pid}").exists() for pid in keepers) == 2
    again = await provider.create(SandboxSpec())
    assert keeper_of(again) in keepers
    await again.close()
    other = await provider.create(SandboxSpec(network=True))
    assert keeper_of(other) not in keepers, "a slot with the host's network is another"
    await other.close()


@pytest.mark.parametrize(
    ("program", "why"),
    [("import os; os.kill(os.getpid(), 9)", "it ended"), ("import sys; sys.exit('no room')", "no room")],
)
def test_a_server_that_cannot_be_started_says_why(program: str, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("assay.sandbox.slotserver._PROGRAM", program)
    with pytest.raises(FailureEvent, match=f"a slot server could not be started: {why}$"):
        Slot(network=False, user=1000, base=NOTHING)


@pytest.mark.parametrize(
    "limits",
    [{"_LEASES_MOST": 2}, {"_LIFE_S": 0.0}, {"_RESIDENT_MOST": 1, "_LOOK_EVERY": 2}],
    ids=["count", "age", "memory"],
)
async def test_a_server_is_replaced_when_it_has_served_long_enough(
    own_pool: SlotPool, monkeypatch: pytest.MonkeyPatch, limits: dict[str, float]
) -> None:
    for name, value in limits.items():
        monkeypatch.setattr(f"assay.sandbox.slots.{name}", value)
    servers = []
    for _ in range(2):
        sandbox = await NamespacesProvider().create(SandboxSpec())
        servers.append(server_of(sandbox))
        assert (await sandbox.exec(["true"], timeout_s=30)).code == 0
        await sandbox.close()
        own_pool.settle(30)
    own_pool._grown()
    assert len(set(servers)) == (2 if "_LIFE_S" in limits else 1)
    assert not Path(f"/proc/{servers[-1]}").exists()
    assert all(slot.why_gone() is None for slot in own_pool._idle)


KIND = SlotKind(network=False, user=1000, base=NOTHING)


async def test_sandboxes_that_come_faster_than_a_slot_gets_ready_get_one_more(
    own_pool: SlotPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = own_pool.take(KIND, None)
    own_pool.give_back(one)
    async with asyncio.timeout(30):
        while not one.waits:
            await asyncio.sleep(0.002)
    assert own_pool.take(KIND, None) is one
    assert own_pool._growing is None, "its fork waited already"
    own_pool.give_back(one)
    ready: list[Slot] = []
    monkeypatch.setattr(Slot, "waits", property(lambda slot: slot in ready))
    assert own_pool.take(KIND, None) is one, "nobody waits for a new one"
    own_pool._grown()
    (other,) = own_pool._idle
    own_pool.give_back(one)
    ready.append(other)
    assert own_pool.take(KIND, None) is other, "the one that is ready, not the last one used"
    own_pool.give_back(other)


async def test_a_sandbox_that_ran_nothing_leaves_nothing_prepared(own_pool: SlotPool) -> None:
    provider = NamespacesProvider()
    one = await provider.create(SandboxSpec(mounts=(Writable("/first"),)))
    await one.close()
    two = await provider.create(SandboxSpec(mounts=(Writable("/second"),)))
    result = await two.exec(["ls", "/"], timeout_s=30)
    await two.close()
    assert b"second" in result.stdout
    assert b"first" not in result.stdout


async def test_a_limit_is_of_one_lease(own_pool: SlotPool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "_idle_most", lambda: 1)
    provider = NamespacesProvider()
    if Capability.MEMORY_LIMIT not in provider.capabilities():
        pytest.skip("this user may make no memory group")
    bomb = "x = [bytearray(1 << 20) for _ in range(192)]"
    for limit, expected in ((64 * MIB, Ended.MEMORY_LIMIT), (512 * MIB, Ended.EXITED), (96 * MIB, Ended.MEMORY_LIMIT)):
        sandbox = await provider.create(SandboxSpec(limits=Limits(memory_bytes=limit)))
        result = await sandbox.exec(["python3", "-I", "-S", "-c", bomb], timeout_s=30)
        plain = await sandbox.exec(["true"], timeout_s=30)
        assert (result.how, plain.limits_hit) == (expected, ())
        assert own_pool._idle == []
        await sandbox.close()
    assert len(own_pool._all) == 1


async def test_processor_seconds_are_of_one_command(launched: Make) -> None:
    sandbox = await launched()
    if sandbox._parts.group is None:
        pytest.skip("this user may make no group")
    burn = await sandbox.exec(
        ["python3", "-I", "-S", "-c", "import time\nwhile time.process_time() < 0.5: pass"], timeout_s=30
    )
    rest = await sandbox.exec(["true"], timeout_s=30)
    assert burn.cpu_s is not None
    assert rest.cpu_s is not None
    assert rest.cpu_s < 0.3 < burn.cpu_s


async def netns(sandbox: Any) -> str:
    result = await sandbox.exec(["readlink", "/proc/self/ns/net"], timeout_s=30)
    return str(result.stdout.decode().strip())


_TIME_WAIT = """
import socket
listener = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(listener.getsockname())
server, _ = listener.accept()
client.close()
server.recv(1)
server.close()
"""


async def test_a_network_namespace_serves_until_a_socket_is_left_in_it(launched: Make) -> None:
    sandbox = await launched()
    first = await netns(sandbox)
    assert first != os.readlink("/proc/self/ns/net")
    clean = "import socket; socket.create_server(('127.0.0.1', 0)); socket.socket(socket.AF_UNIX).bind(chr(0) + 'x')"
    assert (await sandbox.exec(["python3", "-I", "-S", "-c", clean], timeout_s=30)).code == 0
    assert await netns(sandbox) == first
    result = await sandbox.exec(["python3", "-I", "-S", "-c", _TIME_WAIT], timeout_s=30)
    assert (result.code, result.stderr) == (0, b"")
    second = await netns(sandbox)
    assert second != first, "a connection lingers: the next command gets a fresh one"
    talk = (
        "import socket as s; a = s.socket(2, 2); a.bind(('127.0.0.1', 0)); s.socket(2, 2).sendto(b'x', a.getsockname())"
    )
    assert (await sandbox.exec(["python3", "-I", "-S", "-c", talk], timeout_s=30)).code == 0
    third = await netns(sandbox)
    assert third != second, "what was counted could be read"
    second = third
    look = "cat /proc/net/tcp /proc/net/unix | wc -l; cat /proc/net/dev | tail -n +3"
    seen = (await sandbox.exec(["sh", "-c", look], timeout_s=30)).stdout.split()
    assert seen[:2] == [b"2", b"lo:"]
    assert await netns(sandbox) == second


async def test_a_socket_that_was_handed_out_costs_the_namespace(launched: Make) -> None:
    sandbox = await launched()
    first = await netns(sandbox)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    source = """
import socket, sys
given, made = socket.socket(fileno=int(sys.argv[1])), socket.socket()
socket.send_fds(given, [b"x"], [made.fileno()])
"""
    with ours, theirs:
        fd = theirs.fileno()
        await sandbox.exec(["python3", "-I", "-S", "-c", source, str(fd)], pass_fds=(fd,), timeout_s=30)
        assert await netns(sandbox) != first
    close_idle()


async def test_a_slot_is_of_one_user_and_the_longest_idle_one_goes(
    own_pool: SlotPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_module, "_idle_most", lambda: 2)
    provider = NamespacesProvider()
    for user in (None, 0, 4321):
        sandbox = await provider.create(SandboxSpec(user=user))
        assert (await sandbox.exec(["id", "-u"], timeout_s=30)).stdout == f"{1000 if user is None else user}\n".encode()
        await sandbox.close()
    own_pool.settle()
    assert [slot.user for slot in own_pool._idle] == [0, 4321]

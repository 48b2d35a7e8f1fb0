"""What a command in the launcher's sandbox has: no right, no uid of the host's, no descriptor, no system call too many."""

from __future__ import annotations

import asyncio
import json
import os
import re
import resource
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from assay.sandbox import Limits, Writable

ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: only root's sandboxes have uids of their own")
Make = Callable[..., Awaitable[Any]]
OUT = (Writable("/out"),)


async def python(sandbox: Any, source: str, *arguments: str, **options: Any) -> Any:
    """What a program in the sandbox prints last, as JSON."""
    result = await sandbox.exec(["python3", "-I", "-S", "-c", source, *arguments], timeout_s=30, **options)
    assert (result.code, result.stderr) == (0, b""), result
    return json.loads(result.stdout.splitlines()[-1])


async def test_no_capability_no_new_privileges_and_a_filter(launched: Make) -> None:
    result = await (await launched()).exec(["cat", "/proc/self/status"], timeout_s=30)
    status = dict(line.split(":\t", 1) for line in result.stdout.decode().splitlines() if ":\t" in line)
    sets = {name: int(status[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")}
    assert sets == dict.fromkeys(sets, 0)
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    assert status["Uid"].split() == status["Gid"].split() == ["1000"] * 4
    # 32 and 33 are the C library's own, which `posix_spawn` ignores for whoever is started.
    ignored = int(status["SigIgn"], 16) & ~(1 << 31 | 1 << 32)
    assert (ignored, status["SigBlk"], status["Umask"]) == (0, "0" * 16, "0022")


@ROOT
async def test_the_kernel_uid_is_the_slots_own(launched: Make) -> None:
    one, two = await launched(mounts=OUT), await launched(mounts=OUT)
    seen = []
    for sandbox in (one, two):
        running = asyncio.ensure_future(sandbox.exec(["sh", "-c", "echo > /out/on; sleep 100"], timeout_s=30))
        on = sandbox._parts.room.writables["/out"] / "on"
        async with asyncio.timeout(30):
            while not on.exists():
                await asyncio.sleep(0.002)
        uids = {uid for pid in sandbox._parts.group.pids() for uid in uids_of(pid)}
        server = {uid for pid in servers_of(sandbox) for uid in uids_of(pid)}
        assert uids == {sandbox._parts.uid}
        assert len(server) == 1
        assert not server & (uids | {0, os.geteuid()})
        seen += [*uids, *server]
        await sandbox.kill()
        await running
    assert len(set(seen)) == 4


def uids_of(pid: int) -> list[int]:
    (line,) = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("Uid:")]
    return [int(uid) for uid in line.split()[1:]]


def servers_of(sandbox: Any) -> list[int]:
    """The slot's keeper and server."""
    keeper = sandbox._maker.slot._server._popen.pid
    return [keeper, *map(int, Path(f"/proc/{keeper}/task/{keeper}/children").read_text().split())]


async def test_only_what_was_passed_is_open(launched: Make) -> None:
    sandbox = await launched()
    read_end, write_end = os.pipe()
    high = 700
    os.dup2(write_end, high)
    try:
        for passed in ((), (write_end,), (high,), (high, write_end), (write_end, read_end)):
            result = await sandbox.exec(["ls", "-l", "/proc/self/fd"], pass_fds=passed, timeout_s=30)
            seen = re.findall(rb" (\d+) -> (.*)", result.stdout)
            # `ls` has the folder itself open, under the first number that is free.
            assert {int(fd) for fd, what in seen if not what.endswith(b"/fd")} == {0, 1, 2, *passed}
            assert len(seen) == 4 + len(passed)
    finally:
        for fd in (read_end, write_end, high):
            os.close(fd)


async def test_the_servers_files_and_the_hosts_switches_are_refused(launched: Make) -> None:
    source = """
import json, os
opened = []
for path, mode in (("/proc/sys/kernel/core_pattern", os.O_WRONLY), ("/etc/shadow", os.O_RDONLY), ("/proc/1/mem", os.O_RDWR),
                   ("/proc/1/environ", os.O_RDONLY), ("/proc/1/maps", os.O_RDONLY), ("/proc/1/oom_score_adj", os.O_WRONLY),
                   ("/proc/1/timerslack_ns", os.O_WRONLY), ("/proc/sysrq-trigger", os.O_WRONLY)):
    try:
        fd = os.open(path, mode)
        if mode == os.O_WRONLY:
            os.write(fd, b"1")
        opened.append(path)
    except OSError:
        pass
try:
    opened += os.listdir("/proc/1/fd")
except OSError:
    pass
print(json.dumps(opened))
"""
    assert await python(await launched(), source) == []


@ROOT
async def test_root_of_the_namespace_is_nobody_outside(launched: Make) -> None:
    """The server, not a command: what a bug before the drop of rights would be worth."""
    sandbox = await launched()
    _, server = servers_of(sandbox)
    status = dict(line.split(":\t", 1) for line in Path(f"/proc/{server}/status").read_text().splitlines())
    assert status["Groups"].split() == []
    assert os.readlink(f"/proc/{server}/ns/user") != os.readlink("/proc/self/ns/user")
    root = Path(f"/proc/{server}/root")
    # Its own, and of the host what every sandbox is shown.
    shown = (await sandbox.exec(["ls", "/"], timeout_s=30)).stdout.decode().split()
    assert {path.name for path in root.iterdir()} == {"assay-init", "dev", "host", "new", "proc"} | set(shown) - {"tmp"}
    assert "root:x:0:0" in (root / "etc/passwd").read_text()
    assert not (root / "etc/shadow").exists()
    assert list((root / "host").iterdir()) == [], "nothing of the host is mounted where root's server lives"
    assert int(status["CapBnd"], 16) == 0


async def test_what_is_in_the_sandbox_says_nothing_of_the_host(launched: Make) -> None:
    sandbox = await launched()
    result = await sandbox.exec(
        ["sh", "-c", "cat /proc/1/cmdline /proc/1/comm; hostname; cat /proc/self/cgroup"], timeout_s=30
    )
    text = result.stdout.replace(b"\0", b"")
    assert text.startswith(b"assay-initassay-init\nsandbox\n")
    assert str(Path(__file__).parents[3]).encode() not in text
    assert b"assay-" not in text.removeprefix(b"assay-initassay-init\n")


async def test_limits_of_each_process(launched: Make) -> None:
    sandbox = await launched(limits=Limits(file_bytes=1 << 20))
    source = "import json, resource as r; print(json.dumps([r.getrlimit(x) for x in (r.RLIMIT_CORE, r.RLIMIT_FSIZE)]))"
    assert await python(sandbox, source) == [[1, 1], [1 << 20, 1 << 20]]


async def test_another_process_limits_cannot_be_set(launched: Make) -> None:
    """Else a command could have its init killed for the processor time that reaping takes."""
    source = """
import json, os, resource as r, subprocess
r.setrlimit(r.RLIMIT_CPU, (100, 100))
other = subprocess.Popen(["sleep", "30"])
seen = [r.prlimit(0, r.RLIMIT_CPU)[0], r.prlimit(other.pid, r.RLIMIT_NOFILE)[0] > 0]
for pid in (1, other.pid):
    try:
        r.prlimit(pid, r.RLIMIT_CPU, (0, 0))
    except PermissionError:
        seen.append("refused")
other.kill()
other.wait()
print(json.dumps(seen))
"""
    assert await python(await launched(), source) == [100, True, "refused", "refused"]


async def test_the_init_has_no_right(launched: Make) -> None:
    sandbox = await launched(mounts=OUT)
    running = asyncio.ensure_future(sandbox.exec(["sh", "-c", "echo > /out/on; sleep 100"], timeout_s=30))
    async with asyncio.timeout(30):
        while not (sandbox._parts.room.writables["/out"] / "on").exists():
            await asyncio.sleep(0.002)
    server = servers_of(sandbox)[1]
    init, _ = Path(f"/proc/{server}/task/{server}/children").read_text().split()
    assert Path(f"/proc/{init}/comm").read_text() == "assay-init\n"
    status = dict(
        line.split(":\t", 1) for line in Path(f"/proc/{init}/status").read_text().splitlines() if ":\t" in line
    )
    assert {name: int(status[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {
        "CapInh": 0,
        "CapPrm": 0,
        "CapEff": 0,
        "CapBnd": 0,
        "CapAmb": 0,
    }
    assert status["NoNewPrivs"] == "1"
    # Root's is the slot server's own, so that no command may even signal it.
    assert set(map(int, status["Uid"].split())) == set(uids_of(server))
    assert sandbox._parts.uid not in uids_of(int(init))
    if os.geteuid() == 0:
        assert list(Path(f"/proc/{init}/fd").iterdir()) == []
    else:
        with pytest.raises(PermissionError):
            list(Path(f"/proc/{init}/fd").iterdir())
    await sandbox.kill()
    await running


async def test_a_sandbox_may_have_fewer_descriptors_than_its_supervisor(launched: Make) -> None:
    """Those under way count by kernel uid: with as many it could stop an ordinary user's supervisor sending any."""
    sandbox = await launched()
    most, core = await python(
        sandbox,
        "import json, resource as r; print(json.dumps([r.getrlimit(r.RLIMIT_NOFILE)[1], r.getrlimit(r.RLIMIT_CORE)]))",
    )
    if sandbox._parts.uid is None:
        assert most <= resource.getrlimit(resource.RLIMIT_NOFILE)[0] * 3 // 4
    # 1 also keeps a kernel from piping a core file to a program of the host's.
    assert core == [1, 1]

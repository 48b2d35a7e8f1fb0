"""What holds of every provider that isolates, beside the kit: two implementations, the same outcome."""

from __future__ import annotations

import asyncio
import os
import resource
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from assay.failures import FailureEvent
from assay.sandbox import MIB, BaseUse, Ended, Limits, Overlay, ReadOnly, Writable

ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: what an ordinary user lacks is tested with the kit")
Make = Callable[..., Awaitable[Any]]
OUT = (Writable("/out"),)


async def until_exists(path: Path) -> None:
    async with asyncio.timeout(30):
        while not path.exists():
            await asyncio.sleep(0.002)


async def test_back_means_dead(isolating: Make) -> None:
    writers = (
        "for i in 1 2 3 4 5 6 7 8; do (while :; do echo x >> /out/$i; done) & done; "
        "while test $(ls /out | wc -l) -lt 8; do :; done"
    )
    for _ in range(10):
        sandbox = await isolating(mounts=OUT)
        result = await sandbox.exec(["sh", "-c", writers], timeout_s=30)
        folder = await sandbox.get("/out")
        sizes = {path.name: path.stat().st_size for path in folder.iterdir()}
        assert (result.how, len(sizes)) == (Ended.EXITED, 8)
        until = time.monotonic() + 0.03
        while time.monotonic() < until:
            assert {path.name: path.stat().st_size for path in folder.iterdir()} == sizes
        await sandbox.close()


async def test_two_sandboxes_share_nothing(isolating: Make) -> None:
    one, two = await isolating(mounts=OUT), await isolating(mounts=OUT)
    folder = await one.get("/out")
    running = asyncio.ensure_future(
        one.exec(["sh", "-c", "touch /out/on; sleep 100"], env={"SECRET": "x"}, timeout_s=30)
    )
    await until_exists(folder / "on")
    seen = await two.exec(["sh", "-c", "cat /proc/[0-9]*/environ; ls /out; kill -9 -1; echo on"], timeout_s=30)
    assert b"SECRET" not in seen.stdout
    assert not running.done()
    await one.kill()
    await running


@pytest.mark.parametrize("user", [0, 1, 1000])
async def test_no_user_has_a_capability(isolating: Make, user: int) -> None:
    sandbox = await isolating(user=user)
    script = "id -u; grep -E 'Cap(Prm|Eff|Inh|Bnd|Amb)' /proc/self/status | cut -f 2"
    seen = await sandbox.exec(["sh", "-c", script], timeout_s=30)
    assert seen.stdout.decode().split() == [str(user), *["0" * 16] * 5]


@pytest.mark.parametrize("use", [BaseUse.OVERLAID, BaseUse.WRITTEN])
async def test_a_root_that_may_be_written_carries_every_kind_of_mount(
    isolating: Make, tmp_path: Path, small_base: Path, use: BaseUse
) -> None:
    given, work = tmp_path / "given", tmp_path / "work"
    for folder in (given, work):
        folder.mkdir()
        (folder / "file").write_text("first\n")
    mounts = (ReadOnly(given, "/new/given"), Overlay(work, "/work"), Writable("/out"), ReadOnly(given, "/etc/more"))
    sandbox = await isolating(base=small_base, base_use=use, mounts=mounts, user=0)
    script = (
        "cat /new/given/file /work/file /etc/more/file; echo n 2>/dev/null > /new/given/file; echo changed > /work/file; "
        "echo o >> /out/all; echo b >> /bin/new; cat /bin/new /out/all; ls -a /; id -u"
    )
    for turn in (1, 2):
        result = await sandbox.exec(["sh", "-c", script], timeout_s=30)
        lines = result.stdout.decode().split()
        kept = turn if use is BaseUse.WRITTEN else 1
        assert lines[: 3 + kept + turn] == ["first"] * 3 + ["b"] * kept + ["o"] * turn
        assert not {".made", ".layers", "host"} & set(lines)
        assert lines[-1] == "0"
    assert [(folder / "file").read_text() for folder in (given, work)] == ["first\n"] * 2
    assert (small_base / "bin" / "new").exists() is (use is BaseUse.WRITTEN)


@ROOT
async def test_sources_below_a_closed_home_and_closed_themselves(
    isolating: Make, tmp_path: Path, small_base: Path
) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    base = home / "base"
    small_base.rename(base)
    tests = home / "tests"
    tests.mkdir()
    (tests / "test.sh").write_text("echo tested\n")
    (tests / "test.sh").chmod(0o600)
    lower = home / "lower"
    lower.mkdir(mode=0o700)
    (lower / "answer").write_text("42\n")
    mounts = (ReadOnly(tests, "/tests"), Overlay(lower, "/data/real"), ReadOnly(base / "etc/own", "/one"))
    sandbox = await isolating(base=base, mounts=mounts)
    result = await sandbox.exec(
        ["sh", "-c", "sh /tests/test.sh; cat /app/answer /one; touch /app/new; id"], timeout_s=30
    )
    assert result.stderr == b""
    assert result.stdout.startswith(b"tested\n42\nthe base's own\nuid=1000")
    assert sorted(path.name for path in lower.iterdir()) == ["answer"]
    assert {path.stat().st_uid for path in (lower, lower / "answer", tests / "test.sh")} == {0}
    assert str(home) not in Path("/proc/self/mountinfo").read_text()


async def test_a_base_of_real_folders(isolating: Make, small_base: Path) -> None:
    mounts = (Writable("/logs/verifier"), ReadOnly(small_base / "etc/own", "/data/new/file"))
    sandbox = await isolating(base=small_base, mounts=mounts)
    result = await sandbox.exec(
        ["sh", "-c", "cat /etc/own /data/new/file; ls /; touch /etc/x || echo refused"], timeout_s=30
    )
    lines = result.stdout.decode().split()
    assert lines[:6] == ["the", "base's", "own", "the", "base's", "own"]
    assert {"app", "bin", "data", "dev", "etc", "home", "logs", "proc", "tmp", "usr", "var", "work"} <= set(lines[6:])
    assert lines[-1] == "refused"
    assert not (small_base / "data/new").exists()


async def test_a_child_killed_for_memory_is_told_apart_from_the_command(isolating: Make) -> None:
    sandbox = await isolating(limits=Limits(memory_bytes=64 * MIB))
    if sandbox._parts.group is None or not sandbox._parts.group.limits_memory:
        pytest.skip("this user may make no memory group")
    bomb = "x = [bytearray(1 << 20) for _ in range(256)]"
    child = await sandbox.exec(["sh", "-c", f"python3 -c '{bomb}'; echo survived"], timeout_s=30)
    assert (child.how, child.code, child.limits_hit) == (Ended.EXITED, 0, ("memory_limit",))
    assert child.stdout.endswith(b"survived\n")
    itself = await sandbox.exec(["python3", "-c", bomb], timeout_s=30)
    assert (itself.how, itself.code, itself.limits_hit) == (Ended.MEMORY_LIMIT, None, ("memory_limit",))
    assert (await sandbox.exec(["true"], timeout_s=30)).limits_hit == ()
    only_says_so = await sandbox.exec(["sh", "-c", "exit 137"], timeout_s=30)
    assert (only_says_so.how, only_says_so.code) == (Ended.EXITED, 137)


async def test_a_waiting_thread_is_seen_at_the_wall_limit(isolating: Make) -> None:
    sandbox = await isolating(limits=Limits(cpus=0.05))
    result = await sandbox.exec(["sh", "-c", "while :; do :; done & while :; do :; done"], timeout_s=1)
    assert result.how is Ended.WALL_LIMIT
    assert result.run_delay_s is not None
    assert result.run_delay_s > 0


async def test_a_thread_that_chose_its_processor_does_not_count_as_waiting(isolating: Make) -> None:
    """It may have chosen the one that is busy."""
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("this machine has one processor to choose from")
    pinned = (
        "import os\nos.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\nos.fork()\nos.fork()\nwhile True: pass"
    )
    sandbox = await isolating()
    result = await sandbox.exec(["python3", "-I", "-S", "-c", pinned], timeout_s=1)
    assert (result.how, result.run_delay_s) == (Ended.WALL_LIMIT, 0.0)


@pytest.mark.parametrize(
    ("program", "argv"),
    [
        (
            "gcc",
            ["sh", "-c", "echo 'int main(){return 7;}' > /tmp/a.c && gcc /tmp/a.c -o /tmp/a && /tmp/a; test $? = 7"],
        ),
        (
            "git",
            [
                "sh",
                "-c",
                "cd /tmp && git init -q r && cd r && git -c user.name=a -c user.email=a@b commit -q --allow-empty -m x",
            ],
        ),
        ("node", ["node", "-e", "new (require('worker_threads').Worker)('1', {eval: true}).on('exit', process.exit)"]),
        ("java", ["java", "-version"]),
        ("sqlite3", ["sqlite3", "/tmp/x.db", "create table t(a); insert into t values (1);"]),
        ("perl", ["perl", "-e", "exit(getpwuid($<) eq 'sandbox' ? 0 : 1)"]),
        ("openssl", ["openssl", "rand", "-hex", "4"]),
    ],
)
async def test_honest_programs(isolating: Make, program: str, argv: list[str]) -> None:
    if not Path("/usr/bin", program).exists():
        pytest.skip(f"{program} is not installed here")
    sandbox = await isolating()
    result = await sandbox.exec(argv, timeout_s=60)
    assert (result.how, result.code, result.stderr if program != "java" else b"") == (Ended.EXITED, 0, b"")


async def test_the_network_when_it_is_asked_for(isolating: Make) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        source = (
            f"import socket; socket.create_connection(('localhost', {port}), 5); print(open('/etc/resolv.conf').read())"
        )
        sandbox = await isolating(network=True)
        result = await sandbox.exec(["python3", "-c", source], timeout_s=30)
    assert (result.code, result.stderr) == (0, b"")
    assert result.stdout.decode().strip() == Path("/etc/resolv.conf").read_text().strip()


async def test_no_descriptors_left_is_the_machines_fault(isolating: Make) -> None:
    sandbox = await isolating()
    assert (await sandbox.exec(["true"], timeout_s=30)).code == 0
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    seen: list[object] = []
    # What is free lies below the highest number in use, too: past the count and past the numbers.
    for room in range(1, 12):
        used = max(map(int, os.listdir("/proc/self/fd")))
        fillers: list[int] = []
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + 20, hard))
        try:
            while True:
                try:
                    fillers.append(os.open("/dev/null", os.O_RDONLY))
                except OSError:
                    break
            for _ in range(room):
                os.close(fillers.pop())
            seen.append(await outcome(sandbox))
        finally:
            for fd in fillers:
                os.close(fd)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert (await sandbox.exec(["true"], timeout_s=30)).code == 0
    assert set(seen) <= {"transport_local_resource", "provider_unavailable", Ended.FAULT, Ended.EXITED}


async def outcome(sandbox: Any) -> object:
    """The kind of the failure, or how the command ended."""
    try:
        return (await asyncio.wait_for(sandbox.exec(["true"], timeout_s=30), 60)).how
    except FailureEvent as failure:
        return failure.kind

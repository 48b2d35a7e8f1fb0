"""What a slot makes ready before anybody asks: good for one sandbox of its shape, and with nothing in it of the one before."""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from assay.sandbox import (
    MIB,
    BaseUse,
    Capability,
    Ended,
    Limits,
    Mount,
    Overlay,
    ReadOnly,
    SandboxSpec,
    Writable,
)
from assay.sandbox.bays import shape_of
from assay.sandbox.cgroups import sweep as sweep_groups
from assay.sandbox.machine import usable_hierarchy
from assay.sandbox.namespaces import NamespacesProvider, get_ready
from assay.sandbox.procfs import children
from assay.sandbox.slotpool import SlotPool
from assay.sandbox.slots import Slot
from assay.workspaces import scratch_folder
from assay.workspaces.scratch import sweep as sweep_scratch
from warm import PYTHON

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root's supervisor makes mounts itself, so only root has bays"
)

PROVIDER = NamespacesProvider()


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that every uid can pass."""
    with scratch_folder("bays") as folder:
        yield folder


async def ready_slot(pool: SlotPool) -> Slot:
    """The pool's slot, when its bay is laid out and its fork has built it."""
    pool.settle(30)
    (slot,) = pool._idle
    assert slot.bay is not None
    async with asyncio.timeout(30):
        while not slot.waits:
            await asyncio.sleep(0.002)
    return slot


async def run(sandbox: Any, source: str, **options: Any) -> str:
    """What a Python program says on stdout; it must end well."""
    result = await sandbox.exec([PYTHON, "-I", "-c", source], timeout_s=30, **options)
    assert (result.how, result.code) == (Ended.EXITED, 0), (result, result.stderr.decode())
    return str(result.stdout.decode())


async def one_after_the_other(pool: SlotPool, *turns: tuple[SandboxSpec, str]) -> list[str]:
    """What each program says, each in a sandbox of its own in the same slot."""
    said, slots = [], set()
    for spec, source in turns:
        sandbox: Any = await PROVIDER.create(spec)
        slots.add(sandbox._maker.slot)
        said.append(await run(sandbox, source))
        await sandbox.close()
        await ready_slot(pool)
    assert len(slots) == 1
    return said


LIST = "import os; print(sorted(os.path.join(at, name) for at, _, names in os.walk('/logs') for name in names))"


async def test_a_room_is_empty_whatever_the_one_before_left(one_slot: SlotPool) -> None:
    spec = SandboxSpec(mounts=(Writable("/logs/verifier"), Writable("/logs/artifacts", on_disk=True)))
    leaves = """
import os, stat
for at in ("/logs/verifier", "/logs/artifacts"):
    os.makedirs(at + "/a/b")
    open(at + "/a/b/left", "w").write("left")
    os.symlink("/logs", at + "/link")
    os.chmod(at, 0)
"""
    # The second has the bay that was laid out after the first.
    looks = LIST + "; print([oct(os.stat(at).st_mode) for at in ('/logs/verifier', '/logs/artifacts')])"
    said = await one_after_the_other(one_slot, (spec, leaves), (spec, looks))
    assert said[1] == "[]\n['0o40700', '0o40700']\n"


def looks_at(*places: str) -> str:
    return f"import os; print({{at: sorted(os.listdir(at)) for at in {places!r} if os.path.exists(at)}})"


async def test_a_bay_of_one_shape_is_not_given_to_another(one_slot: SlotPool, place: Path) -> None:
    for name in ("one", "two"):
        (place / name).mkdir()
        (place / name / name).touch()
    shapes: tuple[tuple[Mount, ...], ...] = (
        (Writable("/out"), ReadOnly(place / "one", "/seen", open=True)),
        (Writable("/out"), ReadOnly(place / "two", "/seen", open=True)),
        (Writable("/other"), ReadOnly(place / "two", "/seen", open=True)),
        (ReadOnly(place / "two", "/seen", open=True),),
        (Writable("/out"), Overlay(place / "one", "/seen", own=True)),
    )
    look = looks_at("/out", "/other", "/seen")
    said = await one_after_the_other(one_slot, *((SandboxSpec(mounts=mounts), look) for mounts in shapes))
    assert said == [
        "{'/out': [], '/seen': ['one']}\n",
        "{'/out': [], '/seen': ['two']}\n",
        "{'/other': [], '/seen': ['two']}\n",
        "{'/seen': ['two']}\n",
        "{'/out': [], '/seen': ['one']}\n",
    ]


async def test_limits_belong_to_the_shape(one_slot: SlotPool) -> None:
    if Capability.MEMORY_LIMIT not in PROVIDER.capabilities():
        pytest.skip("this user may make no memory group")
    size = "import os; s = os.statvfs('/out'); print(s.f_blocks * s.f_frsize >> 20)"
    specs = [SandboxSpec(mounts=(Writable("/out"),), limits=Limits(tmp_bytes=n * MIB)) for n in (8, 16, 8)]
    said = await one_after_the_other(one_slot, *((spec, size) for spec in specs))
    assert said == ["8\n", "16\n", "8\n"]


async def test_a_bay_that_nobody_ran_in_shows_nothing_to_the_next(one_slot: SlotPool, place: Path) -> None:
    for name in ("one", "two"):
        (place / name).mkdir()
        (place / name / name).touch()
    first, second = (SandboxSpec(mounts=(Overlay(place / name, "/seen", own=True),)) for name in ("one", "two"))
    sandbox = await PROVIDER.create(first)
    await sandbox.close()
    await ready_slot(one_slot)
    # Its late mounts were made by the fork, for a command that never came.
    sandbox = await PROVIDER.create(first)
    await sandbox.close()
    await ready_slot(one_slot)
    sandbox = await PROVIDER.create(second)
    assert await run(sandbox, looks_at("/seen")) == "{'/seen': ['two']}\n"
    await sandbox.close()


async def test_mounts_inside_a_read_only_folder(one_slot: SlotPool, place: Path) -> None:
    tests, own = place / "tests", place / "own.json"
    (tests / "data" / "deep").mkdir(parents=True)
    for name in ("response.json", "data/deep/file"):
        (tests / name).write_text("placeholder")
    own.write_text("mine")
    mounts = (
        ReadOnly(tests, "/tests", open=True),
        ReadOnly(own, "/tests/response.json", open=True),
        ReadOnly(own, "/tests/data/deep/file", open=True),
    )
    spec = SandboxSpec(mounts=mounts)
    assert shape_of(spec) is not None
    look = """
print(open("/tests/response.json").read(), open("/tests/data/deep/file").read())
for path in ("/tests/response.json", "/tests/data/deep/file", "/tests/new"):
    try: open(path, "w"); print("written")
    except OSError as error: print(error.errno)
"""
    said = await one_after_the_other(one_slot, (spec, look), (spec, look))
    assert said == ["mine mine\n30\n30\n30\n"] * 2
    assert (tests / "response.json").read_text() == "placeholder"


def _linked(place: Path) -> tuple[Mount, ...]:
    (place / "elsewhere").mkdir()
    (place / "elsewhere" / "file").touch()
    (place / "tests" / "link").symlink_to("../elsewhere")
    return (ReadOnly(place / "tests", "/tests"), ReadOnly(place / "file", "/tests/link/file"))


SHAPES: list[tuple[str, bool, Callable[[Path], tuple[Mount, ...]]]] = [
    ("nothing", True, lambda _: ()),
    ("folders of its own", True, lambda _: (Writable("/logs/verifier"), Writable("/app", on_disk=True))),
    ("a file over a file", True, lambda at: (ReadOnly(at / "tests", "/tests"), ReadOnly(at / "file", "/tests/here"))),
    ("a folder over a folder", True, lambda at: (ReadOnly(at / "tests", "/tests"), ReadOnly(at, "/tests/folder"))),
    ("a file where none is", False, lambda at: (ReadOnly(at / "tests", "/tests"), ReadOnly(at / "file", "/tests/no"))),
    ("a file over a folder", False, lambda at: (ReadOnly(at / "tests", "/t"), ReadOnly(at / "file", "/t/folder"))),
    ("a folder over a file", False, lambda at: (ReadOnly(at / "tests", "/tests"), ReadOnly(at, "/tests/here"))),
    ("a file behind a link", False, _linked),
    ("a writable in a read-only one", False, lambda at: (ReadOnly(at / "tests", "/t"), Writable("/t/folder"))),
    ("a file in an overlay", False, lambda at: (Overlay(at / "tests", "/app"), ReadOnly(at / "file", "/app/here"))),
    ("a file in a writable", False, lambda at: (Writable("/logs"), ReadOnly(at / "file", "/logs/here"))),
    *(
        (f"a place in {at}", False, lambda _, at=at: (Writable(f"{at}/assay-place"),))
        for at in ("/usr", "/etc", "/usr/share/doc")
    ),
]


@pytest.mark.parametrize(("has", "mounts"), [case[1:] for case in SHAPES], ids=[case[0] for case in SHAPES])
async def test_which_sandboxes_get_a_bay(
    has: bool, mounts: Callable[[Path], tuple[Mount, ...]], one_slot: SlotPool, place: Path
) -> None:
    (place / "tests" / "folder").mkdir(parents=True)
    for name in ("tests/here", "file"):
        (place / name).write_text(name)
    spec = SandboxSpec(mounts=mounts(place))
    assert (shape_of(spec) is not None) is has
    try:
        sandbox: Any = await PROVIDER.create(spec)
    except ValueError:
        assert not has
        return
    result = await sandbox.exec(["true"], timeout_s=30)
    await sandbox.close()
    one_slot.settle(30)
    assert has == all(slot.bay is not None for slot in one_slot._idle)
    if has:
        assert (result.how, result.code) == (Ended.EXITED, 0), result


def test_a_base_of_its_own_has_no_bay(place: Path) -> None:
    assert shape_of(SandboxSpec(place)) is None
    assert shape_of(SandboxSpec(place, base_use=BaseUse.OVERLAID)) is None


def waiting(slot: Slot) -> dict[str, int]:
    """The host's pids of a warm slot's server, and of the init and the command that wait below it."""
    assert slot._server is not None
    (server,) = children(slot._server._popen.pid)
    init, command = children(server)
    return {"server": server, "init": init, "command": command}


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] in b"ZX"
    except OSError:
        return True


@pytest.mark.parametrize("who", ["server", "init", "command"])
@pytest.mark.parametrize("noticed", [True, False])
async def test_a_bay_whose_fork_died_is_replaced(one_slot: SlotPool, who: str, noticed: bool) -> None:
    spec = SandboxSpec(mounts=(Writable("/out"),), interpreter=PYTHON)
    await get_ready(spec)
    (warm,) = one_slot._idle
    first: Any = await PROVIDER.create(spec)
    assert first._maker.slot is warm
    await first.close()
    slot = await ready_slot(one_slot)
    there = waiting(slot)
    sandbox: Any = None if noticed else await PROVIDER.create(spec)
    os.kill(there[who], signal.SIGKILL)
    async with asyncio.timeout(30):
        # The last of them to go.
        while not gone(there["server" if who == "server" else "init"]):
            await asyncio.sleep(0.002)
    if noticed and who == "server":
        # Nothing of such a slot is used again; another one is started beside this sandbox.
        await get_ready(spec)
    if noticed:
        sandbox = await PROVIDER.create(spec)
    assert (sandbox._maker.slot is slot) is not (noticed and who == "server")
    assert await run(sandbox, "import gc; print(gc.get_freeze_count() > 0)") == "True\n"
    assert await run(sandbox, looks_at("/out")) == "{'/out': []}\n"
    await sandbox.close()
    await ready_slot(one_slot)


@pytest.mark.parametrize("what", ["the folder", "a room in memory", "a room on disk"])
async def test_a_bay_that_a_cleaner_of_temporary_files_found_is_not_used(one_slot: SlotPool, what: str) -> None:
    spec = SandboxSpec(mounts=(Writable("/out"), Writable("/disk", on_disk=True)))
    first = await PROVIDER.create(spec)
    await first.close()
    slot = await ready_slot(one_slot)
    assert slot.bay is not None
    room = slot.bay.room
    gone_with = {"the folder": [*room.writables.values()], "a room in memory": [room.writables["/out"]]}
    for folder in gone_with.get(what, [room.writables["/disk"]]):
        folder.rmdir()
    sandbox: Any = await PROVIDER.create(spec)
    await run(sandbox, "open('/out/reward', 'w').close(); open('/disk/log', 'w').close()")
    assert [sorted(os.listdir(await sandbox.get(at))) for at in ("/out", "/disk")] == [["reward"], ["log"]]
    await sandbox.close()
    await ready_slot(one_slot)


CHANGES = """
import os, sys, time
name = {name!r}
os.chdir("/app")
assert sorted(os.listdir(".")) == ["folder", "gone", "kept"], os.listdir(".")
open("kept", "a").write(name)
os.unlink("gone")
os.link("kept", "hard")
os.rename("folder/inside", name)
os.chmod("folder", 0o500)
try: os.setxattr("kept", "user.name", name.encode())
except OSError: pass
fd = os.open("kept", os.O_RDWR)
import mmap
with mmap.mmap(fd, 0) as mapped: mapped[:1] = b"X"
open("/out/done", "w").close()
for _ in range(1500):
    if os.path.exists("/out/go"): break
    time.sleep(0.02)
print(open("kept").read(), sorted(os.listdir(".")))
"""


async def test_two_on_one_lower_folder_at_once_see_their_own_changes_alone(one_slot: SlotPool, place: Path) -> None:
    lower = place / "captured"
    (lower / "folder").mkdir(parents=True)
    for name in ("kept", "gone", "folder/inside"):
        (lower / name).write_text("given ")
    before = {path: (path.lstat(), path.is_file() and path.read_text()) for path in sorted(lower.rglob("*"))}
    spec = SandboxSpec(mounts=(Writable("/out"), Overlay(lower, "/app", own=True)))
    sandboxes: list[Any] = [await PROVIDER.create(spec) for _ in range(2)]
    assert sandboxes[0]._parts.sources["/app"] == sandboxes[1]._parts.sources["/app"] == lower, "no copy was made"
    assert sandboxes[0]._parts.uid != sandboxes[1]._parts.uid
    running = [
        asyncio.ensure_future(run(sandbox, CHANGES.format(name=name)))
        for sandbox, name in zip(sandboxes, ("one", "two"), strict=True)
    ]
    rooms = [sandbox._parts.room.writables["/out"] for sandbox in sandboxes]
    async with asyncio.timeout(30):
        while not all((room / "done").exists() for room in rooms) and not any(task.done() for task in running):
            await asyncio.sleep(0.002)
    for room in rooms:
        (room / "go").touch()
    assert await asyncio.gather(*running) == [
        f"Xiven {name} {sorted(['folder', 'hard', 'kept', name])}\n" for name in ("one", "two")
    ]
    for sandbox in sandboxes:
        await sandbox.close()
    after = {path: (path.lstat(), path.is_file() and path.read_text()) for path in sorted(lower.rglob("*"))}
    same = ("st_mode", "st_uid", "st_gid", "st_nlink", "st_ino", "st_mtime_ns", "st_ctime_ns", "st_size")
    assert list(after) == list(before)
    for path, (status, text) in before.items():
        now, is_now = after[path]
        assert [(name, getattr(now, name)) for name in same] == [(name, getattr(status, name)) for name in same]
        assert is_now == text


FILLS = {
    "tmp": "open('/tmp/x', 'wb').write(bytes(160 << 20))",
    "shm": "open('/dev/shm/x', 'wb').write(bytes(160 << 20))",
    "overlay": "open('/app/x', 'wb').write(bytes(160 << 20))",
    "logs": "open('/out/x', 'wb').write(bytes(160 << 20))",
    "memfd": "import os; fd = os.memfd_create('x'); os.ftruncate(fd, 160 << 20); os.pwrite(fd, bytes(160 << 20), 0)",
}


@pytest.mark.parametrize("forks", [False, True])
@pytest.mark.parametrize("where", FILLS)
async def test_memory_of_the_one_before_is_not_charged_to_the_next(
    one_slot: SlotPool, place: Path, where: str, forks: bool
) -> None:
    if Capability.MEMORY_LIMIT not in PROVIDER.capabilities():
        pytest.skip("this user may make no memory group")
    (place / "app").mkdir()
    mounts = (Writable("/out"), Overlay(place / "app", "/app", own=True))
    spec = SandboxSpec(mounts=mounts, limits=Limits(memory_bytes=384 * MIB), interpreter=PYTHON)
    await get_ready(spec)
    await one_after_the_other(one_slot, (spec, "pass"))
    # A worker process of the caller's, say, forked where a fork waits: it has copies of all descriptors.
    child = os.fork() if forks else -1
    if child == 0:
        signal.pause()
        os._exit(0)
    try:
        fills = f"x = bytes(1); {FILLS[where]}"
        said = await one_after_the_other(
            one_slot, (spec, fills), (spec, "x = b'x' * (280 << 20); import gc; print(gc.get_freeze_count() > 0)")
        )
    finally:
        if forks:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    assert said[1] == "True\n"


_SUPERVISOR = """
import asyncio, json, os, sys
from pathlib import Path
from assay.sandbox import SandboxSpec, Writable, Overlay
from assay.sandbox.namespaces import NamespacesProvider, get_ready
from assay.sandbox.procfs import descendants
async def main():
    provider = NamespacesProvider()
    spec = SandboxSpec(
        mounts=(Writable("/out"), Writable("/disk", on_disk=True), Overlay(Path(sys.argv[1]), "/app", own=True)),
        interpreter=sys.argv[2],
    )
    await get_ready(spec)
    for _ in range(2):
        idle = await provider.create(spec)
        await idle.exec([sys.argv[2], "-I", "-c", "pass"])
        await idle.close()
    sandbox = await provider.create(spec)
    on = await sandbox.get("/out") / "on"
    unused = await provider.create(spec)
    source = "import time; open('/out/on', 'w').close(); open('/app/x', 'wb').write(bytes(1 << 20)); time.sleep(100)"
    running = asyncio.ensure_future(sandbox.exec([sys.argv[2], "-I", "-c", source]))
    while not on.exists():
        await asyncio.sleep(0.002)
    print(json.dumps(descendants(os.getpid())[1:]), flush=True)
    await running
asyncio.run(main())
"""


def test_bays_of_a_killed_supervisor_leave_nothing_behind(place: Path) -> None:
    (place / "app").mkdir()
    argv = [sys.executable, "-c", _SUPERVISOR, str(place / "app"), PYTHON]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as supervisor:
        assert supervisor.stdout is not None
        below = json.loads(supervisor.stdout.readline())
        watched = [os.pidfd_open(pid) for pid in below if not gone(pid)]
        assert len(watched) >= 2 * 4
        supervisor.kill()
        supervisor.wait(30)
    for fd in watched:
        assert select.select([fd], [], [], 30)[0], "a process of a dead supervisor's lives"
        os.close(fd)
    hierarchy = usable_hierarchy()
    if hierarchy is not None:
        sweep_groups(hierarchy)
        assert not [path for parent in hierarchy.distinct for path in parent.glob(f"assay-*-{supervisor.pid}-*")]
    for at in (Path(tempfile.gettempdir()), Path("/dev/shm")):
        sweep_scratch(at)
        assert not list(at.glob(f"assay-*-{supervisor.pid}-*"))
    assert f"-{supervisor.pid}-" not in Path("/proc/self/mountinfo").read_text()
    assert list((place / "app").iterdir()) == []

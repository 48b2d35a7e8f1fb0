"""Control groups: found where they are, version 1 and 2; limits written, evidence read, dead supervisors' groups swept."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from assay.sandbox import MIB, Limits
from assay.sandbox.cgroups import Counters, Group, Hierarchy, find_hierarchy, sweep
from assay.sandbox.machine import usable_hierarchy

V1_MOUNTS = """\
20 1 0:20 / /sys/fs/cgroup rw - tmpfs tmpfs rw
21 20 0:21 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
22 20 0:22 /docker/abc /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids
23 20 0:23 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid - cgroup cgroup rw,cpu,cpuacct
24 20 0:24 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
"""
V1_OWN = "4:memory:/a/b\n3:pids:/docker/abc/x\n2:cpu,cpuacct:/\n1:name=systemd:/\n0::/\n"
V2_MOUNTS = "30 1 0:30 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"


def layout(root: Path, *folders: str) -> None:
    for folder in folders:
        (root / folder).mkdir(parents=True, exist_ok=True)


def v2(folder: Path, controllers: str, enabled: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cgroup.controllers").write_text(controllers)
    (folder / "cgroup.subtree_control").write_text(enabled)


def test_version_1_is_found_below_the_own_groups(tmp_path: Path) -> None:
    top = "sys/fs/cgroup"
    layout(tmp_path, f"{top}/memory/a/b", f"{top}/pids/x", f"{top}/cpu,cpuacct", f"{top}/unified")
    found = find_hierarchy(V1_MOUNTS, V1_OWN, root=tmp_path)
    assert found == Hierarchy(
        1,
        {
            "memory": tmp_path / top / "memory/a/b",
            "pids": tmp_path / top / "pids/x",
            "cpu": tmp_path / top / "cpu,cpuacct",
            "cpuacct": tmp_path / top / "cpu,cpuacct",
        },
    )
    assert len(found.distinct) == 3


@pytest.mark.parametrize(
    ("own", "enabled", "expected"),
    [
        # The own group is the root group, which may hold processes and controllers both.
        ("/", {"": "memory pids cpu"}, ""),
        # A delegated tree whose slice already has the controllers.
        ("/user.slice/app.slice/a.scope", {"user.slice/app.slice": "memory pids cpu"}, "user.slice/app.slice"),
        # Another namespace's group cannot be named here: the top of the mount it is.
        ("/../../other", {"": "memory pids cpu"}, ""),
    ],
)
def test_version_2_is_found_at_the_nearest_group_with_controllers(
    tmp_path: Path, own: str, enabled: dict[str, str], expected: str
) -> None:
    top = tmp_path / "sys/fs/cgroup"
    for folder in ("", "user.slice", "user.slice/app.slice", "user.slice/app.slice/a.scope"):
        v2(top / folder, "memory pids" if folder in enabled else "", enabled.get(folder, ""))
    found = find_hierarchy(V2_MOUNTS, f"0::{own}\n", root=tmp_path)
    where = top / expected
    assert found == Hierarchy(2, {"memory": where, "pids": where, "cpuacct": where})
    assert found.distinct == (where,)


def test_version_2_enables_what_it_may(tmp_path: Path) -> None:
    top = tmp_path / "sys/fs/cgroup"
    v2(top, "memory", "")
    # A real kernel turns "+memory" into "memory"; a plain file keeps what was written, which reads as another name.
    assert find_hierarchy(V2_MOUNTS, "0::/\n", root=tmp_path) is None
    assert (top / "cgroup.subtree_control").read_text() == "+memory"


@pytest.mark.parametrize("mounts", ["", "20 1 0:20 / /proc rw - proc proc rw\n"])
def test_none_is_found_where_there_is_none(tmp_path: Path, mounts: str) -> None:
    assert find_hierarchy(mounts, "0::/\n", root=tmp_path) is None


def files(folder: Path, **texts: str) -> None:
    for name, text in texts.items():
        (folder / name.replace("__", ".")).write_text(text)


@pytest.fixture
def fake_v2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hierarchy:
    """A folder in which a new group has the files that a version 2 kernel would put there."""
    hierarchy = Hierarchy(2, dict.fromkeys(("memory", "pids", "cpu", "cpuacct"), tmp_path))
    make = Path.mkdir

    def mkdir(self: Path, *args: object, **kwargs: object) -> None:
        make(self, *args, **kwargs)  # type: ignore[arg-type]  # passed on as it came
        files(self, memory__swap__max="max", cgroup__procs="", cgroup__kill="", memory__events="oom 0\noom_kill 0\n")

    monkeypatch.setattr(Path, "mkdir", mkdir)
    return hierarchy


def test_version_2_limits_and_evidence(fake_v2: Hierarchy, tmp_path: Path) -> None:
    group = Group(fake_v2, Limits(memory_bytes=64 * MIB, processes=10, cpus=0.5))
    (folder,) = tmp_path.iterdir()
    written = {name: (folder / name).read_text() for name in ("memory.max", "memory.swap.max", "pids.max", "cpu.max")}
    assert written == {
        "memory.max": str(64 * MIB),
        "memory.swap.max": "0",
        "pids.max": "11",
        "cpu.max": "50000 100000",
    }
    assert group.begin() == Counters()
    files(
        folder,
        memory__events="low 0\nhigh 0\nmax 7\noom 2\noom_kill 3\noom_group_kill 0\n",
        pids__events="max 5\n",
        cpu__stat="usage_usec 1500000\nuser_usec 1\nsystem_usec 2\n",
    )
    assert group.counters() == Counters(oom_kills=3, limit_hits=2, fork_refusals=5, cpu_s=1.5)
    group.join(4242)
    assert group.pids() == [4242]
    (folder / "cgroup.procs").write_text("")
    group.kill()
    assert (folder / "cgroup.kill").read_text() == "1"
    assert not group.remove(), "a folder with files in it cannot be removed"
    shutil.rmtree(folder)
    assert group.remove()


def test_a_default_cap_where_no_memory_limit_is_asked_for(fake_v2: Hierarchy, tmp_path: Path) -> None:
    Group(fake_v2, Limits(processes=None))
    (folder,) = tmp_path.iterdir()
    half = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    assert int((folder / "memory.max").read_text()) == half
    assert not (folder / "pids.max").exists()
    assert not (folder / "cpu.max").exists()


@pytest.mark.parametrize(
    ("version", "above", "asked", "expected"),
    [
        (2, "max", 64, 64),
        (2, str(100 * MIB), None, 50),
        (2, str(100 * MIB), 64, 64),
        (2, str(100 * MIB), 512, 100),
        (1, str(100 * MIB), None, 50),
        (1, str(100 * MIB), 512, 100),
    ],
)
def test_no_group_may_have_more_than_those_above_leave(
    fake_v2: Hierarchy, tmp_path: Path, version: int, above: str, asked: int | None, expected: int
) -> None:
    """Filling what the supervisor may have would else look like a machine that ran out of memory."""
    hierarchy = Hierarchy(version, {"memory": tmp_path / "a" / "b"})
    name = "memory.max" if version == 2 else "memory.limit_in_bytes"
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / name).write_text(above + "\n")
    Group(hierarchy, Limits(memory_bytes=asked * MIB if asked else None))
    (folder,) = (path for path in (tmp_path / "a" / "b").iterdir() if path.is_dir())
    assert int((folder / name).read_text()) == expected * MIB


def test_version_2_says_who_used_much(fake_v2: Hierarchy, tmp_path: Path) -> None:
    group = Group(fake_v2, Limits(memory_bytes=64 * MIB))
    (folder,) = tmp_path.iterdir()
    seen = []
    for peak in (31, 32):
        (folder / "memory.peak").write_text(f"{peak * MIB}\n")
        seen.append(group.counters().used_much)
    assert seen == [False, True]


def test_version_2_limits_of_the_next_lease(fake_v2: Hierarchy, tmp_path: Path) -> None:
    group = Group(fake_v2, Limits(memory_bytes=64 * MIB, processes=10, cpus=0.5))
    (folder,) = tmp_path.iterdir()
    group.limit(Limits(memory_bytes=32 * MIB, processes=None))
    written = {name: (folder / name).read_text() for name in ("memory.max", "memory.swap.max", "pids.max", "cpu.max")}
    assert written == {
        "memory.max": str(32 * MIB),
        "memory.swap.max": "0",
        "pids.max": "max",
        "cpu.max": "max 100000",
    }
    group.limit(Limits(memory_bytes=32 * MIB, processes=7, cpus=2.0))
    assert (folder / "pids.max").read_text() == "8"
    assert (folder / "cpu.max").read_text() == "200000 100000"
    shutil.rmtree(folder)


def test_doors_let_in_whoever_writes_zero(real: Hierarchy) -> None:
    group = Group(real, Limits())
    doors = group.doors()
    assert len(doors) == len(real.distinct)
    with subprocess.Popen(["sleep", "100"], preexec_fn=lambda: [os.write(door, b"0") for door in doors]) as joined:
        assert group.pids() == [joined.pid]
        joined.kill()
    for door in doors:
        os.close(door)
    assert group.remove()


@pytest.fixture
def real() -> Hierarchy:
    hierarchy = usable_hierarchy()
    if hierarchy is None:
        pytest.skip("no control groups that this user may make groups in")
    return hierarchy


def test_a_real_group_holds_a_process_and_goes(real: Hierarchy) -> None:
    group = Group(real, Limits(memory_bytes=64 * MIB))
    with subprocess.Popen(["sleep", "1000"]) as process:
        group.join(process.pid)
        assert group.pids() == [process.pid]
        assert not group.remove()
        group.kill()
        process.wait()
    while not group.remove():
        assert group.pids() == []
    assert group.remove()


def test_the_groups_of_a_dead_supervisor_are_swept(real: Hierarchy) -> None:
    source = (
        "import os, subprocess; from assay.sandbox.cgroups import Group; from assay.sandbox.machine import usable_hierarchy;"
        "from assay.sandbox import Limits; group = Group(usable_hierarchy(), Limits());"
        "left = subprocess.Popen(['sleep', '1000'], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL); group.join(left.pid);"
        "print(left.pid, flush=True); os._exit(0)"
    )
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    left = int(done.stdout)
    groups = [folder for parent in real.distinct for folder in parent.glob("assay-*") if str(left) in procs(folder)]
    assert len(groups) == len(real.distinct)
    mine = Group(real, Limits())
    fd = os.pidfd_open(left)
    try:
        sweep(real)
        os.waitid(os.P_PIDFD, fd, os.WEXITED | os.WNOWAIT)
    except ChildProcessError:
        # Not handed to this process: wait for the kernel's word instead.
        import select

        assert select.select([fd], [], [], 30)[0]
    finally:
        os.close(fd)
    while any(group.exists() for group in groups):
        sweep(real)
    assert mine.pids() == []
    assert mine.remove(), "a living supervisor's group is left alone, and was still there"


def procs(folder: Path) -> list[str]:
    return (folder / "cgroup.procs").read_text().split()

"""Attacks on resources and the host: 36 to 42."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from assay.sandbox import Capability, get_provider
from attacks.harness import SHORT_S, Arena, Attack, living, still_living
from attacks.host import IPC_KEY, MARKER
from attacks.test_attacks_channel import ONLY_SUBMISSION_WRITES
from attacks.verifiers import EQUALS, MULTIPLIES, RIGHT, RUNS, WRONG, solve

MEMORY = "[environment]\nmemory_mb = 256\n"

FORK = """
import signal
started = []
try:
    while len(started) < 5000:
        pid = os.fork()
        if pid == 0:
            signal.pause()
        started.append(pid)
    breach("5,000 processes")
except OSError:
    pass
for pid in started:
    os.kill(pid, 9)
"""
MEMORY_BOMBS = {
    "memory": "held = [bytearray(1 << 20) for _ in range(2048)]\nbreach('2 GiB')",
    "memory of many processes": """
for _ in range(8):
    if os.fork() == 0:
        held = [bytearray(1 << 20) for _ in range(256)]
        import time; time.sleep(0.2)
        os._exit(0)
if all(os.waitstatus_to_exitcode(os.wait()[1]) == 0 for _ in range(8)):
    breach("each of eight has 256 MiB")
""",
    "memfd": "fd = os.memfd_create('x')\nfor _ in range(2048): os.write(fd, bytes(1 << 20))\nbreach('2 GiB')",
}
FILL = """
size = 0
with open("{place}/bomb", "wb") as file:
    try:
        while size < 2 << 30:
            size += file.write(bytes(1 << 20))
    except OSError:
        pass
if size >= 2 << 30:
    breach("2 GiB in {place}")
"""
INODES = """
made = 0
try:
    for made in range(200_000):
        os.close(os.open(f"/tmp/{made}", os.O_CREAT))
except OSError:
    pass
"""
FULL_LOGS = "a full log folder, without a memory limit"
BOUNDED = "what bounds it is the control group of the sandbox, whatever this stands on"
BOMBS = [
    Attack(36, "fork bomb", RUNS, MULTIPLIES, solve(FORK), tries=True, timeout_s=30, same=BOUNDED),
    *(
        Attack(
            36,
            f"{name} bomb",
            RUNS,
            MULTIPLIES,
            solve(body, early=True),
            toml=MEMORY,
            timeout_s=30,
            tries=True,
            same="" if name == "memory" else BOUNDED,
        )
        for name, body in MEMORY_BOMBS.items()
    ),
    *(
        Attack(
            36,
            f"a full {place}",
            RUNS,
            MULTIPLIES,
            solve(FILL.format(place=place), early=True),
            toml=MEMORY,
            timeout_s=30,
            tries=True,
        )
        for place in ("/tmp", "/dev/shm", "/app", "/logs/verifier")
    ),
    Attack(
        36,
        FULL_LOGS,
        ONLY_SUBMISSION_WRITES,
        MULTIPLIES,
        solve(FILL.format(place="/logs/verifier"), early=True),
        kinds=("assay:storage_limit",),
        timeout_s=30,
        tries=True,
    ),
    Attack(
        36,
        "inode bomb",
        RUNS,
        MULTIPLIES,
        solve(INODES, early=True),
        toml=MEMORY,
        timeout_s=30,
        tries=True,
        same="/tmp is a mount of the sandbox's own",
    ),
]

FLOOD = """
block = b"x" * (1 << 20)
while True:
    os.write(2, block)
"""
LEFT_BEHIND = {
    "setsid": "if os.fork() == 0:\n    os.setsid()\n    time.sleep(600)",
    "a double fork": "if os.fork() == 0:\n    if os.fork() == 0:\n"
    "        os.setsid()\n        time.sleep(600)\n    os._exit(0)",
    "an ignored TERM": "import signal\nif os.fork() == 0:\n"
    "    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n    time.sleep(600)",
    "a command under timeout": "import subprocess\nsubprocess.Popen(['timeout', '600', 'sleep', '600'], start_new_session=True)",
    "a stopped child": "import signal\nif os.fork() == 0:\n    os.kill(os.getpid(), signal.SIGSTOP)",
    "many that fork on": "if os.fork() == 0:\n"
    "    os.setsid()\n    while True:\n        if os.fork():\n            os._exit(0)",
}
QUIET = """
import time
os.register_at_fork(after_in_child=lambda: os.closerange(3, 64))
null = os.open(os.devnull, os.O_RDWR)
saved = os.dup(1), os.dup(2)
os.dup2(null, 1), os.dup2(null, 2)
{body}
os.dup2(saved[0], 1), os.dup2(saved[1], 2)
"""

PROCESSES = [
    Attack(
        37,
        "output without end",
        RUNS,
        MULTIPLIES,
        {"solve.py": solve(FLOOD)["solve.py"]},
        kinds=("assay:output_limit", "assay:verifier_timeout"),
        timeout_s=20,
        same="output is read and cut outside of the sandbox",
    ),
    *(
        Attack(38, name, RUNS, MULTIPLIES, solve(QUIET.format(body=body)), tries=True)
        for name, body in LEFT_BEHIND.items()
    ),
    Attack(
        38,
        "a daemon that holds the pipe the grader reads",
        RUNS,
        MULTIPLIES,
        solve("import time\n" + LEFT_BEHIND["setsid"]),
        kinds=("assay:verifier_timeout",),
        timeout_s=SHORT_S,
        tries=True,
    ),
]

CALLS_OF_THE_KERNEL = f"""
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
buffer = ctypes.create_string_buffer(256)
def call(name, number, *arguments):
    made = [a if isinstance(a, (bytes, ctypes.Array)) else ctypes.c_long(a) for a in arguments]
    if libc.syscall(ctypes.c_long(number), *made) != -1:
        breach(name)
for flag, name in {{0x10000000: "user", 0x20000: "mount", 0x40000000: "net", 0x20000000: "pid", 0x8000000: "ipc"}}.items():
    call("unshare " + name, 272, flag)
    call("clone new " + name, 56, flag | 0x10000000 | 17, 0, 0, 0, 0)
call("clone3", 435, buffer, 88)
call("mount tmpfs", 165, b"tmpfs", b"/tmp", b"tmpfs", 0, b"")
call("remount /", 165, b"none", b"/", b"", 32 | 4096, b"")
call("umount /tests", 166, b"/tests", 2)
call("open_tree", 428, -100, b"/", 1)
call("fsopen", 430, b"tmpfs", 0)
call("pivot_root", 155, b"/tmp", b"/tmp")
call("chroot", 161, b"/tmp")
call("setns", 308, 0, 0)
call("io_uring_setup", 425, 4, buffer)
call("add_key to the user's keyring", 248, b"user", b"{MARKER}", b"x", 1, -4)
call("add_key to the session's keyring", 248, b"user", b"{MARKER}", b"x", 1, -3)
call("keyctl", 250, 0, -3, 1)
call("bpf", 321, 0, buffer, 64)
call("userfaultfd", 323, 0)
call("perf_event_open", 298, buffer, 0, -1, -1, 0)
call("ptrace", 101, 16, os.getppid() or 1, 0, 0)
call("init_module", 175, buffer, 10, b"")
call("kexec_load", 246, 0, 0, 0, 0)
call("reboot", 169, 0xfee1dead, 672274793, 0, 0)
call("swapon", 167, b"/tmp/x", 0)
call("settimeofday", 164, buffer, 0)
call("sethostname", 170, b"{MARKER}", 12)
call("open_by_handle_at", 304, -100, buffer, 0)
call("quotactl", 179, 0, b"", 0, buffer)
call("acct", 163, b"/tmp/x")
call("syslog", 103, 3, buffer, 10)
call("mknod", 133, b"/tmp/disk", 0o60666, 0xfe00)
call("setuid 0", 105, 0)
call("setgroups", 116, 1, buffer)
call("personality", 135, 0x0100000)
for number, request in ((16, 0x5412), (16, 0x541C)):
    call("ioctl %x" % request, number, 0, request, b"x")
libc.shmget({IPC_KEY}, 4096, 0o1666)
libc.msgget({IPC_KEY}, 0o1666)
libc.semget({IPC_KEY}, 1, 0o1666)
"""
SWITCHES = f"""
for path, text in {{
    "/proc/sys/kernel/core_pattern": "|/tmp/{MARKER}",
    "/proc/sys/kernel/modprobe": "/tmp/{MARKER}",
    "/proc/sys/kernel/hostname": "{MARKER}",
    "/proc/sys/kernel/randomize_va_space": "0",
    "/proc/sys/vm/overcommit_memory": "1",
    "/proc/sys/fs/suid_dumpable": "2",
    "/proc/sys/net/ipv4/ip_forward": "1",
    "/proc/sys/user/max_user_namespaces": "1",
    "/proc/sysrq-trigger": "h",
    "/proc/1/oom_score_adj": "-1000",
    "/proc/self/uid_map": "0 0 1",
    "/sys/kernel/uevent_helper": "/tmp/{MARKER}",
    "/sys/fs/cgroup/cgroup.procs": "1",
    "/dev/mem": "x",
    "/dev/kmsg": "{MARKER}",
}}.items():
    try:
        with open(path, "w") as file:
            file.write(text)
        breach("changed " + path)
    except OSError:
        pass
for line in open("/proc/self/mountinfo"):
    if " - cgroup" in line or " - sysfs" in line or " - debugfs" in line:
        breach("a mount of " + line)
for place in "/ /etc /usr /usr/lib /var /run /root /dev /tests /logs /tmp /var/tmp /dev/shm".split():
    try:
        with open(f"{{place}}/{MARKER}", "w"):
            pass
    except OSError:
        continue
    if place not in ("/tmp", "/var/tmp", "/dev/shm"):
        breach("base: wrote to " + place)
if os.getuid() == 0 or int(open("/proc/self/status").read().split("CapEff:")[1].split()[0], 16):
    breach("root, or capabilities")
import resource, signal
if quietly(lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2) or True):
    breach("raised a hard limit")
if os.fork() == 0:
    os.kill(os.getpid(), signal.SIGSEGV)
os.wait()
"""


@dataclass(frozen=True)
class Listeners:
    """Services of the host that a sandbox must not reach, and how often they were."""

    port: int
    abstract: str
    path: str
    sockets: tuple[socket.socket, ...]

    def reached(self) -> bool:
        """Whether somebody connected."""
        for one in self.sockets:
            try:
                one.accept()[0].close()
            except BlockingIOError:
                continue
            return True
        return False


@pytest.fixture
def listeners(tmp_path: Path) -> Iterator[Listeners]:
    path = f"/tmp/{MARKER}-{os.getpid()}.socket"
    tcp, abstract, file = socket.socket(), socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
    tcp.bind(("0.0.0.0", 0))
    name = f"{MARKER}-{os.getpid()}"
    abstract.bind("\0" + name)
    file.bind(path)
    Path(path).chmod(0o777)
    for one in (tcp, abstract, file):
        one.listen()
        one.setblocking(False)
    yield Listeners(tcp.getsockname()[1], name, path, (tcp, abstract, file))
    for one in (tcp, abstract, file):
        one.close()
    Path(path).unlink()


CONNECTS = """
import socket
port, abstract, path = {port}, {abstract!r}, {path!r}
def reach(what, family, kind, address):
    try:
        with socket.socket(family, kind) as made:
            made.settimeout(1)
            made.connect(address)
            made.send(b"x")
        breach(what)
    except (OSError, ValueError):
        pass
for host in ("127.0.0.1", "::1", "169.254.169.254", "192.0.2.1"):
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for number in (port, 53, 80):
        reach(f"tcp {{host}}:{{number}}", family, socket.SOCK_STREAM, (host, number))
for host in ("192.0.2.1", "169.254.169.254"):
    reach("udp " + host, socket.AF_INET, socket.SOCK_DGRAM, (host, 53))
reach("abstract", socket.AF_UNIX, socket.SOCK_STREAM, chr(0) + abstract)
for place in (path, "/run/docker.sock", "/var/run/docker.sock", "/run/dbus/system_bus_socket", "/run/systemd/notify"):
    reach(place, socket.AF_UNIX, socket.SOCK_STREAM, place)
for family in (40, 17, 38, 31):
    if quietly(lambda: socket.socket(family, socket.SOCK_STREAM if family == 40 else socket.SOCK_RAW)):
        breach(f"a socket of family {{family}}")
reach("vsock", 40, socket.SOCK_STREAM, (2, 1024))
if quietly(lambda: socket.getaddrinfo("example.com", 80)):
    breach("DNS")
if [name for _, name in socket.if_nameindex() if name != "lo"]:
    breach("a network device")
"""

KERNEL = [
    Attack(41, "calls of the kernel", RUNS, MULTIPLIES, solve(CALLS_OF_THE_KERNEL), tries=True),
    Attack(42, "switches, devices, control groups", RUNS, MULTIPLIES, solve(SWITCHES), tries=True),
]


ATTACKS = [*BOMBS, *PROCESSES, *KERNEL]


@pytest.mark.parametrize("attack", [*PROCESSES, *KERNEL], ids=lambda attack: attack.id)
async def test_the_verdict_is_honest(arena: Arena, attack: Attack) -> None:
    await arena.fight(attack)


async def test_the_network_is_out_of_reach(arena: Arena, listeners: Listeners) -> None:
    """40"""
    body = CONNECTS.format(port=listeners.port, abstract=listeners.abstract, path=listeners.path)
    await arena.fight(Attack(40, "network, DNS, vsock, sockets", RUNS, MULTIPLIES, solve(body), tries=True))
    assert not listeners.reached()


@pytest.mark.parametrize("attack", BOMBS, ids=lambda attack: attack.id)
async def test_a_bomb_hits_nobody_else(arena: Arena, attack: Attack) -> None:
    """36: the verdict of a neighbour that is graded at the same time is what it should be."""
    arena.skip_what_is_left_out(attack)
    has = get_provider(arena.provider).capabilities()
    needed = Capability.PROCESS_LIMIT if "fork" in attack.name else Capability.MEMORY_LIMIT
    if needed not in has:
        pytest.skip(f"{arena.provider} has no {needed} on this machine: nothing bounds a bomb here")
    if attack.name == FULL_LOGS and os.geteuid() != 0:
        pytest.skip("an ordinary user may mount nothing: its log folder has no size of its own")
    near = replace(arena, folder=arena.folder / "neighbour")
    quiet = Attack(36, "neighbour", EQUALS, RIGHT, WRONG)
    task = near.task(quiet)
    workspace = near.lay("honest", RIGHT)
    before = living()
    bomb = asyncio.ensure_future(arena.fight(attack, alone=False))
    rewards = []
    while not bomb.done() or not rewards:
        rewards.append((await near.graded(quiet, task, workspace)).reward)
    await bomb
    assert set(rewards) == {1.0}
    assert not await still_living(before)

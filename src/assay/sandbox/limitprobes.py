"""The probes of the limits and of the system call filter; and all probes by the guarantee that they try."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping

from assay.sandbox.base import MIB, Capability, Ended, Limits, Provider, SandboxSpec, Writable
from assay.sandbox.probes import (
    PROBE_S,
    Finding,
    Probe,
    answer_of,
    ask,
    ended_oddly,
    host_hidden,
    network_off,
    overlay,
    proof_of_death,
    read_only_base,
    run_python,
    sandbox_of,
    uid_separation,
)

_BOMBS = {
    "heap": "x = [bytearray(1 << 20) for _ in range(512)]",
    "memfd": "import os; f = os.memfd_create('x'); [os.write(f, bytes(1 << 20)) for _ in range(512)]",
    "tmpfs": "f = open('/dev/shm/x', 'wb'); [f.write(bytes(1 << 20)) for _ in range(512)]",
    "children": "import os; [os.fork() for _ in range(4)]; x = [bytearray(1 << 20) for _ in range(32)]; os.wait()",
}


async def memory_limit(provider: Provider) -> Finding:
    """Fill memory with objects, a memfd, a tmpfs and children, far past a limit of 128 MiB."""
    limits = Limits(memory_bytes=128 * MIB, tmp_bytes=1024 * MIB)
    for name, source in _BOMBS.items():
        async with sandbox_of(provider, SandboxSpec(limits=limits)) as sandbox:
            result = await run_python(sandbox, source)
        if result.how is not Ended.MEMORY_LIMIT and "memory_limit" not in result.limits_hit:
            return Finding(False, f"{name}: 512 MiB under a limit of 128 MiB: {ended_oddly(result)}")
    return Finding(True, "512 MiB of objects, memfd, tmpfs and of 16 processes together: ended at a limit of 128 MiB")


_FORKS = """
import json, os, sys, threading, time
count = 0
def stay():
    time.sleep(600)
try:
    while count < 2000:
        if os.fork() == 0:
            stay()
            os._exit(0)
        count += 1
except OSError:
    pass
try:
    threading.Thread(target=stay, daemon=True).start()
    threads = True
except RuntimeError:
    threads = False
print(json.dumps([count, threads]), flush=True)
os._exit(0)
"""


async def process_limit(provider: Provider) -> Finding:
    """Fork until it is refused, at a limit of 32, in two sandboxes at once."""
    spec = SandboxSpec(limits=Limits(processes=32))
    async with sandbox_of(provider, spec) as one, sandbox_of(provider, spec) as two:
        results = await asyncio.gather(run_python(one, _FORKS), run_python(two, _FORKS))
    counts = []
    for result in results:
        answer = answer_of(result)
        if answer is None:
            return Finding(False, ended_oddly(result))
        counts.append(answer[0])
        if answer[0] > 32 or answer[1]:
            return Finding(False, f"{answer[0]} processes{' and a thread more' if answer[1] else ''} at a limit of 32")
    if min(counts) < 24:
        return Finding(False, f"only {min(counts)} processes at a limit of 32: somebody else's were counted too")
    return Finding(True, f"a fork bomb in each of two sandboxes stopped at {counts[0]} and {counts[1]} of 32")


_BURN = """
import json, time
end = time.monotonic() + 1.5
while time.monotonic() < end:
    pass
print(json.dumps(time.process_time()))
"""


async def cpu_limit(provider: Provider) -> Finding:
    """Burn a processor for a while with a fifth of one allowed."""
    answer, odd = await ask(provider, SandboxSpec(limits=Limits(cpus=0.2)), _BURN)
    if answer is None:
        return Finding(False, odd)
    return Finding(answer < 0.75, f"used {answer:.2f} s of a processor in 1.5 s, with a fifth of one allowed")


_CALLS = """
import ctypes, json, os, platform, socket
libc = ctypes.CDLL(None, use_errno=True)
x86 = platform.machine() == "x86_64"
done = []
def call(name, *args):
    ctypes.set_errno(0)
    return libc.syscall(*args)
numbers = {
    "add_key": (248, 217), "keyctl": (250, 219), "bpf": (321, 280), "userfaultfd": (323, 282), "perf_event_open": (298, 241),
    "io_uring_setup": (425, 425), "unshare": (272, 97), "setns": (308, 268), "mount": (165, 40), "open_tree": (428, 428),
    "pidfd_getfd": (438, 438), "process_vm_readv": (310, 270), "kcmp": (312, 272), "ptrace": (101, 117),
    "open_by_handle_at": (304, 265), "fsopen": (430, 430), "clone3": (435, 435),
}
# Every one would fail in its own way with these arguments, or succeed; only a filter answers EPERM or ENOSYS to each.
for name, (x, other) in numbers.items():
    ctypes.set_errno(0)
    result = libc.syscall(x if x86 else other, 0, 0, 0, 0, 0)
    if result >= 0 or ctypes.get_errno() not in (1, 38):
        done.append(name)
for make in (socket.socket, socket.socketpair):
    try:
        make(40, socket.SOCK_STREAM)
        done.append("vsock")
    except OSError as error:
        if error.errno != 97:
            done.append("vsock")
import fcntl
with open("/tmp/leased", "w") as file:
    try:
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        done.append("a lease")
    except OSError as error:
        if error.errno != 1:
            done.append("a lease")
try:
    fcntl.ioctl(0, 0x5412, b"x")
    done.append("TIOCSTI")
except OSError as error:
    if error.errno != 1:
        done.append("TIOCSTI")
mode = [line.split()[1] for line in open("/proc/self/status") if line.startswith("Seccomp:")]
print(json.dumps({"done": done, "mode": mode}))
"""


async def syscall_filter(provider: Provider) -> Finding:
    """Make the calls that the filter is there for."""
    answer, odd = await ask(provider, SandboxSpec(), _CALLS)
    if answer is None:
        return Finding(False, odd)
    if answer["mode"] != ["2"] or answer["done"]:
        return Finding(False, f"not refused: {', '.join(answer['done']) or 'nothing'}; seccomp mode {answer['mode']}")
    return Finding(
        True, "keyrings, bpf, io_uring, ptrace, userfaultfd, mounts, namespaces, vsock, leases, TIOCSTI: refused"
    )


_ROOTLIKE = """
import ctypes, json, os
libc = ctypes.CDLL(None, use_errno=True)
held = [line.split()[1] for line in open("/proc/self/status") if line[:6] in ("CapPrm", "CapEff", "CapBnd", "CapAmb")]
done = ["a mount"] if libc.mount(b"none", b"/tmp", b"tmpfs", 0, None) == 0 else []
for name, act in (("setuid", lambda: os.setuid(12345)), ("chown", lambda: os.chown("/tmp", 12345, 12345)),
        ("sethostname", lambda: __import__("socket").sethostname("x"))):
    try:
        act()
        done.append(name)
    except OSError:
        pass
print(json.dumps({"ids": [os.getuid(), os.geteuid(), os.getgid()], "held": [h for h in held if int(h, 16)], "done": done}))
"""


async def user_mapping(provider: Provider) -> Finding:
    """Be root and somebody else inside, look for what that gives, and see from the host who wrote."""
    for user in (0, 4321):
        spec = SandboxSpec(mounts=(Writable("/out"),), user=user)
        answer, odd = await ask(provider, spec, _ROOTLIKE)
        if answer is None:
            return Finding(False, odd)
        if answer["ids"] != [user] * 3:
            return Finding(False, f"asked for uid {user}, saw {answer['ids']}")
        if answer["held"] or answer["done"]:
            return Finding(False, f"uid {user} inside may do more: {answer['held']} {', '.join(answer['done'])}")
    async with sandbox_of(provider, spec) as sandbox:
        result = await sandbox.exec(["sh", "-c", "echo x > /out/file"], timeout_s=PROBE_S)
        if result.code != 0:
            return Finding(False, ended_oddly(result))
        owner = (await sandbox.get("/out") / "file").lstat().st_uid
    if owner in (0, 4321) and owner != os.geteuid():
        return Finding(False, f"what uid 4321 wrote inside belongs to the host's uid {owner}")
    return Finding(True, "uid 0 and 4321 inside, without a capability; on the host the sandbox's own uid")


PROBES: Mapping[Capability, Probe] = {
    Capability.NETWORK_OFF: network_off,
    Capability.READ_ONLY_BASE: read_only_base,
    Capability.HOST_HIDDEN: host_hidden,
    Capability.OVERLAY: overlay,
    Capability.PROOF_OF_DEATH: proof_of_death,
    Capability.UID_SEPARATION: uid_separation,
    Capability.MEMORY_LIMIT: memory_limit,
    Capability.PROCESS_LIMIT: process_limit,
    Capability.CPU_LIMIT: cpu_limit,
    Capability.SYSCALL_FILTER: syscall_filter,
    Capability.USER_MAPPING: user_mapping,
}
"""For each guarantee, what tries to break it."""

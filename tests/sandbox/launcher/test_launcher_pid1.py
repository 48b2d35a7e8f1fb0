"""Pid 1 by itself, as a program and as a fork: it reaps, keeps nothing, and only its parent can end it."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import assay.sandbox
from assay.sandbox.launcher import init, kernel

HERE = Path(assay.sandbox.__file__).parent

STARTS = """
import json, os, signal, sys, time
sys.path.append(sys.argv[1])
from launcher import init, kernel

def status(pid):
    with open(f"/proc/{pid}/status") as file:
        return {name: value.strip() for name, _, value in (line.partition(":") for line in file)}

def children(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return file.read().split()

# As the slot server has it: a handler of Python's would end an init.
signal.signal(signal.SIGINT, signal.SIG_DFL)
root = os.geteuid() == 0
# An ordinary user may have a pid namespace where it has a user namespace.
kernel.unshare(kernel.NEWPID | (0 if root else kernel.NEWUSER), "namespaces")
program = init.lay(sys.argv[2], os.uname().machine) if sys.argv[3] == "program" else None
ready, is_ready = os.pipe()
pid = init.start(program, is_ready)
os.close(is_ready)
try:
    out_of_reach = os.read(ready, 1) == b""
    seen = {"program": program is not None, "out of reach": out_of_reach, "status": status(pid)}
    with open(f"/proc/{pid}/comm") as file:
        seen["name"] = file.read()
    seen["descriptors"] = os.listdir(f"/proc/{pid}/fd") if root else []
    # One that is as powerless as the init, and differs from it by what that has forbidden alone.
    made, is_made = os.pipe()
    other = os.fork()
    if other == 0:
        kernel.drop_capabilities()
        os.write(is_made, b"x")
        signal.pause()
    os.read(made, 1)
    neighbour = os.fork()
    if neighbour == 0:
        kernel.drop_capabilities()
        opened = 0
        for bit, process in enumerate((other, pid)):
            for name in ("maps", "environ", "mem", "auxv"):
                try:
                    open(f"/proc/{process}/{name}", "rb").close()
                    opened |= 1 << bit
                except PermissionError:
                    pass
        os._exit(opened)
    seen["looked into"] = os.waitstatus_to_exitcode(os.waitpid(neighbour, 0)[1])
    os.kill(other, signal.SIGKILL)
    os.waitpid(other, 0)
    first = os.fork()
    if first == 0:
        me = os.getpid()
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [])
        for number in signal.valid_signals():
            os.kill(1, number)
        for _ in range(20):
            if os.fork() == 0:
                if os.fork() == 0:
                    while os.getppid() != 1:
                        pass
                    os._exit(0)
                os._exit(0)
            os.wait()
        os._exit(7 if me == 4 and not blocked else 8)
    seen["first"] = os.waitpid(first, 0)[1]
    until = time.monotonic() + 30
    while children(pid) and time.monotonic() < until:
        time.sleep(0.002)
    seen["orphans"] = children(pid)
    seen["ended by itself"] = os.waitpid(pid, os.WNOHANG)[0] != 0
finally:
    os.kill(pid, signal.SIGKILL)
seen["end"] = os.waitpid(pid, 0)[1]
print(json.dumps(seen))
"""


@pytest.mark.parametrize("form", ["program", "fork"])
def test_it_is_out_of_reach_and_reaps(tmp_path: Path, form: str) -> None:
    if form == "program" and os.uname().machine != "x86_64":
        pytest.skip("on this machine it is a fork")
    argv = [sys.executable, "-I", "-S", "-c", STARTS, str(HERE), str(tmp_path), form]
    ended = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    seen: dict[str, Any] = json.loads(ended.stdout)
    status = seen.pop("status")
    assert seen == {
        "program": form == "program",
        "out of reach": True,
        "name": "assay-init\n",
        "descriptors": [],
        "looked into": 1 << 0,
        "first": 7 << 8,
        "orphans": [],
        "ended by itself": False,
        "end": signal.SIGKILL,
    }
    assert {name: int(status[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")} == dict.fromkeys(
        ("CapInh", "CapPrm", "CapEff", "CapAmb"), 0
    )
    assert status["NoNewPrivs"] == "1"


PTRACE_TRACEME, PTRACE_PEEKUSER, PTRACE_SYSCALL = 0, 3, 24
RAX, CALL, ARGUMENTS = 10, 15, (14, 13, 12, 7)
"""Where a register stands in what the kernel keeps of a process on this machine, in words (`struct user_regs_struct`)."""
PRCTL, RT_SIGTIMEDWAIT, CAPSET, CLOSE_RANGE = 157, 128, 126, 436


def test_the_program_closes_what_it_has_when_all_else_is_done(tmp_path: Path) -> None:
    """Each call that it makes, as the kernel sees it, until it waits: none fails, and closing is the last."""
    program = init.lay(str(tmp_path), os.uname().machine)
    if program is None:
        pytest.skip("on this machine it is a fork")
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.restype = ctypes.c_long

    def ptrace(request: int, pid: int, place: int = 0) -> int:
        return int(libc.ptrace(*map(ctypes.c_long, (request, pid, place, 0))))

    def register(number: int) -> int:
        return ptrace(PTRACE_PEEKUSER, pid, 8 * number)

    pid = os.fork()
    if pid == 0:
        try:
            if ptrace(PTRACE_TRACEME, 0) == 0:
                os.execve(program, ["init"], {})
        finally:
            os._exit(1)
    calls: list[tuple[int, ...]] = []
    try:
        _, status = os.waitpid(pid, 0)
        if os.WIFEXITED(status):
            pytest.skip("this user may trace no process")
        while True:
            ptrace(PTRACE_SYSCALL, pid)
            assert os.WIFSTOPPED(os.waitpid(pid, 0)[1])
            calls.append((register(CALL), *map(register, ARGUMENTS)))
            if calls[-1][0] == RT_SIGTIMEDWAIT:
                break
            ptrace(PTRACE_SYSCALL, pid)
            assert os.WIFSTOPPED(os.waitpid(pid, 0)[1])
            assert register(RAX) == 0, f"call {calls[-1]} failed"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)
    all_of_32_bits = 0xFFFF_FFFF
    undumpable, no_new_privileges, capabilities, closing, waiting = calls
    assert undumpable[:3] == (PRCTL, 4, 0)
    assert no_new_privileges[:5] == (PRCTL, 38, 1, 0, 0)
    assert capabilities[0] == CAPSET
    assert closing[:4] == (CLOSE_RANGE, 0, all_of_32_bits, 0)
    assert waiting[2:5] == (0, 0, 8)


@pytest.mark.parametrize("step", ["set_name", "be_undumpable", "forbid_new_privileges", "drop_capabilities"])
def test_a_fork_has_what_it_was_given_until_all_else_is_done(monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    go, may_go = os.pipe()
    ready, is_ready = os.pipe()
    usual = getattr(kernel, step)
    monkeypatch.setattr(kernel, step, lambda *arguments: (os.read(go, 1), usual(*arguments)))
    pid = init.start(None, is_ready)
    try:
        os.close(is_ready)
        # A step that takes ever so long: whatever it does besides, it has done by then.
        assert select.select([ready], [], [], 0.2)[0] == []
        os.write(may_go, b"x")
        assert select.select([ready], [], [], 30)[0] == [ready]
        assert os.read(ready, 1) == b""
        assert os.waitpid(pid, os.WNOHANG) == (0, 0), "it ended instead"
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        for fd in (go, may_go, ready):
            os.close(fd)

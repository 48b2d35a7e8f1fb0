"""Pid 1 by itself, as a program and as a fork: it reaps, keeps nothing, and only its parent can end it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import assay.sandbox

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
        os._exit(7 if me == 2 and not blocked else 8)
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
        "first": 7 << 8,
        "orphans": [],
        "ended by itself": False,
        "end": signal.SIGKILL,
    }
    assert {name: int(status[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")} == dict.fromkeys(
        ("CapInh", "CapPrm", "CapEff", "CapAmb"), 0
    )
    assert status["NoNewPrivs"] == "1"

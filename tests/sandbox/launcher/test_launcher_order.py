"""A command that was forked ahead of need starts when its root is complete and its init out of its reach, and not before."""

from __future__ import annotations

import os
import select
import signal
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

from assay.sandbox import Overlay, ReadOnly
from assay.sandbox.launcher import command, kernel, rights, root, wire

Make = Callable[..., Awaitable[Any]]


def become(control: socket.socket, built: int, finished: int, fails: bool, monkeypatch: pytest.MonkeyPatch) -> NoReturn:
    """What a fork does, without a namespace or a right less; giving up its rights may fail."""

    def drop(*_: object) -> None:
        if fails:
            raise OSError(12, "no memory")

    def run(*_: object) -> NoReturn:
        os.write(1, b"ran")
        os._exit(0)

    monkeypatch.setattr(kernel, "unshare", lambda *_: None)
    monkeypatch.setattr(kernel, "new_mount", lambda *_: os.open("/dev/null", os.O_RDONLY))
    monkeypatch.setattr(root, "place_proc", lambda *_: None)
    monkeypatch.setattr(rights, "drop", drop)
    command.become(control, command.Settings(None, 0, (), None, run), built, finished)


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("last", ["init", "server"])
@pytest.mark.parametrize("early", [False, True])
def test_a_command_waits_for_its_init_and_its_root(
    early: bool, last: str, fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    # Each has a copy of the other end: the init until it is out of reach, the server until the root is complete.
    finished, servers = os.pipe()
    ends = {"init": os.dup(servers), "server": servers}
    built = -1
    if early:
        # Forked before its root: until that is built it gives up nothing, as that takes rights.
        built, ends["root"] = os.pipe()
    said, says = os.pipe()
    fork = os.fork()
    if fork == 0:
        try:
            ours.close()
            for end in ends.values():
                os.close(end)
            become(theirs, built, finished, fails, monkeypatch)
        finally:
            os._exit(9)
    for fd in {finished, built} - {-1}:
        os.close(fd)
    null = os.open("/dev/null", os.O_RDWR)
    fields = {"argv": ["/bin/program"], "env": {}, "cwd": "/", "passed": [], "python": True}
    wire.send(ours, "run", fields, [null, says, null])
    for fd in (null, says):
        os.close(fd)
    try:
        if early:
            assert wire.receive(ours)[0] == "waiting"
            assert select.select([ours, said], [], [], 0.3)[0] == []
            os.close(ends.pop("root"))
        if fails or not early:
            assert wire.receive(ours)[0] == ("failed" if fails else "waiting")
        if not fails:
            os.close(ends.pop("server" if last == "init" else "init"))
            # The last one never lets go: whatever the command does by itself, it has done by then.
            assert select.select([ours, said], [], [], 0.3)[0] == []
            os.close(ends.pop(last))
            assert wire.receive(ours)[0] == "started"
            assert os.read(said, 9) == b"ran"
    finally:
        os.kill(fork, signal.SIGKILL)
        os.waitpid(fork, 0)
        # Kept open till now, as the server keeps it: what was not read would take what was said with it.
        theirs.close()
        ended = os.read(said, 9)
        for fd in (said, *ends.values()):
            os.close(fd)
        ours.close()
    assert ended == b"", "it ran although it could not give up its rights"


_SLOW_PROGRAM = """
from launcher import init
slow = ("b9 00 00 00 40", "mov ecx, 0x40000000"), ("ff c9", "dec ecx"), ("75 fc", "jnz -4")
init._X86_64 = (*slow, *init._X86_64)
"""
_SLOW_FORK = """
import os, time
from launcher import init, kernel
init.lay = lambda *_: None
usual = kernel.be_undumpable
kernel.be_undumpable = lambda: (os.getpid() == 1 and time.sleep(0.5), usual())
"""
_SLOW_SERVER = """
import time
from launcher import root
usual = root.finish
root.finish = lambda *arguments: (time.sleep(0.5), usual(*arguments))
"""


@pytest.mark.parametrize("slow", [_SLOW_PROGRAM, _SLOW_FORK, _SLOW_SERVER], ids=["program", "fork", "server"])
@pytest.mark.parametrize("own_base", [False, True])
async def test_no_command_runs_before_both_are_done(
    change_servers: Callable[[str], None], launched: Make, tmp_path: Path, small_base: Path, slow: str, own_base: bool
) -> None:
    """In a whole sandbox: on a base of its own the command is forked before its root is built."""
    change_servers(slow)
    (tmp_path / "given").mkdir()
    (tmp_path / "given" / "file").touch()
    given = tmp_path / "given"
    mounts = (ReadOnly(given, "/given"), Overlay(given, "/work"))
    sandbox = await launched(mounts=mounts, base=small_base if own_base else None)
    script = "cat /proc/1/status; ls /given /work; touch /new 2> /dev/null || echo refused"
    for _ in range(2):
        result = await sandbox.exec(["sh", "-c", script], timeout_s=30)
        status, _, rest = result.stdout.partition(b"NoNewPrivs:\t1\n")
        assert status.startswith(b"Name:\tassay-init\n"), result
        assert rest.endswith(b"/given:\nfile\n\n/work:\nfile\nrefused\n"), result

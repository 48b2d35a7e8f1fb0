"""A command that was forked ahead of need starts when its root is complete and its init out of its reach, and not before."""

from __future__ import annotations

import os
import select
import signal
import socket
from typing import NoReturn

import pytest

from assay.sandbox.launcher import command, kernel, rights, root, wire


def become(control: socket.socket, finished: int, fails: bool, monkeypatch: pytest.MonkeyPatch) -> NoReturn:
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
    command.become(control, command.Settings(None, 0, (), None, run), -1, finished)


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("last", ["init", "server"])
def test_a_command_waits_for_its_init_and_its_root(last: str, fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    # Each has a copy of the other end: the init until it is out of reach, the server until the root is complete.
    finished, servers = os.pipe()
    ends = {"init": os.dup(servers), "server": servers}
    said, says = os.pipe()
    fork = os.fork()
    if fork == 0:
        try:
            ours.close()
            for end in ends.values():
                os.close(end)
            become(theirs, finished, fails, monkeypatch)
        finally:
            os._exit(9)
    os.close(finished)
    null = os.open("/dev/null", os.O_RDWR)
    fields = {"argv": ["/bin/program"], "env": {}, "cwd": "/", "passed": [], "python": True}
    wire.send(ours, "run", fields, [null, says, null])
    for fd in (null, says):
        os.close(fd)
    try:
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

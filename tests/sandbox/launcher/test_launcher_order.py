"""A command forked ahead of need starts when its init is out of its reach, and not before."""

from __future__ import annotations

import os
import select
import signal
import socket
from typing import NoReturn

import pytest

from assay.sandbox.launcher import kernel, ready, rights, root, sandbox, wire

SETTINGS = sandbox.Settings(None, 0, (), None, False, (), frozenset())


def watch(control: socket.socket, go: int, fails: bool, monkeypatch: pytest.MonkeyPatch) -> NoReturn:
    """What a fork does, without a namespace or a right less; its init is as slow as `go` has it, and then may fail."""

    def drop(*_: object) -> None:
        os.read(go, 1)
        if fails:
            raise OSError(12, "no memory")

    def run(*_: object) -> NoReturn:
        os.write(1, b"ran")
        os._exit(0)

    monkeypatch.setattr(kernel, "unshare", lambda *_: None)
    monkeypatch.setattr(root, "enter", lambda _: None)
    monkeypatch.setattr(rights, "drop", drop)
    monkeypatch.setattr(sandbox, "_get_ready", lambda *_: None)
    monkeypatch.setattr(ready, "run", run)
    score = os.open("/proc/self/oom_score_adj", os.O_RDWR | os.O_CLOEXEC)
    sandbox._watch(control, score, SETTINGS)


@pytest.mark.parametrize("fails", [False, True])
def test_a_command_waits_for_its_init(fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    go, may_go = os.pipe()
    said, says = os.pipe()
    init = os.fork()
    if init == 0:
        try:
            os.setpgid(0, 0)
            ours.close()
            os.close(may_go)
            watch(theirs, go, fails, monkeypatch)
        finally:
            os._exit(9)
    theirs.close()
    os.close(go)
    null = os.open("/dev/null", os.O_RDWR)
    fields = {"argv": ["/bin/program"], "env": {}, "cwd": "/", "passed": [], "python": True}
    wire.send(ours, "run", fields, [null, says, null])
    for fd in (null, says):
        os.close(fd)
    try:
        # An init that is never let go on: whatever the command does by itself, it has done by then.
        assert select.select([ours], [], [], 0.3)[0] == []
        os.write(may_go, b"x")
        words = [wire.receive(ours)[0]]
        if fails:
            assert words == ["failed"]
        else:
            words.append(wire.receive(ours)[0])
            assert words == ["started", "ended:0"]
            assert os.read(said, 9) == b"ran"
    finally:
        # A command without its init: in a pid namespace it would have ended with it.
        os.killpg(init, signal.SIGKILL)
        os.waitpid(init, 0)
        ended = os.read(said, 9)
        for fd in (may_go, said):
            os.close(fd)
        ours.close()
    assert ended == b"", "it ran although its init had failed"

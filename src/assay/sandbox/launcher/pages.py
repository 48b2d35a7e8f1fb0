"""Which pages a fork of the server will write to, learned from one that ran a sample, to have them copied all at once.

A page that a fork shares with its server is copied when it is first written to, which takes the processor two to three
microseconds, half of it for the interruption alone; a command has some eight hundred such. That they are copied changes
nothing else: a page too many is a page too many, and one that is missing is copied as ever.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import json
import os
import select
import signal
import socket
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

from . import kernel, wire
from .tenant import Settings, Tenant

_PLACE = "/sample"
_TESTS = "/tests"
_SAYS = 3
_PATIENCE_S = 5.0
_EXCLUSIVE = 1 << 56
_PRESENT = 1 << 63
_RANGES_MOST = 1024
"""As many as one system call takes."""

_libc = ctypes.CDLL(None)

_VERIFIER = """\
import json
def verify(workspace):
    path = workspace / "answer.txt"
    text = path.read_text() if path.exists() else json.dumps({"numbers": [1, 2.5, None]})
    return float(sorted(text.split()) == ["42"])
"""


_SCRIPT = """\
import sys
def main():
    lines = [line.split() for line in sys.stdin]
    print(len(lines), sum(int(word) for line in lines for word in line), {"a": [1.5, None]})
if __name__ == "__main__":
    main()
"""


def learn(settings: Settings, interpreter: Mapping[str, Any], sha256: Callable[[bytes], Any]) -> Settings:
    """The settings with the pages in them, of a command and of the server beside it; as they are when these cannot be seen.

    `interpreter`: its `path`, the `env` for it, and `ahead`, the `program` that verifies and its `home` (`ready.load`).
    `sha256` makes a digest, as in `hashlib`.
    """
    home = interpreter["ahead"]["home"]
    argv = [interpreter["path"], "-I", "-c", interpreter["ahead"]["program"], home]
    argv += ["--verifier", f"{_TESTS}/verifier.py", "--workspace", "/app", "--verdict-fd", str(_SAYS + 1)]
    listed = {"files": {"verifier.py": sha256(_VERIFIER.encode()).hexdigest()}}
    files = {"verifier.py": _VERIFIER, f"{os.path.basename(home)}/manifest.json": json.dumps(listed)}

    def of_command(there: list[tuple[int, int]]) -> list[tuple[int, int]]:
        says, said = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with says, said, _null() as null, _tried(settings, "_exit", _hold) as (control, pid):
            fields = _fields(argv, interpreter) | {"passed": [_SAYS, _SAYS + 1]}
            wire.send(control, "run", fields, [null, null, null, said.fileno(), null])
            if not select.select([says], [], [], _PATIENCE_S)[0]:
                raise OSError("the sample does not end")
            return _copied(pid, there)

    return _with_pages(settings, files, of_command)


def learn_script(
    settings: Settings, interpreter: Mapping[str, Any], run: Callable[[list[str], Mapping[bytes, bytes]], None]
) -> Settings:
    """`learn`, where commands are scripts. `run` runs one in a fork to its end, that of the interpreter included."""
    sample = settings._replace(command=settings.command._replace(run=run))
    argv = [interpreter["path"], f"{_TESTS}/main.py"]

    def of_command(there: list[tuple[int, int]]) -> list[tuple[int, int]]:
        says, said = os.pipe()
        with (
            open(says, "rb", buffering=0) as ends,
            open(said, "wb", buffering=0) as output,
            _null() as null,
            _tried(sample, "setsid", _hold_at_exit) as (control, pid),
        ):
            wire.send(control, "run", _fields(argv, interpreter), [null, output.fileno(), null])
            output.close()
            while select.select([ends], [], [], _PATIENCE_S)[0] and ends.read(1 << 10):
                continue
            return _copied(pid, there)

    return _with_pages(settings, {"main.py": _SCRIPT}, of_command)


def _with_pages(
    settings: Settings,
    files: Mapping[str, str],
    of_command: Callable[[list[tuple[int, int]]], list[tuple[int, int]]],
) -> Settings:
    """The settings with the pages, of the server and those that `of_command` returns, which runs one of the `files`."""
    there = _writable()
    try:
        for name, text in files.items():
            path = f"{_PLACE}/{name}"
            os.makedirs(os.path.dirname(path), 0o755, exist_ok=True)
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
        with _tried(settings, "fork", _fork_that_waits):
            # All that is copied by now is copied for the server, or by next to nothing of the fork.
            server = _ranges(_copied(os.getpid(), there))
        command = _ranges(of_command(there))
    except OSError:
        return settings
    return settings._replace(command=settings.command._replace(pages=command), pages=server)


@contextlib.contextmanager
def _null() -> Iterator[int]:
    with open(os.devnull, "r+b", buffering=0) as null:
        yield null.fileno()


def _fields(argv: list[str], interpreter: Mapping[str, Any]) -> dict[str, Any]:
    return {"argv": argv, "env": interpreter["env"], "cwd": "/app", "passed": [], "python": True}


def _hold_at_exit() -> int:
    """In place of a new session: have the process wait at its end, when all else is done, and close its output."""
    for function, argument in ((_libc.pause, None), (_libc.close, 1)):
        _libc.__cxa_atexit(function, ctypes.c_void_p(argument), None)
    return 0


def _fork_that_waits() -> int:
    # By the library: the interpreter's own does a lot in the fork.
    pid = _libc.fork()
    while pid == 0:
        _libc.pause()
    return int(pid)


def _hold(_: int) -> NoReturn:
    """In place of a command's end."""
    while True:
        with contextlib.suppress(OSError):
            os.write(_SAYS, b".")
        signal.pause()


def _copied(pid: int, there: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The pages in these ranges that a process shares with no other any more."""
    page = os.sysconf("SC_PAGE_SIZE")
    found = []
    with open(f"/proc/{pid}/pagemap", "rb", buffering=0) as file:
        for first, end in there:
            entries = array.array("Q", os.pread(file.fileno(), (end - first) // page * 8, first // page * 8))
            for number, entry in enumerate(entries):
                if entry & _PRESENT and entry & _EXCLUSIVE:
                    found.append((first + number * page, first + (number + 1) * page))
    return found


def _writable() -> list[tuple[int, int]]:
    """This process' own memory: where it begins and ends."""
    found = []
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
        for line in file:
            place, rights, *_ = line.split()
            if rights == "rw-p":
                first, _, end = place.partition("-")
                found.append((int(first, 16), int(end, 16)))
    return found


def _ranges(pages: list[tuple[int, int]]) -> ctypes.Array[ctypes.c_size_t]:
    """The pages, where they begin and end, as `kernel.populate` takes them: with those between two that are near each other."""
    gap = 0
    while True:
        found: list[tuple[int, int]] = []
        for first, end in pages:
            if found and first - found[-1][1] <= gap:
                found[-1] = (found[-1][0], end)
            else:
                found.append((first, end))
        if len(found) <= _RANGES_MOST:
            return (ctypes.c_size_t * (2 * len(found)))(
                *(word for first, end in found for word in (first, end - first))
            )
        gap = 2 * gap + os.sysconf("SC_PAGE_SIZE")


@contextlib.contextmanager
def _tried(settings: Settings, name: str, function: Callable[..., int]) -> Iterator[tuple[socket.socket, int]]:
    """A sandbox, whole and with the sample in it: its control, and the pid of its command. Raises `OSError`.

    It is forked while `function` stands for the one of that `name` in `os`.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with contextlib.ExitStack() as stack:
        stack.enter_context(ours)
        there = Tenant(theirs.detach(), settings, early=False)
        stack.callback(there.end)
        usual = getattr(os, name)
        setattr(os, name, function)
        try:
            there.build({"steps": [_step("proc", "/proc"), _step("dev", "/dev")], "space": None, "limits": {}}, [])
        finally:
            setattr(os, name, usual)
        sample = kernel.clone_mount(_PLACE)
        stack.callback(os.close, sample)
        late = [_step("tmpfs", "/app"), _step("tmpfs", "/logs/verifier"), _step("bind", _TESTS, 0)]
        there.finish({"steps": late}, [sample])
        if not there.command:
            raise OSError("no sandbox can be made")
        yield ours, there.command


def _step(what: str, at: str, *sources: int) -> dict[str, Any]:
    return {"what": what, "at": at, "text": "", "sources": sources, "size": 1 << 20, "perms": 0o777}

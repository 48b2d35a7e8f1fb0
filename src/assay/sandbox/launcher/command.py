"""What is forked for a sandbox: it gives up its rights, waits for a command, and becomes it.

It is a child of the slot server, beside the sandbox's pid 1 (`init`). So signals, `alarm` and orphans behave in there as
programs expect, and how it ended is told by one that nothing in there can name.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, NoReturn

from . import kernel, rights, root, wire

NOT_STARTED = 127
_IGNORED = (signal.SIGPIPE, signal.SIGXFSZ)
"""By Python, as it starts; a program would inherit it."""


class Left(BaseException):
    """Raised in a fork that has given up every right, to have it leave what the server was doing and run a program."""

    def __init__(self, argv: list[str], env: Mapping[bytes, bytes]) -> None:
        """What the command is."""
        self.argv, self.env = argv, env


class Settings(NamedTuple):
    """What every command of a slot has in common. (A dataclass would load a megabyte, which each fork pays for.)"""

    uid: int | None
    """The uid inside, to change to; None: this process has it already."""
    owner: int
    """The uid inside, of what is writable."""
    groups: Sequence[int]
    """Descriptors at the `cgroup.procs` of the slot's control groups, opened by the supervisor with its rights."""
    program: bytes | None
    """The system call filter."""
    run: Callable[[list[str], Mapping[bytes, bytes]], None] | None
    """`ready.run` or `script.run`, where this process is an interpreter that runs programs itself (`turning`)."""
    pages: ctypes.Array[ctypes.c_size_t] | None = None
    """The memory that such a command will write to (`pages`)."""


def become(control: socket.socket, settings: Settings, built: int, finished: int) -> NoReturn:
    """What the fork does: give up its rights, wait for what to run, and become it.

    It is in its namespaces, and in its root, or will be when `built` ends (-1: it is). `finished` ends when that is complete
    and the init out of reach. Raises `Left`.
    """
    try:
        os.umask(0o022)
        _join(settings)
        if settings.pages is not None:
            kernel.populate(settings.pages)
        # From inside, the slot's group is the root and names nothing of the host.
        kernel.unshare(kernel.NEWCGROUP, "cgroup namespace")
        if built >= 0:
            wire.send(control, "waiting")
            os.read(built, 1)
        # Of this pid namespace, and made while another whole one is in sight, the one in its place: the kernel's condition.
        proc = kernel.new_mount("proc", kernel.NOSUID | kernel.NODEV | kernel.NOEXEC)
        root.place_proc(proc, settings.owner)
        os.close(proc)
        rights.drop(settings.uid, settings.program)
        if built < 0:
            wire.send(control, "waiting")
        os.read(finished, 1)
        _, fields, fds = wire.receive(control)
        # Before it does: a supervisor that heard nothing starts it anew, and no command may run twice.
        wire.send(control, "started")
    except wire.Gone:
        # Not needed any more, or the supervisor is.
        os._exit(0)
    except BaseException as error:
        # Nothing of a task's has run; whatever it was, the supervisor must hear of it.
        wire.send(control, "failed", {"why": words(error)})
        os._exit(1)
    # From here on a command runs, and nothing that goes wrong may be told as a fault of the sandbox: it could be its doing.
    # Closed below by its number: an object that did it later would close what has the number then.
    control.detach()
    try:
        argv = [wire.as_bytes(argument) for argument in fields["argv"]]
        env = {wire.as_bytes(name): wire.as_bytes(value) for name, value in fields["env"].items()}
        _take_places(fds, [0, 1, 2, *fields["passed"]])
        # A session of its own: it has no terminal to type into.
        os.setsid()
        os.chdir(wire.as_bytes(fields["cwd"]))
        run = settings.run if fields["python"] else None
        if run is not None:
            kernel.set_name(os.fsdecode(os.path.basename(argv[0])))
        arguments = [os.fsdecode(argument) for argument in argv]
    except BaseException as error:
        _say(words(error))
        os._exit(NOT_STARTED)
    if run is not None:
        run(arguments, env)
    try:
        for number in _IGNORED:
            signal.signal(number, signal.SIG_DFL)
        _execute(argv, env)
    except BaseException as error:
        _say(words(error))
        os._exit(NOT_STARTED)


def _take_places(fds: Sequence[int], targets: Sequence[int]) -> None:
    """Have `fds` as `targets`, and no other descriptor."""
    above = max(targets) + 1
    for fd, target in zip([_dup_above(fd, above) for fd in fds], targets, strict=True):
        os.dup2(fd, target)
    kernel.close_from(above)
    for fd in set(range(above)) - set(targets):
        try:
            os.close(fd)
        except OSError:
            continue


def words(error: BaseException) -> str:
    """What went wrong, without what it says of this process alone."""
    if isinstance(error, OSError) and error.strerror:
        name = error.filename
        return f"{os.fsdecode(name) if isinstance(name, bytes) else name}: {error.strerror}"
    return f"{type(error).__name__}: {error}"


def _join(settings: Settings) -> None:
    # First of all: a group that is joined after a pause can take milliseconds, and mostly nobody waits yet.
    for group in settings.groups:
        os.write(group, b"0")
        os.close(group)


def _execute(argv: list[bytes], env: Mapping[bytes, bytes]) -> NoReturn:
    """Become the program, looked for as a shell does. Raises `OSError`."""
    refused: OSError = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fsdecode(argv[0]))
    for path in places(argv[0], env):
        try:
            os.execve(path, argv, env)  # noqa: S606 - that is what it is for
        except (FileNotFoundError, NotADirectoryError):
            continue
        except PermissionError as error:
            # As a shell does: look further, and remember what was there but may not be run.
            refused = error
        except OSError as error:
            if error.errno != errno.ENOEXEC:
                raise
            # A script without a first line that says what runs it.
            os.execve(b"/bin/sh", [b"/bin/sh", path, *argv[1:]], env)  # noqa: S606 - as above
    raise refused


def places(program: bytes, env: Mapping[bytes, bytes]) -> list[bytes]:
    """Where a program is looked for, first to last."""
    if b"/" in program:
        return [program]
    return [(folder or b".") + b"/" + program for folder in env.get(b"PATH", b"").split(b":")]


def _dup_above(fd: int, above: int) -> int:
    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, above)


def _say(text: str) -> None:
    try:
        os.write(2, f"assay: {text}\n".encode("utf-8", "surrogateescape"))
    except OSError:
        # Whoever reads it is gone.
        return

"""The fork of a sandbox: waiting in its namespaces, then building its root, dropping its rights, becoming its command.

It is a child of the slot server, beside the sandbox's pid 1 (`init`). So signals, `alarm` and orphans behave in there as
programs expect, and how it ended is told by one that nothing in there can name.
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from . import kernel, rights, root, wire

NOT_STARTED = 127
_IGNORED = (signal.SIGPIPE, signal.SIGXFSZ)
"""By Python, as it starts; a program would inherit it."""
_OOM_SCORE_MORE = 500
_OOM_SCORE_MOST = 1000


class Settings(NamedTuple):
    """What every sandbox of a slot has in common. (A dataclass would load a megabyte, which each fork pays for.)"""

    uid: int | None
    """The uid inside, to change to; None: this process has it already."""
    owner: int
    """The uid inside, of what is writable."""
    groups: Sequence[int]
    """Descriptors at the `cgroup.procs` of the slot's control groups, opened by the supervisor with its rights."""
    program: bytes | None
    """The system call filter."""
    host: bool
    """Whether the host's files are at `/host` and sources come as paths (see `server`)."""
    base: Sequence[Mapping[str, Any]]
    """Steps of every sandbox of the slot, laid before a request comes; the slot server has each of their mounts at its place."""
    rehearse: Callable[[], None] | None = None
    """`ready.rehearse` and `ready.run`, where this process is an interpreter that runs programs itself (`turning`)."""
    run: Callable[[list[str], Mapping[bytes, bytes]], NoReturn] | None = None


def become(control: socket.socket, settings: Settings, out_of_reach: int) -> NoReturn:
    """What the fork does: make the root, wait for what to run, and become it. `out_of_reach` ends when its init is that."""
    try:
        _raise_score()
        _join(settings)
        _get_ready(control, settings)
        os.read(out_of_reach, 1)
        _, fields, fds = wire.receive(control)
        # Before it does: a supervisor that heard nothing starts it anew, and no command may run twice.
        wire.send(control, "started")
    except wire.Gone:
        # Not needed any more, or the supervisor is.
        os._exit(0)
    except BaseException as error:
        # Nothing of a task's has run; whatever it was, the supervisor must hear of it.
        wire.send(control, "failed", {"why": _words(error)})
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
        if settings.run is None or not fields["python"]:
            for number in _IGNORED:
                signal.signal(number, signal.SIG_DFL)
            _execute(argv, env)
        kernel.set_name(os.fsdecode(os.path.basename(argv[0])))
        words = [os.fsdecode(argument) for argument in argv]
    except BaseException as error:
        _say(_words(error))
        os._exit(NOT_STARTED)
    settings.run(words, env)


def _get_ready(control: socket.socket, settings: Settings) -> None:
    """Do all up to the command: what can be done before a request, and then what it brings. It leaves no right."""
    proc, dev, base = _wait_here(settings, control)
    _, begun, mounts = wire.receive(control)
    _build(begun, mounts, settings, proc, dev, base)
    if settings.rehearse is not None:
        settings.rehearse()
        _rehearse()
    wire.send(control, "built")
    _, fields, mounts = wire.receive(control)
    root.finish(begun["steps"], fields["steps"], mounts, settings.owner, begun["space"])
    for fd in mounts:
        os.close(fd)
    os.umask(0o022)
    rights.drop(settings.uid, begun["limits"], settings.program)


def _raise_score() -> None:
    """When the machine's memory runs out its kernel shall take the command, not its server."""
    score = os.open("/proc/self/oom_score_adj", os.O_RDWR | os.O_CLOEXEC)
    before = int(os.pread(score, 16, 0))
    os.pwrite(score, b"%d" % min(before + _OOM_SCORE_MORE, _OOM_SCORE_MOST), 0)
    os.close(score)


def _rehearse() -> None:
    """Touch what the rest of the way needs, which changes nothing: see `ready.rehearse`."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    steps = [{"what": "dir", "at": "/", "text": "", "sources": [0], "size": None, "perms": None}]
    wire.send(ours, "finish", {"steps": steps, "env": {"NAME": "value"}, "argv": ["name"] * 9, "python": True}, [null])
    _, fields, fds = wire.receive(theirs)
    root.touch(fields["steps"], fds)
    rights.touch()
    for fd in (*fds, null, _dup_above(null, 10)):
        os.close(fd)
    ours.close()
    theirs.close()


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


def _words(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        name = error.filename
        return f"{os.fsdecode(name) if isinstance(name, bytes) else name}: {error.strerror}"
    return f"{type(error).__name__}: {error}"


def _join(settings: Settings) -> None:
    # Here and now: a group that is joined after a pause can take milliseconds, and nobody waits yet.
    for group in settings.groups:
        os.write(group, b"0")
        os.close(group)


def _wait_here(settings: Settings, control: socket.socket) -> tuple[int, int, list[int]]:
    """Get ready as far as that needs no request: a /proc and a /dev to place later, and mounts of the base not placed yet."""
    # The group namespace after that: from inside, the slot's group is the root and names nothing of the host.
    kernel.unshare(
        kernel.NEWNS | kernel.NEWIPC | kernel.NEWUTS | kernel.NEWCGROUP, "mount, ipc, uts, cgroup namespaces"
    )
    # The supervisor holds the mounts until nobody waits for a verdict: to take them apart takes the kernel a while.
    mounts = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    # Made while a whole /proc is in sight, without which the kernel lets no user namespace have another.
    proc = kernel.new_mount("proc", kernel.NOSUID | kernel.NODEV | kernel.NOEXEC)
    dev = kernel.clone_mount("/dev")
    base = [kernel.clone_mount(step["at"]) for step in settings.base if step["what"] == "bind"]
    if not settings.host:
        os.umask(0)
        root.enter("/new")
        root.lay(settings.base, base, settings.owner)
        base = []
    wire.send(control, "waiting", None, [mounts])
    os.close(mounts)
    return proc, dev, base


def _build(
    fields: Mapping[str, Any], mounts: list[int], settings: Settings, proc: int, dev: int, base: list[int]
) -> None:
    os.umask(0)
    if settings.host:
        mounts = [own_mount(source) for source in fields["sources"]]
        root.enter("/new")
        root.lay(settings.base, base, settings.owner)
    root.build(fields["steps"], mounts, proc, dev, settings.owner, fields["space"])
    for fd in (proc, dev, *mounts):
        os.close(fd)


def own_mount(source: Mapping[str, Any]) -> int:
    """A mount of a host path, for an ordinary user, whose supervisor may make none."""
    # Recursive: the kernel lets no user namespace look below the host's mounts.
    fd = kernel.clone_mount(f"/host{source['path']}")
    kernel.set_mount(fd, source["attributes"], recursive=True)
    return fd


def _execute(argv: list[bytes], env: Mapping[bytes, bytes]) -> NoReturn:
    """Become the program, looked for as a shell does. Raises `OSError`."""
    refused: OSError = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fsdecode(argv[0]))
    for path in _places(argv[0], env):
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


def _places(program: bytes, env: Mapping[bytes, bytes]) -> list[bytes]:
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

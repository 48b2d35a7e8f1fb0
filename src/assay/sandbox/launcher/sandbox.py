"""The one fork of a sandbox: waiting in its namespaces, then building its root, dropping its rights, being its init.

It is pid 1 of its pid namespace and never runs a task's code itself: the command is its child. So signals, `alarm` and
orphans behave in the sandbox as programs expect, and when it ends the kernel ends everything else in there.
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn, TypeVar

from . import kernel, rights, root, wire

_T = TypeVar("_T")

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
    usual: frozenset[str] | None
    """The modules that the sandboxes' interpreter has loaded when it starts, where this process is one (`turning`)."""


def become(control: socket.socket, settings: Settings) -> None:
    """What the fork does. Never returns."""
    try:
        score = os.open("/proc/self/oom_score_adj", os.O_RDWR | os.O_CLOEXEC)
        _join(settings)
        if settings.usual is not None:
            _watch(control, score, settings)
        _get_ready(control, settings)
        _, fields, fds = wire.receive(control)
        before = _raise_score(score)
        # Before it does: a supervisor that heard nothing starts it anew, and no command may run twice.
        wire.send(control, "started")
        command, text = _start(fields, fds)
    except wire.Gone:
        # Not needed any more, or the supervisor is.
        os._exit(0)
    except BaseException as error:
        _fail(control, error)
    # From here on a command runs, and nothing that goes wrong may be told as a fault of the sandbox: it could be its doing.
    try:
        if command is None:
            _say(text)
            wire.send(control, f"ended:{NOT_STARTED << 8}")
            os._exit(0)
        os.pwrite(score, b"%d" % before, 0)
        os.chdir("/")
        _tell_end(control, command)
    finally:
        os._exit(0)


def _get_ready(control: socket.socket, settings: Settings) -> None:
    """Do all up to the command: what can be done before a request, and then what it brings. It leaves no right."""
    proc, dev, base = _wait_here(settings, control)
    _, begun, mounts = wire.receive(control)
    _build(begun, mounts, settings, proc, dev, base)
    if settings.usual is not None:
        # Loaded where there is such an interpreter alone: a fork costs by what is in memory.
        from . import ready

        ready.rehearse(settings.usual)
        _rehearse()
    wire.send(control, "built")
    _, fields, mounts = wire.receive(control)
    root.finish(begun["steps"], fields["steps"], mounts, settings.owner, begun["space"])
    for fd in mounts:
        os.close(fd)
    os.umask(0o022)
    rights.drop(settings.uid, begun["limits"], settings.program)


def _fail(control: socket.socket, error: BaseException) -> NoReturn:
    """Nothing of a task's has run; whatever it was, the supervisor must hear of it."""
    wire.send(control, "failed", {"why": _words(error)})
    os._exit(1)


def _raise_score(score: int) -> int:
    """When memory runs out the kernel shall take the command, not its init: inherited, and taken back by the init.

    By a descriptor, since the drop of rights makes this process' own files in /proc root's. Returns what it was.
    """
    before = int(os.pread(score, 16, 0))
    os.pwrite(score, b"%d" % min(before + _OOM_SCORE_MORE, _OOM_SCORE_MOST), 0)
    return before


def _tell_end(control: socket.socket, command: int) -> None:
    """Be the command's init till it has ended, and say how."""
    control = _close_all_but(control)
    wire.send(control, f"ended:{_reap_until(command)}")


def _watch(control: socket.socket, score: int, settings: Settings) -> NoReturn:
    """Fork what the command will be before anything is known, and be its init.

    It does nothing else, so that few of the pages that it shares with the server are copied. It has no right from here on,
    and what it sees is empty.
    """
    try:
        before = _raise_score(score)
        out_of_reach, is_out_of_reach = os.pipe()
        command = os.fork()
        if command == 0:
            os.close(score)
            os.close(is_out_of_reach)
            _command(control, settings, out_of_reach)
        os.pwrite(score, b"%d" % before, 0)
        kernel.unshare(kernel.NEWNS | kernel.NEWIPC | kernel.NEWUTS | kernel.NEWCGROUP, "namespaces")
        root.enter("/new")
        rights.drop(settings.uid, {}, settings.program)
        os.close(is_out_of_reach)
    except BaseException as error:
        _fail(control, error)
    try:
        _tell_end(control, command)
    finally:
        os._exit(0)


def _command(control: socket.socket, settings: Settings, out_of_reach: int) -> NoReturn:
    """Make the root, wait for what to run, and become it."""
    from . import ready

    try:
        _get_ready(control, settings)
        # Its end: what runs here could else keep its init from finishing, which would be told as a fault of the sandbox.
        os.read(out_of_reach, 1)
        _, fields, fds = wire.receive(control)
        wire.send(control, "started")
    except wire.Gone:
        os._exit(0)
    except BaseException as error:
        _fail(control, error)
    # Closed below by its number: an object that did it later would close what has the number then.
    control.detach()
    try:
        argv = [wire.as_bytes(argument) for argument in fields["argv"]]
        env = {wire.as_bytes(name): wire.as_bytes(value) for name, value in fields["env"].items()}
        _take_places(fds, [0, 1, 2, *fields["passed"]])
        os.setsid()
        kernel.set_name(os.fsdecode(os.path.basename(argv[0])))
        os.chdir(wire.as_bytes(fields["cwd"]))
        if not fields["python"]:
            for number in _IGNORED:
                signal.signal(number, signal.SIG_DFL)
            _tried(argv, env, lambda path, words: os.execve(path, words, env))  # noqa: S606 - that is what it is for
        words = [os.fsdecode(argument) for argument in argv]
    except BaseException as error:
        _say(_words(error))
        os._exit(NOT_STARTED)
    ready.run(words, env)


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


def _start(fields: Mapping[str, Any], fds: Sequence[int]) -> tuple[int | None, str]:
    """Start the command: its pid, or None and why it could not be started."""
    argv = [wire.as_bytes(argument) for argument in fields["argv"]]
    env = {wire.as_bytes(name): wire.as_bytes(value) for name, value in fields["env"].items()}
    targets = [0, 1, 2, *fields["passed"]]
    try:
        # With the command's own rights, not the launcher's.
        os.chdir(wire.as_bytes(fields["cwd"]))
        return _spawn(argv, env, fds, targets), ""
    except OSError as error:
        os.dup2(fds[2], 2)
        return None, f"{os.fsdecode(error.filename or argv[0])}: {error.strerror}"


def own_mount(source: Mapping[str, Any]) -> int:
    """A mount of a host path, for an ordinary user, whose supervisor may make none."""
    # Recursive: the kernel lets no user namespace look below the host's mounts.
    fd = kernel.clone_mount(f"/host{source['path']}")
    kernel.set_mount(fd, source["attributes"], recursive=True)
    return fd


def _spawn(argv: list[bytes], env: dict[bytes, bytes], fds: Sequence[int], targets: Sequence[int]) -> int:
    """Start the command with `fds` as its descriptors `targets` and no others. Raises `OSError` when it cannot be."""
    # Out of the way first: a target may be the number of another's source.
    above = max(targets) + 1
    high = [_dup_above(fd, above) for fd in fds]
    # All of them, whatever opened them: a command that got this process' socket could say how it ended.
    kernel.close_on_exec_from(0)
    actions = [(os.POSIX_SPAWN_DUP2, fd, target) for fd, target in zip(high, targets, strict=True)]
    return _tried(argv, env, lambda path, words: _posix_spawn(path, words, env, actions))


def _tried(argv: list[bytes], env: Mapping[bytes, bytes], start: Callable[[bytes, list[bytes]], _T]) -> _T:
    """What `start` returns for the program and its arguments, looked for as a shell does. Raises `OSError`."""
    refused: OSError = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fsdecode(argv[0]))
    for path in _places(argv[0], env):
        try:
            # Looked for first: a process that starts only to find nothing is the dear part of it all.
            os.stat(path)
            return start(path, argv)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except PermissionError as error:
            # As a shell does: look further, and remember what was there but may not be run.
            refused = error
        except OSError as error:
            if error.errno != errno.ENOEXEC:
                raise
            # A script without a first line that says what runs it.
            return start(b"/bin/sh", [b"/bin/sh", path, *argv[1:]])
    raise refused


def _posix_spawn(path: bytes, argv: list[bytes], env: dict[bytes, bytes], actions: list[tuple[int, int, int]]) -> int:
    # By vfork: no page of this process is copied. A session of its own: it has no terminal to type into.
    return os.posix_spawn(path, argv, env, file_actions=actions, setsid=True, setsigmask=(), setsigdef=_IGNORED)


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


def _close_all_but(kept: socket.socket) -> socket.socket:
    """Close what the command was given, too: an init that holds a pipe's end would keep its reader waiting."""
    # As number 0, so that one range is all the rest.
    os.dup2(kept.detach(), 0)
    kernel.close_from(1)
    return socket.socket(fileno=0)


def _reap_until(command: int) -> int:
    """Reap every orphan of the sandbox until the command itself has ended; its wait status."""
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == command:
            return status

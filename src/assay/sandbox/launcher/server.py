"""The slot server: started once per slot, forks once per command, never runs a task's code.

Two processes. The *keeper* is the supervisor's child: it waits for the end of either side, and for nothing else. The
*server* below it is pid 1 of a pid namespace, so that whatever kills it kills every sandbox process of the slot; it lives
in a user namespace in which it may make sandboxes and outside of which it is nobody. Started by root that namespace has
two ids, each a kernel uid that no other slot has: the server's own and the sandbox's, which is the one that its commands
are to see as theirs, 0 perhaps: no right comes with it, they are the capabilities', not the number's. Started by an ordinary
user it has one, that user's, which is the sandbox's; then the host's files stay mounted at `/host`, since only the server
itself may mount them anew.
"""

from __future__ import annotations

import functools
import gc
import os
import select
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from . import command, init, kernel, root, tenant, turning, wire

if TYPE_CHECKING:
    from . import script

_WORK_PLACE = "/usr"
"""A folder that every system has; covered for the moment in which the server's own root is made."""


def main() -> None:
    """Run as `main(descriptor of a socket to the supervisor)`, given as the last argument. Never returns."""
    sock = socket.socket(fileno=int(sys.argv[-1]))
    sock.set_inheritable(False)
    try:
        _, fields, fds = wire.receive(sock)
        _begin(sock, fields, fds)
    except wire.Gone:
        os._exit(0)
    except BaseException as error:
        wire.send(sock, "failed", {"why": f"{type(error).__name__}: {error}"})
        os._exit(1)


def _begin(sock: socket.socket, fields: Mapping[str, Any], fds: Sequence[int]) -> None:
    _reset_signals()
    # It names folders of the host, and every sandbox can read its init's.
    kernel.hide_command_line("assay-slot")
    kernel.set_name("assay-slot")
    supervisor, *rest = fds
    groups, rest = rest[: fields["groups"]], rest[fields["groups"] :]
    devices, base = rest[: fields["device_mounts"]], rest[fields["device_mounts"] :]
    # Before the host goes from sight.
    sources = turning.read_sources() if fields["interpreter"] is not None else []
    user = fields["user"]
    owners = -1
    if fields["uids"] is not None:
        server_uid, sandbox_uid = fields["uids"]
        # Any other than the sandbox's: what the server may do it may by its capabilities.
        inside = 1 if user == 0 else 0
        owners = _namespace_fd(f"0 {sandbox_uid} 1")
        _enter_user_namespace(f"{inside} {server_uid} 1\n{user} {sandbox_uid} 1")
        # None of the starter's groups: each would open files to the sandbox.
        os.setgroups([])
        os.setresgid(inside, inside, inside)
        os.setresuid(inside, inside, inside)
        kernel.be_dumpable()
    else:
        _enter_own_user_namespace(user)
    kernel.unshare(kernel.NEWPID, "pid namespace")
    pid = os.fork()
    if pid != 0:
        sock.close()
        _keep(supervisor, pid)
    kernel.die_with_parent()
    if select.select([supervisor], [], [], 0)[0]:
        os._exit(0)
    os.close(supervisor)
    _prepare(fields, devices, base)
    # Before the interpreter starts: what runs at its start has no network, either.
    if not fields["network"]:
        kernel.unshare(kernel.NEWNET, "network namespace")
    if fields["interpreter"] is None:
        _settle(sock, groups, owners, fields)
    state = {"sock": sock.fileno(), "groups": groups, "owners": owners, "fields": fields}
    kept = [sock.fileno(), *groups, *([owners] if owners >= 0 else [])]
    turning.turn(fields["interpreter"], sources, state, kept)


def go_on(state: Mapping[str, Any], before: script.Before) -> script.Program:
    """Serve, as an interpreter that `turning.turn` became. `before`: what it was when it started.

    Only a fork comes back from this, with what it is to raise in place of a server.
    """
    # Loaded where there is such an interpreter alone: a fork costs by what is in memory.
    from . import pages, ready, script

    sock = socket.socket(fileno=state["sock"])
    try:
        for fd in (state["sock"], *state["groups"], *([state["owners"]] if state["owners"] >= 0 else [])):
            os.set_inheritable(fd, False)
        _reset_signals()
        kernel.hide_command_line("assay-slot")
        kernel.set_name("assay-slot")
        kernel.die_with_parent()
        interpreter = state["fields"]["interpreter"]
        run: Callable[[list[str], Mapping[bytes, bytes]], None] = ready.run
        learn: Callable[[tenant.Settings], tenant.Settings] | None = None
        if interpreter["ahead"] is None:
            script.check()
            sys.dont_write_bytecode = True
            run = script.run
            here = functools.partial(script.run_here, before)
            learn = functools.partial(pages.learn_script, interpreter=interpreter, run=here)
        else:
            ready.load(interpreter["ahead"], before.modules)
            sha256 = ready.sha256()
            if sha256 is not None:
                learn = functools.partial(pages.learn, interpreter=interpreter, sha256=sha256)
        _settle(sock, state["groups"], state["owners"], state["fields"], run, learn)
    except command.Left as left:
        # Closed, as all others; somebody else's may have its number.
        sock.detach()
        return script.Program(left, before)
    except BaseException as error:
        wire.send(sock, "failed", {"why": f"{type(error).__name__}: {error}"})
        os._exit(1)


def _settle(
    sock: socket.socket,
    groups: Sequence[int],
    owners: int,
    fields: Mapping[str, Any],
    run: Callable[[list[str], Mapping[bytes, bytes]], None] | None = None,
    learn: Callable[[tenant.Settings], tenant.Settings] | None = None,
) -> NoReturn:
    """Make what is left to make with the server's rights, and serve."""
    network = None if fields["network"] else _Network()
    kernel.forget_bounding_capabilities()
    program = bytes.fromhex(fields["program"]) if fields["program"] is not None else None
    by_root = fields["uids"] is not None
    user = fields["user"]
    each = command.Settings(user if by_root else None, user, groups, program, run)
    own = tenant.Home(), init.lay("/", os.uname().machine)
    settings = tenant.Settings(*own, user, not by_root, fields["base"]["steps"], each)
    _serve(sock, settings, network, owners, learn)


def _reset_signals() -> None:
    # Python's handler of SIGINT would let a program in the sandbox end its init: a signal without a handler cannot. What
    # the supervisor ignores a command shall not.
    for number in signal.valid_signals() - {signal.SIGPIPE, signal.SIGXFSZ, signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)


def _namespace_fd(ids: str) -> int:
    """A descriptor of a user namespace with this map, in which nothing runs: for mounts that show files as another's."""
    ready, is_ready = os.pipe()
    holder = os.fork()
    if holder == 0:
        try:
            kernel.die_with_parent()
            kernel.unshare(kernel.NEWUSER, "user namespace")
            os.write(is_ready, b"1")
            signal.pause()
        finally:
            os._exit(1)
    os.close(is_ready)
    try:
        if not os.read(ready, 1):
            raise OSError("no user namespace can be made")
        _write_maps(holder, ids)
        return os.open(f"/proc/{holder}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(ready)
        os.kill(holder, signal.SIGKILL)
        os.waitpid(holder, 0)


def _enter_user_namespace(ids: str) -> None:
    """Enter a new user namespace with this map of ids, which only a process that stays outside may write."""
    me = os.getpid()
    entered, has_entered = os.pipe()
    helper = os.fork()
    if helper == 0:
        try:
            os.close(has_entered)
            if os.read(entered, 1):
                _write_maps(me, ids)
                os._exit(0)
        finally:
            os._exit(1)
    os.close(entered)
    kernel.unshare(kernel.NEWUSER, "user namespace")
    os.write(has_entered, b"1")
    os.close(has_entered)
    _, status = os.waitpid(helper, 0)
    if status != 0:
        raise OSError("the user namespace's ids could not be mapped")


def _enter_own_user_namespace(user: int) -> None:
    """Enter a new user namespace in which the caller's one uid and gid are the sandbox's."""
    uid, gid = os.geteuid(), os.getegid()
    kernel.unshare(kernel.NEWUSER, "user namespace")
    # The kernel's condition for mapping a group: nobody can give up a group that is there to deny access.
    _write("/proc/self/setgroups", "deny")
    _write("/proc/self/uid_map", f"{user} {uid} 1")
    _write("/proc/self/gid_map", f"{user} {gid} 1")


def _write_maps(pid: int, ids: str) -> None:
    _write(f"/proc/{pid}/uid_map", ids)
    _write(f"/proc/{pid}/gid_map", ids)


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="ascii") as file:
        file.write(text)


def _keep(supervisor: int, server: int) -> None:
    """Wait until the supervisor or the server has died, and see to the other's part of it."""
    # Its pidfd, not the end of a socket: whatever the supervisor forks holds a copy of the socket.
    os.dup2(supervisor, 0)
    os.dup2(os.pidfd_open(server), 1)
    kernel.close_from(2)
    # The server runs under the same uid, which is right enough to end it.
    kernel.drop_capabilities()
    poll = select.poll()
    poll.register(0, select.POLLIN)
    poll.register(1, select.POLLIN)
    poll.poll()
    os.kill(server, signal.SIGKILL)
    _, status = os.waitpid(server, 0)
    os._exit(128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status))


def _prepare(fields: Mapping[str, Any], devices: Sequence[int], base: Sequence[int]) -> None:
    """Move the server into namespaces and a root of its own."""
    kernel.unshare(kernel.NEWNS | kernel.NEWIPC | kernel.NEWUTS, "mount, ipc and uts namespaces")
    # Sandboxes copy it.
    socket.sethostname(fields["hostname"])
    _make_root(fields, devices, base)


def _make_root(fields: Mapping[str, Any], devices: Sequence[int], base: Sequence[int]) -> None:
    kernel.make_all_private()
    quiet = kernel.NOSUID | kernel.NODEV
    kernel.mount("tmpfs", _WORK_PLACE, quiet, "size=1m,mode=755")
    for name in ("dev", "host", "new", "proc"):
        os.mkdir(f"{_WORK_PLACE}/{name}", 0o755)
    # In the server's pid namespace, and while the host's own is in sight: the kernel's condition for another.
    kernel.mount("proc", f"{_WORK_PLACE}/proc", quiet | kernel.NOEXEC)
    _make_devices(f"{_WORK_PLACE}/dev", fields, devices)
    os.chdir(_WORK_PLACE)
    kernel.pivot_root(".", "host")
    os.chdir("/")
    by_root = fields["uids"] is not None
    # Shown here once, and copied by every sandbox.
    mounts = base if by_root else [tenant.own_mount(source) for source in fields["base"]["sources"]]
    root.lay(fields["base"]["steps"], mounts, fields["user"])
    for fd in mounts:
        os.close(fd)
    if by_root:
        kernel.detach("/host")


def _make_devices(folder: str, fields: Mapping[str, Any], devices: Sequence[int]) -> None:
    """A read-only folder with these devices of the host, which every sandbox gets a copy of the mounts of."""
    kernel.mount("tmpfs", folder, kernel.NOSUID | kernel.NODEV, "size=64k,mode=755")
    os.mkdir(f"{folder}/shm", 0o755)
    for name, target in fields["device_links"].items():
        os.symlink(target, f"{folder}/{name}")
    for number, name in enumerate(fields["devices"]):
        with open(f"{folder}/{name}", "x"):
            pass
        fd = devices[number] if devices else kernel.clone_mount(f"/dev/{name}")
        # Written to as devices all the same.
        kernel.set_mount(fd, kernel.RDONLY | kernel.NOSUID | kernel.NOEXEC)
        kernel.place_mount(fd, f"{folder}/{name}")
        os.close(fd)
    kernel.set_mount(folder, kernel.RDONLY | kernel.NOSUID | kernel.NODEV)


def _serve(
    sock: socket.socket,
    settings: tenant.Settings,
    network: _Network | None,
    owners: int,
    learn: Callable[[tenant.Settings], tenant.Settings] | None,
) -> NoReturn:
    """Answer the supervisor until it has no more to ask."""
    # A collection in a fork would copy every page that holds an object.
    gc.disable()
    gc.freeze()
    null = os.open("/dev/null", os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.close(null)
    os.umask(0)
    if learn is not None:
        settings = learn(settings)
    me = os.pidfd_open(os.getpid())
    wire.send(sock, "ready", None, [me, *([owners] if owners >= 0 else [])])
    for fd in (me, *([owners] if owners >= 0 else [])):
        os.close(fd)
    there: tenant.Tenant | None = None
    while True:
        if there is not None:
            there.watch(sock)
        try:
            word, fields, fds = wire.receive(sock)
        except wire.Gone:
            # The end of pid 1 is the end of every process of the slot.
            os._exit(0)
        if word == "park":
            if there is not None:
                # Dead already, or wanted dead: one sandbox at a time.
                there.end()
            if network is not None:
                network.clean()
            there = tenant.Tenant(fds[0], settings, early=fields["early"])
        elif there is not None:
            # What can be made before a request, and then what that brings.
            (there.build if word == "build" else there.finish)(fields, fds)
            for fd in fds:
                os.close(fd)


class _Network:
    """The network namespace that the sandboxes of a slot have one after the other."""

    def __init__(self) -> None:
        self._files: dict[str, int] = {}
        self._fresh()

    def clean(self) -> None:
        """Replace it unless it is as it was: a connection that lingers (TIME_WAIT) would be seen, and keeps its port."""
        if self._counts() != self._quiet:
            self._socket.close()
            self._fresh()

    def _fresh(self) -> None:
        kernel.unshare(kernel.NEWNET, "network namespace")
        # Kept open: the kernel would go on counting it for a while after its end.
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        kernel.loopback_up(self._socket)
        for fd in self._files.values():
            os.close(fd)
        # Counters go on counting, and a flow label stays for a minute: each could tell something. Some a kernel without IPv6
        # has not.
        names = ("sockstat", "sockstat6", "dev", "snmp", "snmp6", "ip6_flowlabel")
        places = {name: f"/proc/self/net/{name}" for name in names}
        there = {name: place for name, place in places.items() if os.path.exists(place)}
        self._files = {name: os.open(place, os.O_RDONLY | os.O_CLOEXEC) for name, place in there.items()}
        self._quiet = self._counts()

    def _counts(self) -> list[bytes]:
        texts = {name: os.pread(fd, 1 << 16, 0) for name, fd in self._files.items()}
        return [_without_machine(text) if name.startswith("sockstat") else text for name, text in texts.items()]


def _without_machine(text: bytes) -> bytes:
    """Counts of sockets without those of the whole machine, which stand in pairs of a name and a number."""
    found = []
    for line in text.splitlines():
        words = line.split()
        pairs = zip(words[1::2], words[2::2], strict=False)
        found.append(words[0] + b"".join(b" %s %s" % pair for pair in pairs if pair[0] not in (b"alloc", b"mem")))
    return b"\n".join(found)

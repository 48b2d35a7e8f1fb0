"""The system calls that sandboxes are made of and Python does not offer, one function each. Each raises `OSError`.

Numbers given here are the same on every architecture that Linux added after 2018's calls; the rest go by glibc's names.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
from typing import Any

NEWNS = 0x0002_0000
NEWCGROUP = 0x0200_0000
NEWUTS = 0x0400_0000
NEWIPC = 0x0800_0000
NEWUSER = 0x1000_0000
NEWPID = 0x2000_0000
NEWNET = 0x4000_0000

NOSUID, NODEV, NOEXEC = 2, 4, 8
"""The same bits for `mount` and for `set_mount`."""
RDONLY = 1
IDMAP = 0x0010_0000

_REC = 0x4000
_PRIVATE = 0x4_0000
_DETACH = 2
_AT_FDCWD = -100
_AT_EMPTY_PATH = 0x1000
_AT_RECURSIVE = 0x8000
_AT_SYMLINK_NOFOLLOW = 0x100
_CLOEXEC = os.O_CLOEXEC
_PROCESS_MADVISE = 440
_MADV_POPULATE_WRITE = 23
_OPEN_TREE, _MOVE_MOUNT, _FSOPEN, _FSCONFIG, _FSMOUNT, _CLOSE_RANGE, _MOUNT_SETATTR = 428, 429, 430, 431, 432, 436, 442

_SET_PDEATHSIG = 1
_SET_DUMPABLE = 4
_SET_NAME = 15
_SET_SECCOMP = 22
_CAPBSET_DROP = 24
_SET_NO_NEW_PRIVS = 38
_CAP_AMBIENT = 47
_SECCOMP_MODE_FILTER = 2
_CAP_AMBIENT_RAISE = 2
_CAP_AMBIENT_CLEAR_ALL = 4
_CAPABILITIES_V3 = 0x2008_0522
_SIOCSIFFLAGS = 0x8914
_IFF_UP = 1

_libc = ctypes.CDLL(None, use_errno=True)


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)
    return result


def _syscall(number: int, *arguments: int | bytes | ctypes.Array[Any] | None, what: str) -> int:
    # A bare Python integer would be passed as 32 bits.
    words = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    return _checked(_libc.syscall(ctypes.c_long(number), *words), what)


def unshare(flags: int, what: str) -> None:
    """Leave namespaces for fresh ones (`NEWPID`, `NEWTIME`: the next children do)."""
    _checked(_libc.unshare(flags), f"unshare {what}")


def setns(fd: int, kind: int) -> None:
    """Enter the namespace of this descriptor (a pid namespace: the next children do)."""
    _checked(_libc.setns(fd, kind), "setns")


def mount(kind: str, at: str, flags: int, options: str = "") -> None:
    """Mount a new file system of this kind."""
    _checked(
        _libc.mount(kind.encode(), os.fsencode(at), kind.encode(), flags, options.encode()), f"mount {kind} at {at}"
    )


def detach(at: str) -> None:
    """Take a mount and everything on it out of this mount namespace, whoever still uses it."""
    _checked(_libc.umount2(os.fsencode(at), _DETACH), f"unmount {at}")


def make_all_private() -> None:
    """Let no mount made here be seen elsewhere, nor the other way round."""
    _checked(_libc.mount(None, b"/", None, _REC | _PRIVATE, None), "make mounts private")


def pivot_root(new: str, old: str) -> None:
    """Make the mount at `new` the root; the old root is then at `old`, a folder below `new`."""
    _checked(_libc.pivot_root(os.fsencode(new), os.fsencode(old)), "pivot_root")


def clone_mount(path: str, *, recursive: bool = True, folder: int = _AT_FDCWD) -> int:
    """A descriptor of a new mount, nowhere yet, of the file or folder at `path` (with the mounts below it)."""
    flags = 1 | _CLOEXEC | _AT_SYMLINK_NOFOLLOW | (_AT_RECURSIVE if recursive else 0)
    return _syscall(_OPEN_TREE, folder, os.fsencode(path), flags, what=f"open {path}")


def new_mount(kind: str, attributes: int) -> int:
    """A descriptor of a new mount, nowhere yet, of a new file system of this kind."""
    context = _syscall(_FSOPEN, kind.encode(), 1, what=f"make {kind}")
    try:
        create = 6
        _syscall(_FSCONFIG, context, create, None, None, 0, what=f"make {kind}")
        return _syscall(_FSMOUNT, context, 1, attributes, what=f"make {kind}")
    finally:
        os.close(context)


def place_mount(fd: int, at: str) -> None:
    """Put a mount that is nowhere yet at a path."""
    from_empty_path = 4
    _syscall(_MOVE_MOUNT, fd, b"", _AT_FDCWD, os.fsencode(at), from_empty_path, what=f"mount at {at}")


def set_mount(where: int | str, attributes: int, *, recursive: bool = False, users: int = -1) -> None:
    """Add attributes to a mount, by its descriptor or path, and cut what it shares with others.

    `users` is a user namespace's descriptor: the mount's files then appear owned as that namespace maps their owners.
    """
    values = struct.pack("4Q", attributes | (IDMAP if users >= 0 else 0), 0, _PRIVATE, max(users, 0))
    flags = _AT_RECURSIVE if recursive else 0
    if isinstance(where, int):
        folder, path, flags = where, b"", flags | _AT_EMPTY_PATH
    else:
        folder, path = _AT_FDCWD, os.fsencode(where)
    _syscall(_MOUNT_SETATTR, folder, path, flags, values, len(values), what="set a mount's attributes")


def populate(ranges: ctypes.Array[ctypes.c_size_t]) -> None:
    """Have memory of this process, an address and a size for each range, be its own: copied where it shares it."""
    me = os.pidfd_open(os.getpid())
    try:
        _syscall(_PROCESS_MADVISE, me, ranges, len(ranges) // 2, _MADV_POPULATE_WRITE, 0, what="populate memory")
    except OSError:
        # Before Linux 6.13 that was for other advice, of other processes.
        for address, size in zip(ranges[::2], ranges[1::2], strict=True):
            _libc.madvise(ctypes.c_void_p(address), ctypes.c_size_t(size), _MADV_POPULATE_WRITE)
    finally:
        os.close(me)


def close_from(first: int) -> None:
    """Close every descriptor from `first` up."""
    _syscall(_CLOSE_RANGE, first, 0xFFFF_FFFF, 0, what="close descriptors")


def close_on_exec_from(first: int) -> None:
    """Have every descriptor from `first` up closed by the next exec."""
    close_range_cloexec = 4
    _syscall(_CLOSE_RANGE, first, 0xFFFF_FFFF, close_range_cloexec, what="mark descriptors")


def _prctl(option: int, value: int | bytes = 0, more: int | bytes = 0) -> None:
    first, second = (ctypes.c_ulong(word) if isinstance(word, int) else word for word in (value, more))
    _checked(_libc.prctl(option, first, second, ctypes.c_ulong(0), ctypes.c_ulong(0)), f"prctl {option}")


def die_with_parent() -> None:
    """Be killed when the thread that started this process ends. A change of uid or of rights undoes it."""
    _prctl(_SET_PDEATHSIG, 9)


def be_undumpable() -> None:
    """Keep processes of the same uid out of this one's memory, descriptors and environment in `/proc`."""
    _prctl(_SET_DUMPABLE, 0)


def be_dumpable() -> None:
    """Own this process' files in `/proc` again, after a change of uid: its own settings are among them."""
    _prctl(_SET_DUMPABLE, 1)


def set_name(name: str) -> None:
    """What `ps` calls this process."""
    _prctl(_SET_NAME, name.encode())


def forbid_new_privileges() -> None:
    """No exec below here gives rights: setuid and setgid bits and file capabilities mean nothing any more."""
    _prctl(_SET_NO_NEW_PRIVS, 1)


def filter_calls(program: bytes) -> None:
    """Put a BPF filter in front of every system call from now on."""
    instruction_bytes = 8
    code = ctypes.cast(ctypes.c_char_p(program), ctypes.c_void_p).value
    _prctl(_SET_SECCOMP, _SECCOMP_MODE_FILTER, struct.pack("HxxxxxxP", len(program) // instruction_bytes, code))


def forget_bounding_capabilities() -> None:
    """No exec below here can give a capability back; what is held now is kept until `drop_capabilities`."""
    number = 0
    while True:
        try:
            _prctl(_CAPBSET_DROP, number)
        except OSError:
            # Past the last capability that this kernel knows.
            break
        number += 1
    if number == 0:
        raise OSError(1, "no capability could be taken off the bounding set")
    _prctl(_CAP_AMBIENT, _CAP_AMBIENT_CLEAR_ALL)


def keep_capabilities() -> None:
    """Let the next exec keep every capability held now, whatever the uid."""
    header = struct.pack("II", _CAPABILITIES_V3, 0)
    buffer = ctypes.create_string_buffer(24)
    _checked(_libc.capget(ctypes.create_string_buffer(header, len(header)), buffer), "capget")
    low, high = struct.unpack("6I", buffer.raw)[1::3]
    _checked(_libc.capset(header, struct.pack("6I", low, low, low, high, high, high)), "capset")
    for number in range(64):
        if (low | high << 32) >> number & 1:
            _prctl(_CAP_AMBIENT, _CAP_AMBIENT_RAISE, number)


def drop_capabilities() -> None:
    """Give up every capability: effective, permitted, inheritable."""
    _checked(_libc.capset(struct.pack("II", _CAPABILITIES_V3, 0), bytes(24)), "capset")


def loopback_up(any_socket: socket.socket) -> None:
    """Bring up `lo` of the socket's network namespace."""
    fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", _IFF_UP))


def hide_command_line(name: str) -> None:
    """Overwrite the command line that `/proc` shows: it names folders of the host."""
    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    first, end = int(fields[45]), int(fields[46])
    ctypes.memset(first, 0, end - first)
    text = name.encode()[: end - first - 1]
    ctypes.memmove(first, text, len(text))

"""Pid 1 of one sandbox: it takes in orphans, and is what the kernel ends everything else with. It decides nothing.

How a command ended the server hears, whose child it is. So an init may be as small as can be: where the machine's
instructions are known a program of 250 bytes, started without a copy of anything; elsewhere a fork of the server.
"""

from __future__ import annotations

import os
import signal
import struct
from typing import NoReturn

from . import kernel

_NAME = "assay-init"
_READY_FD = 3
_ADDRESS = 0x40_0000

_X86_64 = (
    ("b8 9d 00 00 00", "mov eax, 157       ; prctl(PR_SET_DUMPABLE, 0): nobody looks into it by /proc"),
    ("bf 04 00 00 00", "mov edi, 4"),
    ("31 f6", "xor esi, esi"),
    ("0f 05", "syscall"),
    ("b8 9d 00 00 00", "mov eax, 157       ; prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0): all registers are 0 at first"),
    ("bf 26 00 00 00", "mov edi, 38"),
    ("be 01 00 00 00", "mov esi, 1"),
    ("0f 05", "syscall"),
    ("6a 00 6a 00 6a 00", "push 0, three times: no capability, in three sets"),
    ("48 89 e6", "mov rsi, rsp"),
    ("68 22 05 08 20", "push 0x20080522    ; version 3, of this process"),
    ("48 89 e7", "mov rdi, rsp"),
    ("b8 7e 00 00 00", "mov eax, 126       ; capset(header, sets)"),
    ("0f 05", "syscall"),
    ("b8 b4 01 00 00", "mov eax, 436       ; close_range(0, all, 0), which says that all that is done"),
    ("31 ff", "xor edi, edi"),
    ("be ff ff ff ff", "mov esi, -1"),
    ("31 d2", "xor edx, edx"),
    ("0f 05", "syscall"),
    ("68 00 00 01 00", "push 0x10000       ; the set of SIGCHLD, which is blocked"),
    ("b8 80 00 00 00", "mov eax, 128       ; rt_sigtimedwait(set, null, null, 8)"),
    ("48 89 e7", "mov rdi, rsp"),
    ("31 f6", "xor esi, esi"),
    ("31 d2", "xor edx, edx"),
    ("41 ba 08 00 00 00", "mov r10d, 8"),
    ("0f 05", "syscall"),
    ("b8 3d 00 00 00", "mov eax, 61        ; wait4(-1, null, WNOHANG, null) …"),
    ("48 83 cf ff", "or rdi, -1"),
    ("31 f6", "xor esi, esi"),
    ("ba 01 00 00 00", "mov edx, 1"),
    ("45 31 d2", "xor r10d, r10d"),
    ("0f 05", "syscall"),
    ("85 c0", "test eax, eax"),
    ("7f e7", "jg -25             ; … while there is one"),
    ("eb d1", "jmp -47            ; and from the waiting for the signal on"),
)
"""Its instructions on this machine, and what they say."""


def lay(folder: str, machine: str) -> str | None:
    """Put the program for this machine (`os.uname`) into a folder; its path, None where there is none."""
    if machine != "x86_64":
        return None
    place = os.path.join(folder, _NAME)
    with open(os.open(place, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o500), "wb") as file:
        file.write(_elf(bytes.fromhex("".join(code for code, _ in _X86_64))))
    return place


def _elf(code: bytes) -> bytes:
    """An executable of nothing but this code, by the ELF-64 format: its header, one segment's, the segment."""
    header, segment, x86_64 = 64, 56, 62
    start = header + segment
    size = start + len(code)
    readable_and_executable = 5
    return (
        struct.pack("<4s5B7x", b"\x7fELF", 2, 1, 1, 0, 0)
        + struct.pack("<HHIQQQIHHHHHH", 2, x86_64, 1, _ADDRESS + start, header, 0, 0, header, segment, 1, 0, 0, 0)
        + struct.pack("<IIQQQQQQ", 1, readable_and_executable, 0, _ADDRESS, _ADDRESS, size, size, 0x1000)
        + code
    )


def start(program: str | None, ready: int) -> int:
    """Start it, by what `lay` returned; its pid. It has `ready` until it is out of reach, then no descriptor at all.

    Raises `OSError`.
    """
    if program is not None:
        places = [(os.POSIX_SPAWN_DUP2, ready, _READY_FD)]
        return os.posix_spawn(program, [_NAME], {}, file_actions=places, setsigmask=[signal.SIGCHLD])
    pid = os.fork()
    if pid == 0:
        _serve()
    return pid


def _serve() -> NoReturn:
    """What the program does, in Python."""
    try:
        kernel.set_name(_NAME)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
        kernel.be_undumpable()
        kernel.forbid_new_privileges()
        kernel.drop_capabilities()
        kernel.close_from(0)
        while True:
            signal.sigwait([signal.SIGCHLD])
            _reap()
    finally:
        os._exit(1)


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            continue
    except ChildProcessError:
        return

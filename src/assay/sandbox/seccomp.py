"""The system calls a sandbox is refused, as a BPF program.

What honest programs do keeps working (compilers, pytest, multiprocessing, node, java, git); what they do not need and
what kernel holes have come through is refused with an error that lets them fall back. The list follows
"new-kernel surface" in the sandbox facts. Nothing here is a boundary by itself: the namespaces and the uid are.
"""

from __future__ import annotations

import errno
import functools
import tempfile
from typing import Any

from assay.failures import FailureEvent

_LOW_32_BITS = 0xFFFF_FFFF

_F_SETLEASE = 1024
_FAMILIES = (1, 2, 10, 16)
"""unix, inet, inet6, netlink (`getifaddrs`): the others reach the hypervisor (vsock) or rarely used kernel code."""
_FIRST_FAMILY_ABOVE = 17

_NAMESPACE_FLAGS = (
    0x0002_0000,  # CLONE_NEWNS
    0x0200_0000,  # CLONE_NEWCGROUP
    0x0400_0000,  # CLONE_NEWUTS
    0x0800_0000,  # CLONE_NEWIPC
    0x1000_0000,  # CLONE_NEWUSER
    0x2000_0000,  # CLONE_NEWPID
    0x4000_0000,  # CLONE_NEWNET
)
_TERMINAL_IOCTLS = (0x5412, 0x541C)
"""TIOCSTI types into a terminal, TIOCLINUX pastes into a console."""

_ODD_PERSONALITIES = (0x010_0000, 0x020_0000, 0x040_0000)
"""MMAP_PAGE_ZERO, ADDR_COMPAT_LAYOUT, READ_IMPLIES_EXEC: weaken the process. `personality(0xffffffff)` only asks."""
_ONLY_ASKS = 0x8000_0000

_REFUSED = (
    # Other processes' memory and descriptors.
    *("ptrace", "process_vm_readv", "process_vm_writev", "process_madvise", "kcmp"),
    # Kernel keyrings are not namespaced.
    *("add_key", "request_key", "keyctl"),
    # Large, young or privileged kernel interfaces.
    *("bpf", "userfaultfd", "perf_event_open", "fanotify_init", "lookup_dcookie"),
    # Mounts and namespaces.
    *("mount", "umount", "umount2", "pivot_root", "chroot", "setns", "unshare"),
    # Standing aside for every other process: a submission that starves itself of processors looks like a starved machine.
    *("sched_setscheduler", "sched_setattr", "sched_setparam", "setpriority"),
    # The machine itself.
    *("kexec_load", "kexec_file_load", "init_module", "finit_module", "delete_module", "create_module", "reboot"),
    *("swapon", "swapoff", "quotactl", "acct", "syslog", "settimeofday", "clock_settime", "adjtimex", "clock_adjtime"),
    *(
        "iopl",
        "ioperm",
        "modify_ldt",
        "vm86",
        "vm86old",
        "vhangup",
        "uselib",
        "nfsservctl",
        "_sysctl",
        "sysfs",
        "ustat",
    ),
    # Handles reach files past the mounts.
    *("name_to_handle_at", "open_by_handle_at"),
)

_REFUSED_BY_NUMBER = (
    428,  # open_tree
    429,  # move_mount
    430,  # fsopen
    431,  # fsconfig
    432,  # fsmount
    433,  # fspick
    438,  # pidfd_getfd
    442,  # mount_setattr
    443,  # quotactl_fd
    467,  # open_tree_attr
)
"""The same number on every architecture, and younger than many a libseccomp: named by number."""

_ABSENT_BY_NUMBER = (
    425,  # io_uring_setup
    426,  # io_uring_enter
    427,  # io_uring_register
    435,  # clone3: its flags lie in memory, where no filter sees them; glibc falls back to clone
)


@functools.cache
def filter_program() -> bytes | None:
    """The filter for this machine as BPF, or None when libseccomp is missing. Made once per process.

    Raises `FailureEvent` of kind `provider_unavailable` when libseccomp is there but refuses a rule.
    """
    try:
        import pyseccomp as seccomp
    except (ImportError, RuntimeError, OSError):
        return None
    try:
        return _build(seccomp)
    except OSError as error:
        raise FailureEvent(
            "provider_unavailable", f"libseccomp could not build the system call filter: {error}"
        ) from error


def _build(seccomp: Any) -> bytes:
    refuse = seccomp.ERRNO(errno.EPERM)
    absent = seccomp.ERRNO(errno.ENOSYS)
    no_family = seccomp.ERRNO(errno.EAFNOSUPPORT)
    rules = seccomp.SyscallFilter(seccomp.ALLOW)
    # Another architecture's calls, and x32's, would pass the list above under other numbers.
    rules.set_attr(seccomp.Attr.ACT_BADARCH, absent)

    def low(argument: int, value: int, mask: int = _LOW_32_BITS) -> object:
        return seccomp.Arg(argument, seccomp.MASKED_EQ, mask, value)

    for name in _REFUSED:
        number = seccomp.resolve_syscall(seccomp.Arch.NATIVE, name)
        if number != -1:
            rules.add_rule(refuse, number)
    for number in _REFUSED_BY_NUMBER:
        rules.add_rule(refuse, number)
    for number in _ABSENT_BY_NUMBER:
        rules.add_rule(absent, number)
    for flag in _NAMESPACE_FLAGS:
        rules.add_rule(refuse, "clone", low(0, flag, flag))
    for request in _TERMINAL_IOCTLS:
        rules.add_rule(refuse, "ioctl", low(1, request))
    # A lease makes whoever opens the file wait: it may be one that others see, too.
    rules.add_rule(refuse, "fcntl", low(1, _F_SETLEASE))
    for bit in _ODD_PERSONALITIES:
        rules.add_rule(refuse, "personality", low(0, bit, bit | _ONLY_ASKS))
    # On another process: the sandbox's pid 1 has the same uid, and a limit could end it. On oneself as ever, and to look.
    rules.add_rule(refuse, "prlimit64", seccomp.Arg(0, seccomp.NE, 0), seccomp.Arg(2, seccomp.NE, 0))
    for family in range(_FIRST_FAMILY_ABOVE):
        if family not in _FAMILIES:
            for name in ("socket", "socketpair"):
                rules.add_rule(no_family, name, low(0, family))
    for name in ("socket", "socketpair"):
        rules.add_rule(no_family, name, seccomp.Arg(0, seccomp.GE, _FIRST_FAMILY_ABOVE))
    with tempfile.TemporaryFile() as exported:
        rules.export_bpf(exported)
        exported.seek(0)
        return exported.read()

"""What a sandbox's process gives up, in the order in which it must."""

from __future__ import annotations

import os
import resource
from collections.abc import Mapping

from . import kernel

_LIMITS = {
    "core": resource.RLIMIT_CORE,
    "nofile": resource.RLIMIT_NOFILE,
    "fsize": resource.RLIMIT_FSIZE,
    "nproc": resource.RLIMIT_NPROC,
}


def limit(pid: int, limits: Mapping[str, int]) -> None:
    """Set the resource limits of a process, by our names, as far as it has none that is lower."""
    for name, value in limits.items():
        hard = resource.prlimit(pid, _LIMITS[name])[1]
        most = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.prlimit(pid, _LIMITS[name], (most, most))


def drop(uid: int | None, program: bytes | None) -> None:
    """Become the sandbox's user without any right, for good. `uid` None: this process has that uid already.

    Everything started from here on inherits all of it. Groups were dropped by the slot server, before it forked.
    """
    if uid is not None:
        # The group first: after the uid is gone it could not be changed. All three of each: a saved one can be taken back.
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    # A change from root clears the effective and permitted sets by itself; an ordinary user's server never was root.
    kernel.drop_capabilities()
    # After the uid, whose change clears it. If the slot server dies unseen, this dies too.
    kernel.die_with_parent()
    # What has the same uid, a sandbox of the same ordinary user's perhaps, does not look into it while it waits.
    kernel.be_undumpable()
    # Before the filter: a process without rights may install one only if it can never gain rights again.
    kernel.forbid_new_privileges()
    if program is not None:
        # Checks the architecture and x32's numbers first: by those the same call has other numbers.
        kernel.filter_calls(program)

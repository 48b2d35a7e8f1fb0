"""The seam between grading and whatever runs a verifier.

A provider makes sandboxes; a sandbox runs commands. The contract every provider keeps, and `assay.sandbox.testing`
checks:

- Every command starts from the same state: the spec's base and mounts. What it writes to a `Writable` mount stays for the
  next command and for `get`, what it writes to a `BaseUse.WRITTEN` base stays there; what it writes anywhere else it may
  write (an `Overlay`, a `BaseUse.OVERLAID` base, `/tmp`, `/dev/shm`) is gone when it ends.
- When `exec` returns, every process that the command started is dead, and proven so.
- The host's files are out of reach except through the mounts; a `ReadOnly` source and an `Overlay` lower never change.
- Nothing that a sandboxed program does makes `exec` hang, raise or lie about how the command ended, save one thing that
  cannot be hidden from a hostile program: an exit code may be forged. So an exit code never decides a reward.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Protocol

MIB = 1024 * 1024
GIB = 1024 * MIB


class Capability(StrEnum):
    """A guarantee that a provider can give on this machine; also the names that `[assay].require` takes."""

    NETWORK_OFF = "network_off"
    """No network device but a loopback of the sandbox's own, no abstract socket of the host."""
    READ_ONLY_BASE = "read_only_base"
    """The root filesystem cannot be written, by anything inside."""
    HOST_HIDDEN = "host_hidden"
    """No file or process of the host is visible beyond the base and the mounts."""
    OVERLAY = "overlay"
    """A mount may be written to while its source never changes."""
    PROOF_OF_DEATH = "proof_of_death"
    """`exec` returns only when the kernel has said that every process of the command is gone."""
    UID_SEPARATION = "uid_separation"
    """The sandbox runs under a kernel uid that is neither root, nor the caller's, nor another sandbox's."""
    MEMORY_LIMIT = "memory_limit"
    """Memory of all processes together is capped, files in tmpfs included."""
    PROCESS_LIMIT = "process_limit"
    """The number of processes and threads is capped for this sandbox alone."""
    CPU_LIMIT = "cpu_limit"
    """The share of processors is capped."""
    SYSCALL_FILTER = "syscall_filter"
    """Seccomp refuses the calls that honest programs do not need (`bpf`, `ptrace`, `io_uring`, `vsock`, …)."""
    USER_MAPPING = "user_mapping"
    """A command sees itself under the uid that the spec names, without any privilege that comes with it."""


@dataclass(frozen=True, slots=True)
class ReadOnly:
    """A host file or folder that is seen, read-only, at `at`."""

    source: Path
    at: str
    open: bool = False
    """All of it can be read by everybody, and nobody changes that meanwhile: it need not be looked through."""


@dataclass(frozen=True, slots=True)
class Overlay:
    """A host folder that is seen at `at` and may be written there; `lower` itself never changes."""

    lower: Path
    at: str
    disposable: bool = False
    """`lower` is the caller's own throw-away copy: the owner of its files may be changed (never contents, never modes)
    instead of copying it once more. Without it a provider that runs under another uid works on a private copy."""
    own: bool = False
    """All of it belongs to the caller's user, and nobody changes that meanwhile: it need not be looked through."""


@dataclass(frozen=True, slots=True)
class Writable:
    """An empty folder at `at` that keeps what is written to it until the sandbox is closed (`put`, `get`)."""

    at: str
    on_disk: bool = False
    """On the host's disk rather than in memory: for a whole workspace, not for logs. In memory it holds `Limits.tmp_bytes`
    where the provider may mount (started by root); elsewhere the memory limit bounds it, or else only the disk."""


@dataclass(frozen=True, slots=True)
class Socket:
    """A listening path socket of the caller's that programs in this sandbox, and in no other, may connect to at `at`.

    The provider makes the sandbox's uid its owner, so whoever accepts can hold a peer's uid (`SO_PEERCRED`) against it.
    """

    source: Path
    """The socket's own place on the host, mode 0600."""
    at: str


Mount = ReadOnly | Overlay | Writable | Socket


class BaseUse(StrEnum):
    """What a command may do to the root filesystem outside the mounts."""

    READ_ONLY = "read_only"
    OVERLAID = "overlaid"
    """Write anywhere; what it wrote is gone when it ends. `base` is then the caller's own throw-away copy, as with a
    disposable `Overlay`: its owners may change, its contents and modes never do."""
    WRITTEN = "written"
    """Write anywhere, and what it wrote is in `base` afterwards: the caller's own throw-away copy, in use by this one
    sandbox. Folders for mount points may be left in it."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a sandbox may use. None: no limit asked for."""

    memory_bytes: int | None = None
    processes: int | None = 1024
    """Processes and threads at once."""
    cpus: float | None = None
    """Share of processors, 1.0 = one whole."""
    cpu_s: float | None = None
    """Processor seconds of all processes of one command together."""
    tmp_bytes: int = GIB
    """Size of `/tmp`, of `/dev/shm`, and of each `Writable` in memory."""
    file_bytes: int | None = 16 * GIB
    """Largest single file (RLIMIT_FSIZE)."""
    output_keep_bytes: int = 16 * MIB
    """How much of each output stream is kept; the rest is drained and counted."""
    output_max_bytes: int = 4 * GIB
    """Past this much of one stream the command is ended."""


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """One sandbox: what it sees and what it may use."""

    base: Path | None = None
    """The root filesystem folder; None is the host's own `/usr` with a generated `/etc`, which is always read-only."""
    mounts: tuple[Mount, ...] = ()
    network: bool = False
    limits: Limits = field(default_factory=Limits)
    base_use: BaseUse = BaseUse.READ_ONLY
    user: int | None = None
    """The uid, and gid of the same number, that a command sees itself under where `USER_MAPPING` holds; 0 is a root without
    privileges. None: the provider's own choice. On the host it is the sandbox's own uid all the same."""
    interpreter: str | None = None
    """A Python in the base, by its absolute path, that commands are to be: `[interpreter, "-I", "-c", program, …]`. A provider
    may keep one ready and fork it in place of starting it anew; what a command can see of that is the provider's to say."""
    scripts: bool = False
    """Whether they are to be `[interpreter, file, …]` and `[interpreter, "-c", text, …]` instead, by its path or its name."""
    again: bool = False
    """Whether a command is to follow another soon: a provider may get ready for the next one as soon as one has ended."""


class Ended(StrEnum):
    """How a command ended."""

    EXITED = "exited"
    SIGNALED = "signaled"
    WALL_LIMIT = "wall_limit"
    CPU_LIMIT = "cpu_limit"
    MEMORY_LIMIT = "memory_limit"
    """The kernel killed the command itself for memory (by the cgroup's counter, never guessed from 137)."""
    OUTPUT_LIMIT = "output_limit"
    FAULT = "fault"
    """The sandbox was lost, by evidence from outside it; `ExecResult.fault` says what was seen."""


@dataclass(frozen=True, slots=True)
class ExecResult:
    """What one command did. Nothing in it is believed about a reward."""

    how: Ended
    code: int | None = None
    """The exit code when `how` is EXITED. A provider that cannot tell a signal n from `exit 128+n` reports the latter."""
    signal: int | None = None
    stdout: bytes = b""
    stderr: bytes = b""
    """Empty when the command was run with `merge_stderr`."""
    stdout_bytes: int = 0
    """How much was written in all, kept or not."""
    stderr_bytes: int = 0
    limits_hit: tuple[str, ...] = ()
    """`memory_limit`, `process_limit`, `storage_limit` (a `Writable` is full): limits that were hit, whether or not that ended
    the command."""
    fault: str | None = None
    wall_s: float = 0.0
    cpu_s: float | None = None
    """Processor seconds of all its processes; None where the machine cannot say."""
    run_delay_s: float | None = None
    """After a wall limit: the longest that one of its living threads had waited for a processor."""

    @property
    def truncated(self) -> bool:
        """Whether a stream was longer than what was kept."""
        return self.stdout_bytes > len(self.stdout) or self.stderr_bytes > len(self.stderr)


class Sandbox(Protocol):
    """One sandbox. Not for two commands at once. Always `close` it: that frees its uid, cgroup and folders."""

    @property
    def for_one(self) -> bool:
        """Whether another like it is had sooner than this one is ready for a second command: it was made ready for one."""
        ...

    async def exec(
        self,
        argv: Sequence[str],
        *,
        cwd: str = "/",
        env: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
        stdin: bytes = b"",
        merge_stderr: bool = False,
        pass_fds: Sequence[int] = (),
    ) -> ExecResult:
        """Run a command to its end and prove all its processes dead.

        `env` is the whole environment (a minimal PATH, HOME and LANG are added where it has none). `pass_fds` are open
        in the command under the same numbers. `timeout_s` is wall-clock seconds from the start of the command.
        A command that cannot be started at all (no such program in the base) ends with `EXITED`, code 127, and says so on
        stderr (stdout with `merge_stderr`). Cancelling the call kills the command and proves it dead before the cancellation
        goes on.
        """
        ...

    async def put(self, source: Path, at: str) -> None:
        """Copy the contents of a trusted host folder into the `Writable` mounted at `at`.

        Folders are merged; anything else that is in the way is replaced, a link too: it is never followed.
        """
        ...

    async def get(self, at: str) -> Path:
        """The host folder that holds what the `Writable` at `at` holds: untrusted, opened by the safe opener alone.

        Valid until `close`, and only while no command runs.
        """
        ...

    async def kill(self) -> None:
        """End the running command now; its `exec` then returns as usual, with `SIGNALED` and signal 9."""
        ...

    async def close(self) -> None:
        """Kill what runs, prove it dead, remove what the sandbox had. Harmless when repeated.

        A provider may remove it beside what comes next, as long as that needs nobody's doing: no process of it lives then.
        """
        ...


class Provider(Protocol):
    """Makes sandboxes. Safe for many at once, from one event loop."""

    name: str
    isolated: bool
    """False only for `process`: a verdict from it has `"trust": "none"`."""

    def capabilities(self) -> frozenset[Capability]:
        """What this provider guarantees on this machine, found by looking, not by hoping. Cached after the first call."""
        ...

    async def create(self, spec: SandboxSpec) -> Sandbox:
        """Make a sandbox.

        Raises `FailureEvent` of kind `provider_unavailable` (or another infrastructure kind) when it cannot be made for a
        reason outside the spec, and `ValueError` for a spec that no machine could satisfy (two mounts at one place, a relative
        `at`, the host's own base to be written).
        """
        ...

"""Commands with no isolation: the host's files, network and devices are all there.

For a machine where nothing better runs, or a verifier that needs what no sandbox gives. It must be asked for by name, and
every verdict says so. A mount namespace makes the task's paths (`/tests`, `/app`, `/logs`) exist without touching the
host's, and a pid namespace makes death provable; neither keeps a hostile program from anything. Started by root, the
command still never runs as root.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import stat
from dataclasses import dataclass, replace
from pathlib import Path

from assay.sandbox.base import Capability, ReadOnly, SandboxSpec
from assay.sandbox.hosted import Command, HostedSandbox, in_memory
from assay.sandbox.launch import End, Seen, Starter, Stdio, Wires, local_failure
from assay.sandbox.layout import Step, make_skeletons, plan_sandbox
from assay.sandbox.machine import limits_that_hold, usable_hierarchy
from assay.sandbox.parts import fresh_tenant, make_parts, own_process_limit
from assay.sandbox.runtime import STARTERS, Tools, find_tools, limited
from assay.sandbox.trial import TriedProvider

_STARTED = b"started"
_IN_FOLDER = 'cd -- "$1" || exit 127; shift; exec "$@"'


class ProcessProvider(TriedProvider):
    """Runs commands on the host as they are. Not a sandbox: a verdict from it has `"trust": "none"`."""

    name = "process"
    isolated = False

    def make(self, spec: SandboxSpec) -> HostedSandbox:
        """See `TriedProvider.make`. A spec without network gets the network all the same."""
        return _make(spec)

    def claims(self) -> frozenset[Capability]:
        """See `TriedProvider.claims`."""
        return _claims()


def _claims() -> frozenset[Capability]:
    uid = {Capability.UID_SEPARATION} if os.geteuid() == 0 else set()
    return frozenset({Capability.OVERLAY, Capability.PROOF_OF_DEATH} | uid | limits_that_hold())


def _make(spec: SandboxSpec) -> HostedSandbox:
    tools = find_tools()
    parts = make_parts(spec, lambda stack: fresh_tenant(spec, usable_hierarchy(), stack))
    try:
        # The host's own name servers are in its own `/etc`: nothing is added for the network.
        on_base = replace(spec, base=parts.base or Path("/"), network=False)
        plan = plan_sandbox(on_base, parts.sources, Path("/etc"), parts.folder / "skeletons")
        make_skeletons(plan)
        root = parts.folder / "root"
        layers = parts.folder / "layers"
        root.mkdir()
        layers.mkdir()
    except OSError as error:
        parts.free()
        raise local_failure(error, "make a sandbox") from error
    except BaseException:
        parts.free()
        raise
    read_only = {mount.at for mount in spec.mounts if isinstance(mount, ReadOnly)}
    steps = _with_devices(plan.steps, spec, separate=parts.uid is not None)
    script = _mount_script(steps, read_only, root, layers, as_root=parts.uid is not None)
    return HostedSandbox(
        spec, parts, _Maker(tools, spec, parts.uid, root, script, own_process_limit(spec.limits, parts))
    )


def _with_devices(steps: tuple[Step, ...], spec: SandboxSpec, *, separate: bool) -> list[Step]:
    """The steps with the host's own devices and `/sys` in place of the few devices of a sandbox."""
    kept = [step for step in steps if step.what != "remount-ro" and not f"{step.at}/".startswith("/dev/")]
    shared = [Step("bind", at, (Path(at),)) for at in ("/dev", "/sys")]
    memory = Step("tmpfs", "/dev/shm", size=spec.limits.tmp_bytes, perms=0o1777)  # noqa: S108 - a fresh one
    first_mount = next(index for index, step in enumerate(kept) if step.what == "proc")
    base = [_without_closed(step, separate=separate) for step in kept[:first_mount]]
    return [*base, *shared, memory, *kept[first_mount:]]


def _without_closed(step: Step, *, separate: bool) -> Step:
    """The step, or an empty folder with its mount points where the host's own shows the command nothing anyway."""
    if not step.sources or not step.sources[-1].is_dir():
        return step
    if separate:
        seen = bool(step.sources[-1].stat().st_mode & stat.S_IXOTH)
    else:
        seen = step.what != "ro-overlay" or os.access(step.sources[-1], os.R_OK)
    if seen:
        return step
    return Step("dir", step.at) if len(step.sources) == 1 else Step("ro-bind", step.at, step.sources[:1])


def _mount_script(steps: list[Step], read_only: set[str], root: Path, layers: Path, *, as_root: bool) -> str:
    """Shell lines that make the steps beneath `root`, each command fatal when it fails."""
    lines = [
        "set -e",
        f"mount -t tmpfs -o mode=755 tmpfs {_quoted(root)}",
        f"mount -t tmpfs -o mode=755 tmpfs {_quoted(layers)}",
    ]
    for number, step in enumerate(steps):
        at = _quoted(f"{root}{step.at}")
        layer = f"{layers}/{number}"
        match step.what:
            case "symlink":
                lines.append(f"ln -s -- {_quoted(step.text)} {at}")
            case "dir":
                lines.append(f"mkdir -p -- {at}")
            case "proc":
                lines.append(f"mkdir -p -- {at}; mount -t proc proc {at}")
            case "tmpfs":
                lines.append(
                    f"mkdir -p -- {at}; mount -t tmpfs -o mode={step.perms or 0o755:o},size={step.size} tmpfs {at}"
                )
            case "tmp-overlay" | "ro-overlay":
                lines += _overlay(step, at, layer, as_root=as_root)
            case _:
                source = _quoted(step.sources[0])
                lines.append(_place(step.sources[0], at))
                lines.append(f"mount --rbind -- {source} {at}")
                if step.at in read_only:
                    lines.append(f"mount -o remount,bind,ro {at}")
    return "\n".join(lines)


def _place(source: Path, at: str) -> str:
    if source.is_dir():
        return f"mkdir -p -- {at}"
    return f'mkdir -p -- "$(dirname -- {at})"; [ -e {at} ] || : > {at}'


def _overlay(step: Step, at: str, layer: str, *, as_root: bool) -> list[str]:
    # Bound at short names first: in a path of its own a colon or a comma would be read as an option.
    lines = [f"mkdir -p -- {at} {layer}/u {layer}/w"]
    lowers: list[str] = []
    for number, source in enumerate(step.sources):
        lines.append(f"mkdir {layer}/{number}; mount --rbind -- {_quoted(source)} {layer}/{number}")
        lowers.insert(0, f"{layer}/{number}")
    options = f"lowerdir={':'.join(lowers)}"
    if step.what == "tmp-overlay":
        lines.append(f"chmod --reference={lowers[0]} {layer}/u")
        lines.append(f"chown --reference={lowers[0]} {layer}/u")
        options += f",upperdir={layer}/u,workdir={layer}/w"
    if not as_root:
        options += ",userxattr"
    return [*lines, f"mount -t overlay -o {options} overlay {at}"]


def _quoted(path: Path | str) -> str:
    return shlex.quote(str(path))


@dataclass(frozen=True, slots=True)
class _Maker:
    """Starts a command of one sandbox."""

    tools: Tools
    spec: SandboxSpec
    uid: int | None
    root: Path
    mounts: str
    processes: int | None

    def refusal(self, command: Command) -> str | None:
        """See `Maker.refusal`: there is nothing it could not try."""
        return None

    def start(self, command: Command, stdio: Stdio) -> Starter:
        """See `Maker.start`."""

        def build(wires: Wires, given: contextlib.ExitStack) -> tuple[list[str], list[int]]:
            lines = [
                self.mounts,
                "read -r pid rest < /proc/self/stat",
                f'printf \'{{"child-pid": %s}}\' "$pid" >&{wires.info}',
                f"read -r go <&{wires.go}",
                f"printf {_STARTED.decode()} >&{wires.status}",
                *(f"exec {fd}>&-" for fd in (wires.info, wires.go, wires.hold_go, wires.status)),
                # What this shell itself says of a killed command is not the command's.
                "exec {said}>&2 2>/dev/null",
                f"set +e; {self._dropped(command)} 2>&$said {{said}}>&-; exit $?",
            ]
            # A script in memory: the environment and the mounts stay out of /proc/PID/cmdline.
            script = in_memory(os.fsencode("\n".join(lines)), given)
            user = [] if self.uid is not None else ["--user", "--map-current-user", "--keep-caps"]
            argv = [
                *(*limited(self.tools, self.spec.limits), "--", str(self.tools.unshare), *user),
                *("--mount", "--propagation", "private", "--pid", "--fork", "--kill-child", "--"),
                *("/bin/bash", "-c", f'script="$(cat <&{script})"; exec {script}<&-; eval "$script"'),
            ]
            return argv, [script, *command.pass_fds]

        def read_end(starter_code: int | None, seen: Seen, status: bytes) -> End:
            return _read_end(seen.stdout if command.merge_stderr else seen.stderr, starter_code, status)

        return Starter(build, stdio, read_end, self.processes)

    def _dropped(self, command: Command) -> str:
        """The command as a shell line: in the new root, under its uid, with its environment."""
        env = ["env", "-i", "--", *(f"{name}={value}" for name, value in command.env.items())]
        enter = [str(self.tools.chroot), str(self.root)]
        if self.uid is not None:
            enter = [str(self.tools.chroot), f"--userspec={self.uid}:{self.uid}", "--groups=", str(self.root)]
            if self.spec.limits.processes is not None:
                env = [str(self.tools.prlimit), f"--nproc={self.spec.limits.processes + STARTERS}", *env]
        return shlex.join([*env, *enter, "/bin/sh", "-c", _IN_FOLDER, "sh", command.cwd, *command.argv])


def _read_end(said: bytes, starter_code: int | None, status: bytes) -> End:
    if status != _STARTED:
        return End(fault=said.decode("utf-8", "replace").strip()[-2000:] or "the mounts could not be made")
    if starter_code is None or starter_code < 0:
        return End(fault=f"the command's starter was killed by signal {-(starter_code or 0)} from outside")
    return End(code=starter_code)

"""Sandboxes made by bubblewrap.

Six facts about it shape what is here, each of them measured: it is never started as uid 0; its pid namespace and its
parent-death signal are always used together; its return proves nothing, the pidfd of the sandbox's pid 1 and the empty
control group do; the thread that starts it stays until the end; an exit code it reports may be forged from inside; and
everything in one sandbox shares one uid, so what must not be reached is not in it.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, replace

from assay.sandbox.base import Capability, SandboxSpec
from assay.sandbox.hosted import COMMAND_NOT_FOUND, Command, HostedSandbox, in_memory
from assay.sandbox.hostetc import HOSTNAME, SANDBOX_UID, shared_etc
from assay.sandbox.launch import End, Seen, Starter, Stdio, Wires, documents, local_failure
from assay.sandbox.layout import bubblewrap_options, make_skeletons, plan_sandbox
from assay.sandbox.machine import isolating_claims, usable_hierarchy
from assay.sandbox.parts import fresh_tenant, make_parts, own_process_limit
from assay.sandbox.reach import Reach, make_reach
from assay.sandbox.runtime import Bubblewrap, Tools, confined, find_bubblewrap, find_tools
from assay.sandbox.seccomp import filter_program
from assay.sandbox.trial import TriedProvider

_NAMESPACES = (
    *("--unshare-all", "--unshare-user", "--disable-userns"),
    *("--die-with-parent", "--new-session", "--cap-drop", "ALL"),
)
_NOT_STARTED = (b"bwrap: execvp ", b"bwrap: Can't chdir to ")
_ARGUMENTS_MAX = 8_900
"""bubblewrap takes 9,000 arguments, its own options included."""


class BubblewrapProvider(TriedProvider):
    """Makes sandboxes with bubblewrap, on the host's own `/usr` or on a root folder."""

    name = "bubblewrap"
    isolated = True

    def make(self, spec: SandboxSpec) -> HostedSandbox:
        """See `TriedProvider.make`."""
        return _make(spec)

    def claims(self) -> frozenset[Capability]:
        """See `TriedProvider.claims`."""
        return isolating_claims()


def _make(spec: SandboxSpec) -> HostedSandbox:
    tools, bubblewrap = find_tools(), find_bubblewrap()
    parts = make_parts(spec, lambda stack: fresh_tenant(spec, usable_hierarchy(), stack))
    try:
        on_base = replace(spec, base=parts.base)
        plan = plan_sandbox(on_base, parts.sources, shared_etc(spec.network), parts.folder / "skeletons")
        make_skeletons(plan)
        sources = [source for step in plan.steps for source in step.sources]
        reach = make_reach(sources, parts.folder / "reach") if parts.uid is not None else Reach()
    except OSError as error:
        parts.free()
        raise local_failure(error, "make a sandbox") from error
    except BaseException:
        parts.free()
        raise
    user = str(SANDBOX_UID if spec.user is None else spec.user)
    options = [*_NAMESPACES, "--uid", user, "--gid", user, "--hostname", HOSTNAME, "--clearenv"]
    if spec.network:
        options.append("--share-net")
    options += bubblewrap_options(plan.steps, reach.seen_at)
    counted = parts.group is not None and parts.group.counts_processes
    start = confined(tools, parts.uid, spec.limits, counted=counted)
    processes = own_process_limit(spec.limits, parts)
    return HostedSandbox(spec, parts, _Maker(tools, bubblewrap, start, reach, tuple(options), processes))


@dataclass(frozen=True, slots=True)
class _Maker:
    """Starts bubblewrap for one sandbox."""

    tools: Tools
    bubblewrap: Bubblewrap
    confined: list[str]
    reach: Reach
    options: tuple[str, ...]
    processes: int | None

    def _whole(self, command: Command) -> list[str]:
        options = [*self.options, "--chdir", command.cwd]
        for name, value in command.env.items():
            options += ["--setenv", name, value]
        return options

    def refusal(self, command: Command) -> str | None:
        """See `Maker.refusal`."""
        if len(self._whole(command)) + len(command.argv) > _ARGUMENTS_MAX:
            return f"{command.argv[0]}: the command and its environment have too many parts"
        return None

    def start(self, command: Command, stdio: Stdio) -> Starter:
        """See `Maker.start`."""

        def build(wires: Wires, given: contextlib.ExitStack) -> tuple[list[str], list[int]]:
            options = self._whole(command)
            options += ["--info-fd", str(wires.info), "--json-status-fd", str(wires.status)]
            options += ["--block-fd", str(wires.go), "--sync-fd", str(wires.hold_go)]
            fds = [*command.pass_fds]
            program = filter_program()
            if program is not None:
                fds.append(in_memory(program, given))
                options += ["--seccomp", str(fds[-1])]
            # Out of /proc/PID/cmdline: what is mounted and the environment are nobody's business, in the sandbox or outside.
            fds.append(in_memory(b"".join(os.fsencode(option) + b"\0" for option in options), given))
            argv = [*self.confined, str(self.bubblewrap.path), "--args", str(fds[-1]), "--", *command.argv]
            return self.reach.wrap(self.tools, argv), fds

        def read_end(starter_code: int | None, seen: Seen, status: bytes) -> End:
            return _read_end(seen.stdout if command.merge_stderr else seen.stderr, starter_code, status)

        return Starter(build, stdio, read_end, self.processes)


def _read_end(said: bytes, starter_code: int | None, status: bytes) -> End:
    """bubblewrap reports an exit code only if the command was ever executed."""
    code = next((found["exit-code"] for found in documents(status) if "exit-code" in found), None)
    if code is not None:
        return End(code=int(code))
    if said.startswith(_NOT_STARTED):
        return End(code=COMMAND_NOT_FOUND)
    if starter_code is not None and starter_code < 0:
        return End(fault=f"bubblewrap was killed by signal {-starter_code} from outside the sandbox")
    return End(fault=said.decode("utf-8", "replace").strip()[-2000:] or "bubblewrap ended without saying why")

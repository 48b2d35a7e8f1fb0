"""One attack as data, and the runner that grades it: the honest submission first, then the hostile one.

An attack script prints `TRIED` once it has done what it is for, and `BREACH: <what>` for each forbidden act that worked; the
runner looks for both in the verifier's output, so that an attack that never ran cannot pass for one that was stopped.
"""

from __future__ import annotations

import asyncio
import faulthandler
import hashlib
import os
import shutil
import stat
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import pytest

from assay import Verdict, grade
from assay.sandbox.namespaces import close_idle
from assay.sandbox.procfs import descendants

MODES = ("separate", "shared")
"""In which modes every attack is graded."""
WORKDIR = "app"
"""Where the agent's own filesystem has the workspace in shared mode."""
SOAK = os.environ.get("ASSAY_SOAK") == "1"
SHORT_S = 4.0
"""The limit of a verifier that is made to wait to its end: long enough for an honest submission on a busy machine."""
TOML = 'schema_version = "1.4"\n[assay]\nreward_range = [0, 1]\n'
"""The floor is known, so what the honest submission proves settles what is ambiguous."""
WATCHDOG = 3
"""No verification may take longer than this many times its verifier's time limit."""
PREPARE_S = 10.0
"""Beside each of the runs that a starved machine may need: a sandbox to be made, files to be copied."""
BACKSTOP_S = 120.0
"""After the watchdog: a thread that hangs cannot be cancelled, so the whole session is ended with every traceback."""

Files = Mapping[str, str | bytes] | Callable[[Path], None]
"""What lies in a folder: contents by path, or what makes it there."""


class Expected(StrEnum):
    """What must come of the hostile submission."""

    HONEST = "honest"
    """Graded, with the honest reward."""
    FORGED = "cannot be stopped"
    """The submission gets the reward of the honest one: the case shows why, and the docs name the safe way."""


@dataclass(frozen=True)
class Attack:
    """One way to cheat."""

    number: int
    """In the list of attacks."""
    name: str
    tests: Mapping[str, str | bytes]
    """The files of `tests/`."""
    honest: Files
    """A workspace that the verifier must reward with 1."""
    hostile: Files
    """A workspace whose honest reward is `reward`."""
    root: Mapping[str, str | bytes | None] = field(default_factory=dict)
    """Shared mode: what the hostile agent put elsewhere in its filesystem, by path; None: it took that away."""
    reward: float = 0.0
    expected: Expected = Expected.HONEST
    why: str = ""
    """Of one that cannot be stopped: the reason."""
    tries: bool = False
    """Whether the hostile submission is run, and prints `TRIED`."""
    kinds: tuple[str, ...] = ()
    """Where given: the failure that must be recorded beside the reward is one of these."""
    timeout_s: float = 60.0
    """Generous, so that a busy machine does not fail the honest; short only where the attack makes the grader wait."""
    toml: str = ""
    base: str = "host"
    """`host`, or `pytest` for the root folder that has it."""
    program: str = ""
    """What the host must have for it; a root folder of the tests has none of these."""
    environ: Mapping[str, str] = field(default_factory=dict)
    """Set in the grader's own process meanwhile."""
    same: str = ""
    """Why its outcome cannot depend on the mode, for one that is graded in shared mode only with ASSAY_SOAK=1."""
    alike: str = ""
    """Why it cannot depend on the provider either, for one that is graded with another one than the first only with
    ASSAY_SOAK=1. Others of its kind are graded with every provider."""
    apart: bool = False
    """Whether the verifier has the submission run in a sandbox of its own. That needs a workspace beside the filesystem."""
    both: bool = False
    """Graded in separate mode with every provider, costly as it is: one of each number is."""
    everywhere: bool = False
    """Graded with every provider in every mode, costly as it is."""

    @property
    def costly(self) -> bool:
        """Whether it takes seconds and has little to do with where it is graded."""
        return not self.everywhere and (self.base == "pytest" or self.timeout_s < 10)

    @property
    def id(self) -> str:
        """For pytest."""
        return f"{self.number}-{self.name.replace(' ', '-')}"


@dataclass(frozen=True)
class Arena:
    """Where attacks are graded: a provider, a mode, a folder, the root folders by name."""

    provider: str
    mode: str
    folder: Path
    bases: Callable[[str], str]
    record: Callable[[Attack, str], None]
    controls: dict[tuple[object, ...], Path]
    """Of the session: what is known of each verifier since its honest submission was graded, a state folder each."""
    spare: bool = False
    """Whether costly attacks, in shared mode those that are the same there, and those that are alike, are left to another
    arena."""

    async def fight(self, attack: Attack, *, alone: bool = True) -> Verdict:
        """Grade the honest submission, then the hostile one, and check all that must hold.

        `alone`: nothing else is graded meanwhile, so whatever runs afterwards is left over.
        """
        self.skip_what_is_left_out(attack)
        self.needs(attack.program)
        task = self.task(attack)
        hostile = self.lay("hostile", attack.hostile, attack.base)
        if self.mode == "shared":
            lay_over(hostile.parent, attack.root)
        hidden = self.folder / "hidden.txt"
        hidden.write_text("only the host may see this\n")
        answer = hostile if self.mode == "separate" else hostile.parent
        before = (print_of(task), print_of(answer), hidden.read_text(), living())
        await self.control(attack, task)
        verdict = await self.graded(attack, task, hostile)
        self.record(attack, shown(attack, verdict))
        after = (print_of(task), print_of(answer), hidden.read_text())
        assert after == before[:3], "the task, the workspace or a hidden file was changed on the host"
        left = await still_living(before[3]) if alone else set()
        assert not left, f"left running: {left}"
        check(attack, verdict)
        return verdict

    async def control(self, attack: Attack, task: Path) -> None:
        """Grade the honest submission, and let what that proves of the verifier count for the hostile one.

        Once for all attacks that have the same verifier, limit and honest submission in the same arena; with ASSAY_SOAK=1
        before each of them.
        """
        honest = attack.honest if callable(attack.honest) else tuple(sorted(attack.honest.items()))
        given = (tuple(sorted(attack.tests.items())), honest, attack.toml, tuple(sorted(attack.environ.items())))
        key = (self.provider, self.mode, attack.base, attack.apart, attack.timeout_s, *given)
        state = self.folder / "state"
        if key in self.controls and not SOAK:
            shutil.copytree(self.controls[key], state)
            return
        control = await self.graded(attack, task, self.lay("honest", attack.honest, attack.base))
        assert (control.status, control.reward) == ("graded", 1.0), f"the positive control: {control}"
        self.controls[key] = shutil.copytree(state, self.folder / "proven")

    def leaves_out(self, attack: Attack) -> str:
        """Why an attack is left to another arena; empty for one that is fought here."""
        if not self.spare:
            return ""
        if attack.costly and not (attack.both and self.mode == "separate"):
            return "costly, and graded with another provider or mode"
        if self.mode == "shared" and attack.same:
            return f"as in separate mode: {attack.same}"
        return f"as with the first provider: {attack.alike}" if attack.alike else ""

    def skip_what_is_left_out(self, attack: Attack) -> None:
        """Skip, and note in the table, what another arena shows."""
        if why := self.leaves_out(attack):
            self.record(attack, f"left to ASSAY_SOAK=1 ({why})")
            pytest.skip(f"{why}; everywhere with ASSAY_SOAK=1")

    def lay(self, name: str, files: Files, base: str = "host") -> Path:
        """A workspace that holds these files; in shared mode the workdir of a root filesystem that was the agent's."""
        folder = self.folder / name
        if self.mode == "shared":
            link_tree(Path(self.bases("agent" if base == "host" else base)), folder)
            folder /= WORKDIR
        lay(folder, files)
        return folder

    def needs(self, program: str) -> None:
        """Skip what needs a program that is not there."""
        if program and self.mode == "shared":
            pytest.skip(f"the root folders of the tests have no {program}")
        if program and not Path("/usr/bin", program).exists():
            pytest.skip(f"this machine has no /usr/bin/{program}")

    def task(self, attack: Attack) -> Path:
        """The task folder of an attack."""
        task = self.folder / "task"
        lay(task / "tests", attack.tests)
        (task / "instruction.md").write_text("Do it.\n")
        (task / "task.toml").write_text(TOML + attack.toml)
        return task

    async def graded(
        self, attack: Attack, task: Path, workspace: Path, *, control: bool = False, logs: Path | None = None
    ) -> Verdict:
        """One verdict, under the watchdog. Without controls: what the honest submission proved counts."""
        limit = WATCHDOG * (attack.timeout_s + PREPARE_S)
        saved = {name: os.environ.get(name) for name in attack.environ}
        shared = self.mode == "shared"
        faulthandler.dump_traceback_later(limit + BACKSTOP_S, exit=True, file=sys.__stderr__)
        try:
            os.environ.update(attack.environ)
            verdict = await asyncio.wait_for(
                grade(
                    task,
                    workspace if not shared or attack.apart else None,
                    mode=self.mode,
                    sandbox=self.provider,
                    rootfs=str(workspace.parent) if shared else self.bases(attack.base),
                    timeout_s=attack.timeout_s,
                    control=control,
                    logs=logs,
                    state=self.folder / "state",
                ),
                limit,
            )
        except TimeoutError:
            raise AssertionError(f"{attack.id}: no verdict after {limit:g} s") from None
        finally:
            faulthandler.cancel_dump_traceback_later()
            for name, value in saved.items():
                os.environ.pop(name) if value is None else os.environ.__setitem__(name, value)
        assert (verdict.sandbox, verdict.trust) == (self.provider, self.mode)
        return verdict


def check(attack: Attack, verdict: Verdict) -> None:
    """What the verdict of a hostile submission must be."""
    if starved(verdict):
        assert (verdict.reward, verdict.caused_by) == (None, "infrastructure")
        pytest.skip(f"this machine is too busy to tell: {verdict.failure['reason'] if verdict.failure else ''}")
    said = verdict.log_tail
    if attack.tries:
        assert "TRIED" in said, f"the attack never ran: {verdict}"
    wanted = 1.0 if attack.expected is Expected.FORGED else attack.reward
    assert (verdict.status, verdict.reward) == ("graded", wanted), f"{attack.why or attack.name}: {verdict}"
    if attack.expected is Expected.HONEST:
        # In shared mode the base is the agent's own, and writable: what it writes there is gone with the sandbox.
        allowed = ("BREACH: base:",) if verdict.trust == "shared" else ()
        breaches = [line for line in said.splitlines() if "BREACH" in line and not line.startswith(allowed)]
        assert not breaches, said
    if attack.kinds:
        assert verdict.failure is not None, verdict
        assert verdict.failure["kind"] in attack.kinds, verdict
        assert verdict.caused_by == "submission"


def starved(verdict: Verdict) -> bool:
    """Whether the machine, not the submission, used the time up: tried three times, then the infrastructure's failure."""
    return verdict.failure is not None and "for a processor" in verdict.failure["reason"]


def shown(attack: Attack, verdict: Verdict) -> str:
    """One line of the table of outcomes."""
    failure = f", {verdict.failure['kind']}" if verdict.failure is not None else ""
    outcome = f"{verdict.reward:g}{failure}" if verdict.reward is not None else f"no verdict{failure}"
    if attack.expected is Expected.FORGED:
        return f"{outcome}: cannot be stopped, {attack.why}"
    return outcome


def lay(folder: Path, files: Files) -> None:
    """Make a folder that holds these files; programs (`#!`) are executable."""
    folder.mkdir(parents=True)
    if callable(files):
        files(folder)
        return
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        if path.read_bytes().startswith(b"#!"):
            path.chmod(0o755)


def link_tree(source: Path, into: Path) -> None:
    """A copy of a folder whose files are hard links, without the workdir: only for what nobody writes to."""
    shutil.copytree(source, into, symlinks=True, copy_function=link_or_copy, ignore=shutil.ignore_patterns(WORKDIR))


def link_or_copy(source: str, into: str) -> None:
    """A hard link; a copy where there can be none: of another's file, or on another filesystem."""
    try:
        os.link(source, into)
    except OSError:
        shutil.copy2(source, into)


def lay_over(root: Path, files: Mapping[str, str | bytes | None]) -> None:
    """Put files into a filesystem made by `link_tree`, or take them out."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        if content is not None:
            path.write_bytes(content.encode() if isinstance(content, str) else content)
            path.chmod(0o755)


def print_of(folder: Path) -> str:
    """A digest of all names, modes, links and contents below a folder; contents of large files by their size."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        digest.update(f"{os.fsencode(path)!r} {status.st_mode:o} {status.st_size}\n".encode())
        if stat.S_ISREG(status.st_mode) and status.st_size < 1 << 20:
            digest.update(path.read_bytes())
        elif stat.S_ISLNK(status.st_mode):
            digest.update(os.fsencode(os.readlink(path)))
    return digest.hexdigest()


def living() -> set[int]:
    """The processes below this one: its children, and orphans of theirs, since the session adopts these."""
    # The launcher's servers run no task code and wait for the next sandbox: what matters is what is left without them.
    close_idle()
    return {pid for pid in descendants(os.getpid()) if _state(pid) not in "ZX"}


async def still_living(before: set[int]) -> set[int]:
    """Processes that were not there before, and go on living: what was killed may take the kernel a moment."""
    deadline = time.monotonic() + 5
    while (left := living() - before) and time.monotonic() < deadline:
        await asyncio.sleep(0.05)
    return left


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except OSError:
        return "X"

"""An interpreter of the host's base that a slot may have ready, and which commands it can be in place of starting it."""

from __future__ import annotations

import posixpath
from dataclasses import dataclass

from assay.sandbox.command import whole_environment
from assay.sandbox.hosted import Command
from assay.verifiers.compiled import HOME, START, compiled_files

_EARLY = ("GLIBC_", "LANG", "LC_", "LD_", "LOCPATH", "MALLOC_", "NLSPATH")
"""How the names begin of the variables that are read before an interpreter's first line, …"""
_EARLY_UNLESS_ISOLATED = (*_EARLY, "HOME", "PYTHON")
"""… and when it is not isolated: `HOME` has a folder of modules in it."""


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A Python of the host's base. Two are the same when the same slot server can be both."""

    path: str
    """Absolute, in the base."""
    scripts: bool = False
    """Whether it is started as `python3 file.py` and `python3 -c` are, not isolated."""

    @property
    def env(self) -> dict[str, str]:
        """What it is started with."""
        return whole_environment(None)

    def told(self) -> dict[str, object]:
        """As the server is told of it, with the program that its forks will most likely be asked to run."""
        ahead = {"program": START, "home": HOME, "compiled": compiled_files().hex()} if not self.scripts else None
        return {"path": self.path, "env": self.env, "ahead": ahead}

    def starts(self, command: Command) -> bool:
        """Whether a fork of it that waits is as good as starting it anew for this command.

        For scripts: as far as can be said without the sandbox. Its fork looks for the rest, and starts it anew all the same.
        """
        if not (self._is_script(command) if self.scripts else self._is_isolated(command)):
            return False
        names = _EARLY_UNLESS_ISOLATED if self.scripts else _EARLY
        early = {name: value for name, value in command.env.items() if name.startswith(names)}
        return early == {name: value for name, value in self.env.items() if name.startswith(names)}

    def _is_isolated(self, command: Command) -> bool:
        return len(command.argv) > 3 and command.argv[:3] == (self.path, "-I", "-c")

    def _is_script(self, command: Command) -> bool:
        program, *words = command.argv
        if program not in (self.path, posixpath.basename(self.path)) or command.pass_fds or not words:
            return False
        return len(words) > 1 if words[0] == "-c" else words[0] != "" and not words[0].startswith("-")

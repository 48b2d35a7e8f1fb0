"""An interpreter of the host's base that a slot may have ready, and which commands it can be in place of starting it."""

from __future__ import annotations

from dataclasses import dataclass

from assay.sandbox.command import whole_environment
from assay.sandbox.hosted import Command
from assay.verifiers.compiled import HOME, START, compiled_files

_EARLY = ("GLIBC_", "LANG", "LC_", "LD_", "LOCPATH", "MALLOC_", "NLSPATH")
"""How the names begin of the variables that are read before an interpreter's first line."""


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A Python of the host's base. Two are the same when the same slot server can be both."""

    path: str
    """Absolute, in the base."""

    @property
    def env(self) -> dict[str, str]:
        """What it is started with."""
        return whole_environment(None)

    def told(self) -> dict[str, object]:
        """As the server is told of it, with the program that its forks will most likely be asked to run."""
        ahead = {"program": START, "home": HOME, "compiled": compiled_files().hex()}
        return {"path": self.path, "env": self.env, "ahead": ahead}

    def starts(self, command: Command) -> bool:
        """Whether a fork of it that waits is as good as starting it anew for this command."""
        if len(command.argv) < 4 or command.argv[:3] != (self.path, "-I", "-c"):
            return False
        env = self.env
        early = {name: value for name, value in command.env.items() if name.startswith(_EARLY)}
        return early == {name: value for name, value in env.items() if name.startswith(_EARLY)}

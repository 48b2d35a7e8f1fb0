"""A slot server that is the sandboxes' own interpreter, so that a fork of it can run a program in place of an exec.

The launcher's process makes the server's namespaces and a root that shows the base, then execs the base's interpreter in
it, which so starts as it would in a sandbox: its library, its `site`, its encoding. The launcher's own sources come along
in memory, under names that say nothing of the host, and serve from there on (`server.go_on`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from . import kernel

_FILES = (
    "kernel",
    "wire",
    "rights",
    "root",
    "turning",
    "ready",
    "init",
    "command",
    "script",
    "tenant",
    "pages",
    "server",
)
"""Each after those that it imports."""

_LOADER = """\
_main = dict(globals())
import sys
_before = _main, frozenset(sys.modules), frozenset(sys.path_importer_cache)
if not sys.flags.isolated:
    del sys.path[0]
import json, os
if not sys.flags.isolated:
    os.close(int(sys.argv[0].rpartition("/")[2]))
with os.fdopen(int(sys.argv[1]), "rb") as _file:
    _told = json.loads(_file.read())
_package = type(sys)("launcher")
_package.__path__ = []
sys.modules["launcher"] = _package
for _name, _text in _told["files"]:
    _module = type(sys)("launcher." + _name)
    _module.__package__ = "launcher"
    sys.modules["launcher." + _name] = _module
    setattr(_package, _name, _module)
    exec(compile(_text, "launcher/" + _name, "exec"), _module.__dict__)
raise _package.server.go_on(_told["state"], _package.script.noted(*_before))
"""


def read_sources() -> list[tuple[str, str]]:
    """The launcher's own files, while they are in sight."""
    folder = os.path.dirname(os.path.abspath(__file__))
    found = []
    for name in _FILES:
        with open(f"{folder}/{name}.py", encoding="utf-8") as file:
            found.append((name, file.read()))
    return found


def turn(
    interpreter: Mapping[str, Any], sources: list[tuple[str, str]], state: Mapping[str, Any], kept: Sequence[int]
) -> None:
    """Become the interpreter: its `path` in the base, started with `env`. `kept` are the descriptors that `state` names.

    `ahead` is what `ready.load` takes, for isolated programs; None: it is for others (`script`), and started as they are.

    Does not return. Raises `OSError` when there is no such program.
    """
    told = _in_memory(json.dumps({"files": sources, "state": state}))
    for fd in kept:
        os.set_inheritable(fd, True)
    # Beyond the exec, since the uid gives none; nothing runs there before they are given up for what is forked.
    kernel.keep_capabilities()
    path = interpreter["path"]
    # For a text some versions load more than for a file.
    program = ["-I", "-c", _LOADER] if interpreter["ahead"] is not None else [f"/proc/self/fd/{_in_memory(_LOADER)}"]
    os.execve(path, [path, *program, str(told)], dict(interpreter["env"]))  # noqa: S606 - that is what it is for


def _in_memory(text: str) -> int:
    """A descriptor at its beginning, for an exec."""
    memory = os.memfd_create("assay", 0)
    with open(memory, "wb", closefd=False) as file:
        file.write(text.encode())
    os.lseek(memory, 0, os.SEEK_SET)
    return memory

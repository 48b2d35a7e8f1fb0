"""The launcher as it is when an interpreter waits: every Python program that a test runs is run by a fork of one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from assay.sandbox import Capability, ExecResult, Sandbox, SandboxSpec
from assay.sandbox.namespaces import NamespacesProvider, get_ready

PYTHON = "/usr/bin/python3"


@dataclass
class _Warm:
    """A sandbox whose `python3 -I -S -c` is the interpreter that waits."""

    inner: Sandbox

    @property
    def for_one(self) -> bool:
        return self.inner.for_one

    async def exec(self, argv: Sequence[str], **options: Any) -> ExecResult:
        words = list(argv)
        if words[:3] == ["python3", "-I", "-S"] and words[3:4] == ["-c"]:
            words[:3] = [PYTHON, "-I"]
        return await self.inner.exec(words, **options)

    async def put(self, source: Path, at: str) -> None:
        await self.inner.put(source, at)

    async def get(self, at: str) -> Path:
        return await self.inner.get(at)

    async def kill(self) -> None:
        await self.inner.kill()

    async def close(self) -> None:
        await self.inner.close()


class WarmProvider:
    """See the module. `create` waits until there is such an interpreter, where a spec may have one."""

    name = "namespaces"
    isolated = True

    def __init__(self, *, scripts: bool = False) -> None:
        """`scripts`: an interpreter for programs that are not isolated."""
        self._inner = NamespacesProvider()
        self._scripts = scripts

    def capabilities(self) -> frozenset[Capability]:
        return self._inner.capabilities()

    async def create(self, spec: SandboxSpec) -> Sandbox:
        wanted = replace(spec, interpreter=PYTHON, scripts=self._scripts)
        if spec.base is None and spec.user != 0:
            await get_ready(wanted)
        return _Warm(await self._inner.create(wanted))


def is_warm(sandbox: Any) -> bool:
    """Whether the sandbox's slot has an interpreter that waits."""
    inner = sandbox.inner if isinstance(sandbox, _Warm) else sandbox
    return inner._maker.slot.interpreter is not None

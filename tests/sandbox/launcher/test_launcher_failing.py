"""A root that cannot be made is a fault of that one command's: its server stays, at home in its own namespaces."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from assay.sandbox import Ended, SandboxSpec
from assay.sandbox.namespaces import get_ready
from assay.sandbox.procfs import children
from assay.sandbox.slots import Slot
from warm import PYTHON

Make = Callable[..., Awaitable[Any]]
NO_STEP = {"what": "nonsense", "at": "/x", "text": "", "sources": [], "size": None, "perms": None}


@pytest.mark.parametrize("word", ["build", "finish"])
@pytest.mark.parametrize("interpreter", [None, PYTHON])
async def test_the_server_goes_on(
    launched: Make, monkeypatch: pytest.MonkeyPatch, word: str, interpreter: str | None
) -> None:
    await get_ready(SandboxSpec(interpreter=interpreter))
    sandbox = await launched(interpreter=interpreter)
    assert (await sandbox.exec(["true"], timeout_s=30)).code == 0
    slot = sandbox._maker.slot
    server = children(slot._server._popen.pid)
    tell = Slot.tell

    def told_nonsense(self: Slot, said: str, fields: dict[str, Any], fds: Sequence[int]) -> None:
        tell(self, said, {**fields, "steps": [*fields["steps"], NO_STEP]} if said == word else fields, fds)

    with monkeypatch.context() as context:
        context.setattr(Slot, "tell", told_nonsense)
        # The fork for this one may have been told before.
        results = [await sandbox.exec(["true"], timeout_s=30) for _ in range(2)]
        faults = [result.fault for result in results if result.how is Ended.FAULT]
        assert faults
        assert all("there is no step 'nonsense'" in str(fault) for fault in faults)
    # The one after may have been told meanwhile.
    results = [await sandbox.exec(["sh", "-c", "ls /; exit 3"], timeout_s=30) for _ in range(2)]
    assert results[-1].code == 3
    assert b"assay-init" not in results[-1].stdout
    assert children(slot._server._popen.pid) == server

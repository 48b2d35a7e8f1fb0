"""The sandboxes of a submission: which of them have an interpreter that waits."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from assay.grading import Captured, grade
from assay.grading.asks import RunAsk
from assay.grading.siblings import Setting, Siblings
from assay.sandbox import Limits, SandboxSpec
from assay.sandbox.fake import FakeProvider, FakeSandbox
from assay.sandbox.hosted import HostedSandbox
from assay.sandbox.namespaces import NamespacesProvider, get_ready
from commands import make_task

VERIFIER = """\
from assay.verifiers import call_function, run_submission
LOOK = "import gc; print(gc.get_freeze_count() > 0)"
def verify(workspace):
    forked = {}
    for name, argv in (("text", ["-c", LOOK]), ("file", ["main.py"]), ("isolated", ["-I", "-c", LOOK])):
        for more in ({}, {"files": {"x": ""}}, {"session": "s"}):
            done = run_submission(["python3", *argv], workspace=workspace, **more)
            assert done.ok and done.isolation == "sandbox", done
            forked.setdefault(name, set()).add(done.stdout == b"True\\n")
    forked["call"] = {call_function("main", "look", [])}
    assert all(len(seen) == 1 for seen in forked.values()), forked
    return {"reward": 1.0, **{name: float(seen.pop()) for name, seen in forked.items()}}
"""
MAIN = "import gc\ndef look(): return gc.get_freeze_count() > 0\nif __name__ == '__main__': print(look())"


class Ready(NamespacesProvider):
    """Has such an interpreter for the first sandbox as well as for later ones."""

    async def create(self, spec: SandboxSpec) -> HostedSandbox:
        if spec.scripts:
            await get_ready(spec)
        return await super().create(spec)


@pytest.mark.parametrize("warm", [True, False])
async def test_python_programs_are_forked_unless_that_is_off(tmp_path: Path, warm: bool) -> None:
    if os.geteuid() != 0:
        pytest.skip("an ordinary user's server is told paths of the host")
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    (workspace / "main.py").write_text(MAIN)
    task = make_task(tmp_path / "task", VERIFIER)
    verdict = await grade(task, Captured(workspace), sandbox=Ready(), state=tmp_path / "state", warm=warm)
    assert (verdict.reward, verdict.failure) == (1.0, None), verdict
    seen = {name: verdict.metrics[name] for name in ("text", "file", "isolated", "call")}
    assert seen == {"text": warm, "file": warm, "isolated": False, "call": warm}


class Recording(FakeProvider):
    """Remembers what it was asked for, and which of them each command ran in."""

    def __init__(self, *, for_one: bool) -> None:
        super().__init__(for_one=for_one)
        self.specs: list[SandboxSpec] = []

    async def create(self, spec: SandboxSpec) -> FakeSandbox:
        self.specs.append(spec)
        return await super().create(spec)


def ask(session: str | None = None) -> RunAsk:
    return RunAsk(0, 0, "/app", 10, {}, None, (), (), session)


@pytest.mark.parametrize("for_one", [False, True])
async def test_who_runs_two_runs_more(tmp_path: Path, for_one: bool) -> None:
    provider = Recording(for_one=for_one)
    siblings = Siblings(Setting(provider, None, "/app", tmp_path, Limits()))
    living = []
    for _ in range(4):
        await siblings.run(ask(), ["true"], b"", None, float("inf"))
        living.append(provider.living)
    used = [next(at for at, spec in enumerate(provider.specs) if spec is call.spec) for call in provider.calls]
    await siblings.close()
    # The first has its own where another is as quick; what follows has one that gets ready for the next.
    assert used == ([0, 1, 1, 1] if for_one else [0, 0, 0, 0])
    assert living == ([0, 1, 1, 1] if for_one else [1, 1, 1, 1])
    assert [spec.again for spec in provider.specs] == ([False, True] if for_one else [False])
    assert provider.living == 0


async def test_a_session_gets_ready_for_its_next_run(tmp_path: Path) -> None:
    provider = Recording(for_one=True)
    siblings = Siblings(Setting(provider, None, "/app", tmp_path, Limits()))
    for _ in range(2):
        await siblings.run(ask(session="a"), ["true"], b"", None, float("inf"))
    assert [spec.again for spec in provider.specs] == [True]
    assert provider.living == 1
    await siblings.close()
    assert provider.living == 0

"""A submission's program run by a fork of an interpreter that waits: as `python3 file.py` and `python3 -c` would have run it."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from assay.sandbox import ExecResult, Overlay, Sandbox, SandboxSpec, Writable
from assay.sandbox.namespaces import NamespacesProvider, close_idle
from assay.sandbox.slotpool import POOL
from assay.workspaces import scratch_folder
from scripts import CASES, VERSION, Case, lay
from warm import PYTHON, WarmProvider, is_warm

root_alone = pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user's server is told paths of the host")

FORKED = "import gc; print(gc.get_freeze_count() > 0)"
"""Says whether it is a fork: by the one thing there that does."""


@pytest.fixture
async def both() -> AsyncIterator[tuple[Path, Sandbox, Sandbox]]:
    """A folder that is `/app` in a sandbox whose programs are started, and in one where they are forked."""
    with scratch_folder("app") as app:
        app.chmod(0o755)
        spec = SandboxSpec(mounts=(Overlay(app, "/app"),))
        cold, warm = await NamespacesProvider().create(spec), await WarmProvider(scripts=True).create(spec)
        assert (is_warm(cold), is_warm(warm)) == (False, True)
        yield app, cold, warm
        await cold.close()
        await warm.close()


async def run(sandbox: Sandbox, case: Case) -> ExecResult:
    argv = ["python3", *case.argv]
    return await sandbox.exec(argv, cwd=case.cwd, env=case.env, stdin=case.stdin, timeout_s=30)


def seen(result: ExecResult) -> Any:
    """What a grader sees of a run, but for places in memory."""
    streams = (result.stdout, result.stderr)
    said = [re.sub(rb"0x[0-9a-f]+", b"0x", text).decode("utf-8", "backslashreplace") for text in streams]
    return (result.how, result.code, result.signal, *said)


@root_alone
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
async def test_it_is_seen_to_run_as_a_started_one_does(both: tuple[Path, Sandbox, Sandbox], case: Case) -> None:
    app, cold, warm = both
    lay(app, case)
    assert seen(await run(warm, case)) == seen(await run(cold, case))


@root_alone
@pytest.mark.parametrize(
    ("argv", "env", "forked"),
    [
        (["python3", "main.py"], {}, True),
        (["python3", "main.py", "-O", "-c"], {"ANY": "1", "TZ": "Asia/Tokyo"}, True),
        ([PYTHON, "/app/main.py"], {}, True),
        (["python3", "-c", FORKED, "-I"], {}, True),
        (["python3", "main.py"], {"PATH": "/nothere:/usr/bin:/bin"}, True),
        (["python3", "main.py"], {"PATH": "/bin:/usr/bin"}, False),
        (["python3", "main.py"], {"PATH": "/app:/usr/bin"}, False),
        (["../usr/bin/python3", "main.py"], {}, False),
        ([f"/usr/bin/{Path(PYTHON).resolve().name}", "main.py"], {}, False),
        (["python3", "-u", "main.py"], {}, False),
        (["python3", "-I", "main.py"], {}, False),
        (["python3", "-I", "-c", FORKED], {}, False),
        (["python3", "-m", "main"], {}, False),
        (["python3", "-cimport main"], {}, False),
        (["python3", "folder"], {}, False),
        (["sh", "-c", "python3 main.py"], {}, False),
        (["python3", "main.py"], {"PYTHONPATH": "/app"}, False),
        (["python3", "main.py"], {"PYTHONDONTWRITEBYTECODE": ""}, False),
        (["python3", "main.py"], {"HOME": "/app"}, False),
        (["python3", "main.py"], {"LANG": "C"}, False),
        (["python3", "main.py"], {"LC_ALL": "C.UTF-8"}, False),
        (["python3", "main.py"], {"LD_LIBRARY_PATH": "/app"}, False),
        (["python3", "main.py"], {"GLIBC_TUNABLES": "x"}, False),
    ],
)
async def test_what_would_not_be_the_same_is_started(
    both: tuple[Path, Sandbox, Sandbox], argv: list[str], env: dict[str, str], forked: bool
) -> None:
    app, _, warm = both
    files = {"folder/__main__.py": FORKED, "python3": f'#!/bin/sh\nexec {PYTHON} "$@"'}
    lay(app, Case(FORKED, files=files))
    result = await warm.exec(argv, cwd="/app", env=env, timeout_s=30)
    assert (result.code, result.stdout.decode(), result.stderr) == (0, f"{forked}\n", b"")


@root_alone
@pytest.mark.parametrize(
    ("at", "warm", "forked"),
    [
        ("/app", True, True),
        (f"/tmp/.local/lib/{VERSION}/site-packages", True, False),
        (f"/usr/lib/{VERSION}/site-packages", False, False),
        ("/lib", False, False),
    ],
)
async def test_a_mount_among_the_modules_of_the_base_is_seen(at: str, warm: bool, forked: bool) -> None:
    sandbox = await WarmProvider(scripts=True).create(SandboxSpec(mounts=(Writable("/out"), Writable(at))))
    assert is_warm(sandbox) is warm
    if warm:
        result = await sandbox.exec(["python3", "-c", FORKED], timeout_s=30)
        assert (result.code, result.stdout.decode()) == (0, f"{forked}\n")
    await sandbox.close()


NEEDLE = "needle-"
SCAN = """
import re
found, pattern = set(), re.compile(b"needle-[0-9a-f]{24}")
with open("/proc/self/maps") as maps, open("/proc/self/mem", "rb", 0) as memory:
    for line in maps:
        place, rights, *_ = line.split()
        first, last = (int(word, 16) for word in place.split("-"))
        if rights.startswith("rw") and "[v" not in line:
            memory.seek(first)
            found.update(pattern.findall(memory.read(last - first)))
print(*sorted(word.decode() for word in found))
"""


@root_alone
async def test_no_program_finds_anything_of_another_in_its_memory() -> None:
    needles = {what: NEEDLE + secrets.token_hex(12) for what in ("argv", "env", "stdin", "file", "name", "folder")}
    close_idle()
    provider = WarmProvider(scripts=True)
    servers = []
    with scratch_folder(needles["folder"]) as app, scratch_folder("other") as other:
        program = f"{SCAN}\n{needles['file']!r}; import sys; kept = sys.stdin.read()"
        lay(app, Case(program, files={f"{needles['name']}/x.py": ""}))
        lay(other, Case(SCAN))
        for turn, folder in enumerate((app, *[other] * 4)):
            folder.chmod(0o755)
            sandbox: Any = await provider.create(SandboxSpec(mounts=(Overlay(folder, "/app"),)))
            assert is_warm(sandbox)
            servers.append(sandbox.inner._maker.slot._server._popen.pid)
            env = {"SOME": needles["env"]} if turn == 0 else {}
            argv = ["main.py", needles["argv"]] if turn == 0 else ["main.py"]
            stdin = needles["stdin"].encode() * 20_000 if turn == 0 else b""
            result = await sandbox.exec(["python3", *argv], cwd="/app", env=env, stdin=stdin, timeout_s=30)
            assert result.code == 0, result.stderr.decode()
            # Of its own it finds what it has; of the one before nothing, and of the host nothing ever.
            own = [needles[what] for what in ("argv", "env", "file", "name")] if turn == 0 else []
            assert result.stdout.split() == [word.encode() for word in sorted(own)]
            await sandbox.close()
            POOL.settle(30)
    assert servers[0] in servers[1:], "some were forks of the same server"


async def test_only_another_users_sandboxes_of_root_have_such_an_interpreter() -> None:
    for user, scripts, root_alone in ((None, True, True), (None, False, False), (0, True, None)):
        sandbox = await WarmProvider(scripts=scripts).create(SandboxSpec(mounts=(Writable("/out"),), user=user))
        assert is_warm(sandbox) is (root_alone is not None and (os.geteuid() == 0 or not root_alone))
        await sandbox.close()

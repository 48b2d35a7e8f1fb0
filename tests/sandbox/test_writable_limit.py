"""A log folder that a sandbox fills to the brim: its own, and nobody else's."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from assay.sandbox import MIB, Ended, Limits, Sandbox, SandboxSpec, Writable, get_provider
from ordinary_user import REPOSITORY, run_as_ordinary_user

AT = "/logs/verifier"
SIZE = 8 * MIB
SPEC = SandboxSpec(mounts=(Writable(AT),), limits=Limits(tmp_bytes=SIZE))
FILL = f"head -c 1G /dev/zero > {AT}/flood; echo ended $?"
NAMES = f"cd {AT}; for i in $(seq 1 20000); do : > $i || break; done; echo ended"

root = pytest.mark.skipif(
    os.geteuid() != 0, reason="an ordinary user may mount nothing: its folder has no size of its own"
)


@pytest.fixture(params=["bubblewrap", "namespaces"])
def provider(request: pytest.FixtureRequest) -> str:
    if not get_provider(request.param).capabilities():
        pytest.skip(f"{request.param} cannot make sandboxes here: `assay doctor` says why")
    return str(request.param)


@asynccontextmanager
async def made(provider: str, spec: SandboxSpec = SPEC) -> AsyncIterator[Sandbox]:
    sandbox = await get_provider(provider).create(spec)
    try:
        yield sandbox
    finally:
        await sandbox.close()


@root
@pytest.mark.parametrize("command", [FILL, NAMES], ids=["bytes", "names"])
async def test_a_full_folder_is_a_limit_and_leaves_its_neighbours_room(provider: str, command: str) -> None:
    async with made(provider) as full, made(provider) as neighbour:
        flood, quiet = await asyncio.gather(
            full.exec(["bash", "-c", command]),
            neighbour.exec(["bash", "-c", f"head -c {SIZE // 2} /dev/zero > {AT}/mine && stat -c %s {AT}/mine"]),
        )
        assert (flood.how, flood.limits_hit) == (Ended.EXITED, ("storage_limit",))
        assert b"No space left" in flood.stderr
        assert sum(path.stat().st_size for path in (await full.get(AT)).iterdir()) <= SIZE
        assert (quiet.stdout, quiet.limits_hit) == (b"%d\n" % (SIZE // 2), ())
        # It stays full, and that is said of every command; what is made room in is a folder like any other again.
        assert (await full.exec(["true"])).limits_hit == ("storage_limit",)
        emptied = await full.exec(["bash", "-c", f"rm -r {AT}/*; echo 1 > {AT}/reward.txt"])
        assert (emptied.code, emptied.limits_hit) == (0, ())
        assert (await full.get(AT) / "reward.txt").read_text() == "1\n"


@root
async def test_what_is_put_there_counts_and_is_seen(provider: str, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "file").write_bytes(b"x" * (SIZE // 3))
    async with made(provider) as sandbox:
        for _ in range(2):
            await sandbox.put(tmp_path, AT)
        seen = await sandbox.exec(["bash", "-c", f"find {AT} -type f -size +1k; ls -A {AT}"])
        assert seen.stdout.decode().split() == [f"{AT}/a/file", "a"]


@root
async def test_only_what_lies_in_memory_has_that_size(provider: str) -> None:
    spec = SandboxSpec(mounts=(Writable("/app", on_disk=True),), limits=Limits(tmp_bytes=SIZE))
    async with made(provider, spec) as sandbox:
        result = await sandbox.exec(["bash", "-c", f"head -c {2 * SIZE} /dev/zero > /app/large && echo ended"])
        assert (result.stdout, result.limits_hit) == (b"ended\n", ())


MAKES = f"""
import asyncio, sys
from assay.sandbox import SandboxSpec, Writable, get_provider

async def main(seconds):
    sandbox = await get_provider("bubblewrap").create(SandboxSpec(mounts=(Writable({AT!r}),)))
    print(await sandbox.get({AT!r}), flush=True)
    await asyncio.sleep(seconds)
    await sandbox.close()

asyncio.run(main(float(sys.argv[1])))
"""


@root
def test_the_mount_of_a_killed_supervisor_goes_with_its_folders() -> None:
    """Whoever makes a sandbox next takes it away."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        env = {**os.environ, "TMPDIR": folder}
        command = [sys.executable, "-c", MAKES]
        with subprocess.Popen([*command, "600"], env=env, stdout=subprocess.PIPE, text=True) as supervisor:
            assert supervisor.stdout is not None
            assert folder in supervisor.stdout.readline()
            assert len(mounts_in(folder)) == 1
            supervisor.send_signal(signal.SIGKILL)
        subprocess.run([*command, "0"], env=env, check=True, stdout=subprocess.DEVNULL)
        assert mounts_in(folder) == set()
        assert [name for name in os.listdir(folder) if name.startswith("assay-")] == []


def mounts_in(folder: str) -> set[str]:
    places = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return {place for place in places if place.startswith(f"{folder}/")}


ORDINARY = f"""
import asyncio, sys
from assay.sandbox import MIB, Ended, Limits, SandboxSpec, Writable, get_provider

async def main(name):
    provider = get_provider(name)
    if not provider.capabilities():
        return print("cannot")
    spec = SandboxSpec(mounts=(Writable({AT!r}),), limits=Limits(file_bytes={SIZE}))
    full, neighbour = await provider.create(spec), await provider.create(spec)
    try:
        flood, quiet = await asyncio.gather(
            full.exec(["bash", "-c", {FILL!r}]),
            neighbour.exec(["bash", "-c", "echo 1 > {AT}/reward.txt && cat {AT}/reward.txt"]),
        )
        print((await full.get({AT!r}) / "flood").stat().st_size, quiet.stdout.decode().strip(), flood.how)
    finally:
        await full.close()
        await neighbour.close()

asyncio.run(main(sys.argv[1]))
"""


def test_an_ordinary_users_files_are_cut_at_their_largest_size(provider: str) -> None:
    """No folder has a size of its own there; the size of each file is still capped, and a neighbour is not touched."""
    env = {"PYTHONPATH": os.environ.get("PYTHONPATH", ""), "PYTHONDONTWRITEBYTECODE": "1"}
    done = run_as_ordinary_user([sys.executable, "-c", ORDINARY, provider], cwd=REPOSITORY, env=env)
    said = done.stdout.decode().strip()
    if said == "cannot":
        pytest.skip(f"an ordinary user can make no sandboxes with {provider} here")
    assert said == f"{SIZE} 1 exited", done.stderr.decode()

"""`assay serve` as a process: killed in the middle, started again, asked again."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import signal
import subprocess
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from click.testing import CliRunner

from assay.answers import StoreUnusable
from assay.cli.main import cli
from assay.server.keys import open_keys
from assay.server.running import keys_of
from assay.tasks import TaskInvalid
from commands import ASSAY, make_task

# Long enough that a kill finds some of them in the middle.
VERIFIER = """\
import time

def verify(task_data):
    time.sleep(0.05)
    return {"reward": task_data["number"]}
"""
COUNT = 200 if os.environ.get("ASSAY_SOAK") == "1" else 40
TOKEN = "only-for-this-test-0001"


@dataclass
class Process:
    url: str
    pid: int
    child: asyncio.subprocess.Process


@contextlib.asynccontextmanager
async def process(
    dataset: Path, state: Path, *options: str, env: dict[str, str] | None = None
) -> AsyncIterator[Process]:
    """The command, until it ends or the block does."""
    arguments = ["serve", dataset, "--port", "0", "--json", "--state", state, "--rootfs", "host", *options]
    child = await asyncio.create_subprocess_exec(
        *ASSAY, *arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, **(env or {})}
    )
    assert child.stdout is not None
    assert child.stderr is not None
    try:
        line = await asyncio.wait_for(child.stdout.readline(), 60)
        if not line:
            raise AssertionError((await child.stderr.read()).decode())
        yield Process(json.loads(line)["url"], child.pid, child)
    finally:
        if child.returncode is None:
            child.terminate()
        await child.communicate()


def counting_task(folder: Path, mode: str) -> Path:
    make_task(folder / "counting", VERIFIER, f'[assay]\nreverify_mode = "{mode}"\n')
    return folder


async def ask(session: aiohttp.ClientSession, url: str, number: int) -> dict[str, Any] | None:
    """One keyed verification; None when there was no reply."""
    body = {"number": number, "response": {"output_text": "x"}}
    headers = {"Idempotency-Key": f"key-{number}"}
    try:
        async with session.post(f"{url}/verify", json=body, headers=headers) as reply:
            assert reply.status == 200, await reply.text()
            return dict(await reply.json())
    except aiohttp.ClientError:
        return None


def children(pid: int) -> set[int]:
    """Its living children."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
                if state not in "ZX" and int(parent) == pid:
                    found.add(int(entry.name))
    return found


def verifying(pid: int) -> bool:
    """Whether a process, or one below it, is an interpreter. A sandbox that was never told to begin has none in it."""
    with contextlib.suppress(OSError):
        program = (Path("/proc") / str(pid) / "cmdline").read_bytes().split(b"\0")[0]
        return os.path.basename(program).startswith(b"python") or any(verifying(child) for child in children(pid))
    return False


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["stateless", "unsupported"])
async def test_killed_in_the_middle_of_many(tmp_path: Path, mode: str) -> None:
    dataset = counting_task(tmp_path / "dataset", mode)
    before_it = children(os.getpid())
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=120)) as session:
        async with process(dataset, tmp_path / "state", "--concurrency", "4", "--no-control") as first:
            asked = [asyncio.create_task(ask(session, first.url, number)) for number in range(COUNT)]
            for first_done in itertools.islice(asyncio.as_completed(asked), COUNT // 8):
                await first_done
            os.kill(first.pid, signal.SIGKILL)
            before = {said["number"]: said for said in await asyncio.gather(*asked) if said is not None}
        assert COUNT // 8 <= len(before) < COUNT
        async with process(dataset, tmp_path / "state", "--concurrency", "4", "--no-control") as second:
            # What a dead process leaves becomes this one's child. Before anything is verified again, none of it verifies.
            orphans = children(os.getpid()) - before_it - {second.pid}
            assert not [pid for pid in orphans if verifying(pid)]
            for pid in orphans:
                os.kill(pid, signal.SIGKILL)
            after = await asyncio.gather(*(ask(session, second.url, number) for number in range(COUNT)))
            again = await asyncio.gather(*(ask(session, second.url, number) for number in range(COUNT)))
    assert all(said is not None for said in after)
    assert after == again
    replies: list[dict[str, Any]] = [said for said in after if said is not None]
    # What was told before the kill is what is told after it.
    assert all(replies[number]["verdict"] == said["verdict"] for number, said in before.items())
    kinds = Counter(said["failure_kind"] for said in replies)
    print(f"{COUNT} asked, {len(before)} answered before the kill, then {dict(kinds)}")
    graded = [said for said in replies if not said["mask_sample"]]
    assert all(said["reward"] == said["number"] for said in graded)
    if mode == "stateless":
        assert kinds == {None: COUNT}
    else:
        # At most as many were cut as could run at once; they were not started again.
        assert 1 <= kinds["session_lost"] <= 4
        assert kinds[None] == COUNT - kinds["session_lost"]


async def test_terminated_it_finishes_what_runs_and_ends_with_0(tmp_path: Path) -> None:
    dataset = counting_task(tmp_path / "dataset", "unsupported")
    async with (
        aiohttp.ClientSession() as session,
        process(dataset, tmp_path / "state", "--concurrency", "2", "--no-control") as server,
    ):
        asked = [asyncio.create_task(ask(session, server.url, number)) for number in range(20)]
        await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
        os.kill(server.pid, signal.SIGTERM)
        replies = await asyncio.gather(*asked)
        assert await asyncio.wait_for(server.child.wait(), 60) == 0
        assert server.child.stderr is not None
        assert await server.child.stderr.read() == b""
    assert all(said["reward"] == said["number"] for said in replies if said is not None)
    assert None in replies


def serve(*arguments: str | Path, env: dict[str, str] | None = None) -> tuple[int, str]:
    """The command, for usage that ends it at once: its exit code, and what it said."""
    done = CliRunner().invoke(cli, ["serve", *map(str, arguments)], env=env)
    return done.exit_code, done.output


@pytest.mark.parametrize(
    ("options", "env", "said"),
    [
        (["--host", "0.0.0.0"], {}, "a token is needed"),
        (["--host", "no such host"], {}, "no such address"),
        ([], {"ASSAY_TOKEN": "short"}, "a token is 16 or more"),
        (["--token-file", "nowhere"], {}, "cannot be read"),
        (["--sandbox", "nowhere"], {}, "no sandbox provider"),
        (["--concurrency", "0"], {}, "not in the range"),
        (["--keys", "/proc/x/keys.sqlite"], {}, "cannot be made"),
    ],
)
def test_wrong_usage(tmp_path: Path, options: list[str], env: dict[str, str], said: str) -> None:
    dataset = counting_task(tmp_path / "dataset", "stateless")
    code, output = serve(dataset, "--port", "0", "--state", tmp_path / "state", *options, env=env)
    assert (code, said in " ".join(output.split())) == (2, True), output


def test_no_dataset(tmp_path: Path) -> None:
    with pytest.raises(TaskInvalid, match="there is no such folder"):
        CliRunner().invoke(cli, ["serve", str(tmp_path / "nowhere")], catch_exceptions=False)


async def test_a_second_server_on_the_same_keys_is_refused(tmp_path: Path) -> None:
    dataset = counting_task(tmp_path / "dataset", "stateless")
    async with process(dataset, tmp_path / "state"):
        with pytest.raises(StoreUnusable, match="another server has it"):
            open_keys(keys_of(dataset, tmp_path / "state"))


async def test_tokens_of_a_file(tmp_path: Path) -> None:
    dataset = counting_task(tmp_path / "dataset", "stateless")
    (tmp_path / "tokens").write_text(f"{TOKEN}\nanother-token-0002\n")
    async with (
        process(dataset, tmp_path / "state", "--host", "0.0.0.0", "--token-file", str(tmp_path / "tokens")) as server,
        aiohttp.ClientSession() as session,
    ):
        url = server.url.replace("0.0.0.0", "127.0.0.1")
        for token, status in ((TOKEN, 200), ("another-token-0002", 200), ("nobodys-token-0003", 401)):
            async with session.get(f"{url}/tasks", headers={"Authorization": f"Bearer {token}"}) as reply:
                assert reply.status == status

"""The HTTP layer: requests a second on one core beside a bare route, and how long `/healthz` takes while verifiers work.

Each server is a process of its own on the first processor; the load comes from this process on the others. The verifier of
the throughput rows does nothing, so that what is measured is the server: parsing, checks, admission, the kept verdict.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BODY = {"response": {"output_text": "x" * 1900}, "expected_answer": "4"}
CONNECTIONS = 32
BUSY = """\
import time

def verify(workspace):
    while time.process_time() < 0.2:
        pass
    return 1.0
"""


def measure(rounds: int = 5, requests: int = 3000) -> dict[str, float]:
    """Medians over rounds that take turns: requests a second on one core, and seconds of `/healthz`.

    A second is one of the server's own processor time, all its threads together: what it gives on a core of its own,
    whatever else this machine is doing.
    """
    with tempfile.TemporaryDirectory() as place, contextlib.ExitStack() as stack:
        servers = {kind: stack.enter_context(_server(kind, Path(place, kind))) for kind in ("bare", "assay")}
        cases = {
            "bare Starlette route": ("bare", False),
            "POST /verify, fake verifier": ("assay", False),
            "POST /verify, fake verifier, keyed": ("assay", True),
        }
        found: dict[str, list[float]] = {name: [] for name in cases}
        for turn in range(-1, rounds):
            for name, (kind, keyed) in cases.items():
                url, pid = servers[kind]
                used = _processor_s(pid)
                asyncio.run(_load(url, requests, f"{turn}-{name}" if keyed else None))
                if turn >= 0:
                    found[name].append(requests / (_processor_s(pid) - used))
    with tempfile.TemporaryDirectory() as place, _server("busy", Path(place)) as (url, _):
        waits = asyncio.run(_health(url))
    medians = {name: statistics.median(rates) for name, rates in found.items()}
    return medians | {
        "/healthz while every worker is busy, median s": statistics.median(waits),
        "/healthz while every worker is busy, p99 s": statistics.quantiles(waits, n=100)[98],
    }


@contextlib.contextmanager
def _server(kind: str, place: Path) -> Iterator[tuple[str, int]]:
    """Its URL and its process."""
    place.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "benchmarks.http", kind, str(place)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        try:
            yield running.stdout.readline().strip(), running.pid
        finally:
            running.terminate()


def _processor_s(pid: int) -> float:
    """Seconds of processor time that a process has used."""
    used = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return sum(map(int, used)) / os.sysconf("SC_CLK_TCK")


class _Client(asyncio.Protocol):
    """Sends the next request as soon as the reply to the last one is there."""

    def __init__(self, requests: Iterator[bytes], done: asyncio.Future[None]) -> None:
        self._requests = requests
        self._done = done
        self._waiting = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._next()

    def data_received(self, data: bytes) -> None:
        self._waiting += data
        end = self._waiting.find(b"\r\n\r\n")
        if end < 0:
            return
        at = self._waiting.index(b"content-length: ") + 16
        length = int(self._waiting[at : self._waiting.index(b"\r", at)])
        if len(self._waiting) >= end + 4 + length:
            if not self._waiting.startswith(b"HTTP/1.1 200"):
                self._done.set_exception(RuntimeError(self._waiting[:500].decode()))
            self._waiting = b""
            self._next()

    def _next(self) -> None:
        request = next(self._requests, None)
        if request is not None:
            self._transport.write(request)
            return
        self._transport.close()
        if not self._done.done():
            self._done.set_result(None)


async def _load(url: str, count: int, keyed: str | None) -> None:
    """So many requests over `CONNECTIONS` connections."""
    body = json.dumps(BODY).encode()
    port = int(url.rpartition(":")[2])

    def requests() -> Iterator[bytes]:
        for number in range(count):
            key = f"Idempotency-Key: {keyed}-{number}\r\n".replace(" ", "_").replace(":_", ": ") if keyed else ""
            yield f"POST /verify HTTP/1.1\r\nHost: x\r\n{key}Content-Length: {len(body)}\r\n\r\n".encode() + body

    loop = asyncio.get_running_loop()
    shared = requests()
    waiting = [loop.create_future() for _ in range(CONNECTIONS)]
    for done in waiting:
        await loop.create_connection(lambda done=done: _Client(shared, done), "127.0.0.1", port)  # type: ignore[misc] # bound now
    await asyncio.gather(*waiting)


async def _health(url: str, count: int = 400) -> list[float]:
    """Seconds of `/healthz`, asked every 20 ms while twice as much work as there is room for is kept up."""
    import aiohttp

    async with aiohttp.ClientSession() as session:
        over = asyncio.Event()

        async def work() -> None:
            while not over.is_set():
                async with session.post(f"{url}/verify", json={}) as reply:
                    assert (await reply.json())["reward"] == 1.0

        working = [asyncio.create_task(work()) for _ in range(2 * (os.cpu_count() or 1))]
        await asyncio.sleep(2)
        waits = []
        for _ in range(count):
            began = time.perf_counter()
            async with session.get(f"{url}/healthz") as reply:
                await reply.read()
            waits.append(time.perf_counter() - began)
            await asyncio.sleep(0.02)
        over.set()
        await asyncio.gather(*working)
    return waits


def _serve(kind: str, place: Path) -> None:
    """One of the servers, in a process of its own."""
    if kind != "busy":
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    if kind == "bare":
        _serve_bare()
        return
    from ulid import ULID

    from assay.grading import Verdict
    from assay.server import Chosen, Graded, SandboxGrader, Settings, serve

    verdict = Verdict("", "task", "", "", "host", "graded", 1.0, proven=True)

    class Nothing:
        async def __call__(self, chosen: Chosen, workspace: Path | None, response: Any) -> Graded:
            import dataclasses

            return Graded(dataclasses.replace(verdict, verdict_id=str(ULID())), b"")

    task = place / "dataset" / "task"
    (task / "tests").mkdir(parents=True)
    (task / "environment").mkdir()
    (task / "instruction.md").write_text("Do it.\n")
    (task / "task.toml").write_text('schema_version = "1.4"\n')
    (task / "tests" / "verifier.py").write_text(BUSY)
    grader = SandboxGrader(rootfs="host", state=place / "state") if kind == "busy" else Nothing()
    settings = Settings(task.parent, port=0, grader=grader, state=place / "state")
    asyncio.run(serve(settings, ready=lambda url, _: print(url, flush=True)))


def _serve_bare() -> None:
    """The least that a framework does for such a request: parse the body, give it back."""
    import socket

    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    async def verify(request: Request) -> JSONResponse:
        return JSONResponse({**await request.json(), "reward": 1.0})

    app = Starlette(routes=[Route("/verify", verify, methods=["POST"])])
    # With its protocol named: without it asyncio leaves Nagle's algorithm on, and each reply waits for an acknowledgement.
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    sock.bind(("127.0.0.1", 0))
    print(f"http://127.0.0.1:{sock.getsockname()[1]}", flush=True)
    config = uvicorn.Config(app, loop="asyncio", http="httptools", access_log=False, log_level="warning")
    uvicorn.Server(config).run(sockets=[sock])


if __name__ == "__main__":
    if len(sys.argv) == 3:
        _serve(sys.argv[1], Path(sys.argv[2]))
    else:
        for name, value in measure().items():
            print(f"  {name:50} {value:10.4g}")

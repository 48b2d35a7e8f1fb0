"""The end of a server: what runs is finished or cut off, and nobody gets a false answer."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from assay.server.running import drain
from serving import ScriptedGrader, Served, served, until


class Gates:
    """Holds each answer's grader until its own gate opens."""

    def __init__(self) -> None:
        self.gates: dict[str, asyncio.Future[float]] = {}

    def __call__(self, chosen: Any, workspace: object) -> asyncio.Future[float]:
        return self.gates.setdefault(chosen.row["answer"], asyncio.get_running_loop().create_future())


async def until_waiting(server: Served, count: int) -> None:
    await until(lambda: server.server.service.verifications.admission.waiting == count)


async def test_what_runs_is_finished_and_answered_what_waits_is_cut_off(counting: Path, tmp_path: Path) -> None:
    gates = Gates()
    async with served(counting, ScriptedGrader(gates), state=tmp_path / "state", concurrency=1) as server:
        running = asyncio.create_task(server.verify("k1", answer="a"))
        await until(lambda: "a" in gates.gates)
        waiting = asyncio.create_task(server.verify("k2", answer="b"))
        await until_waiting(server, 1)
        draining = asyncio.create_task(drain(server.server, 30.0))
        with pytest.raises(aiohttp.ServerDisconnectedError):
            await waiting
        refused = await server.verify("k3", answer="c")
        ready = await server.ask("GET", "/readyz")
        alive = await server.ask("GET", "/healthz")
        assert (refused.status, refused.json()["kind"], "Retry-After" in refused.headers) == (
            503,
            "assay:not_admitted",
            True,
        )
        assert (ready.status, alive.status) == (503, 200)
        gates.gates["a"].set_result(0.5)
        assert (await running).json()["reward"] == 0.5
        await draining
        with pytest.raises(aiohttp.ClientConnectorError):
            await server.ask("GET", "/healthz")
    assert server.grader.visits == {"a": 1}


@pytest.mark.parametrize("mode", ["stateless", "unsupported"])
async def test_what_is_not_done_in_time_is_killed_without_a_reply(
    dataset: Path, counting: Path, tmp_path: Path, mode: str
) -> None:
    folder = dataset if mode == "stateless" else counting
    gates = Gates()
    async with served(folder, ScriptedGrader(gates), state=tmp_path / "state") as server:
        asked = [asyncio.create_task(server.verify(key, answer="a")) for key in ("k", "k", None)]
        await until(lambda: server.grader.visits["a"] == 2)
        await drain(server.server, 0.0)
        outcomes = await asyncio.gather(*asked, return_exceptions=True)
    assert all(isinstance(outcome, aiohttp.ServerDisconnectedError | ConnectionError) for outcome in outcomes), outcomes
    assert server.grader.cancelled == {"a": 2}
    async with served(folder, state=tmp_path / "state") as again:
        reply = await again.verify("k", answer="a")
    expected = (1.0, None, 1) if mode == "stateless" else (0.0, "session_lost", 0)
    assert (reply.json()["reward"], reply.json()["failure_kind"], again.grader.visits["a"]) == expected


async def test_a_second_signal_ends_the_grace(counting: Path, tmp_path: Path) -> None:
    gates, hurried = Gates(), asyncio.Event()
    async with served(counting, ScriptedGrader(gates), state=tmp_path / "state") as server:
        asked = asyncio.create_task(server.verify("k", answer="a"))
        await until(lambda: bool(server.grader.visits["a"]))
        draining = asyncio.create_task(drain(server.server, 3600.0, hurried))
        await asyncio.sleep(0)
        hurried.set()
        await draining
        with pytest.raises((aiohttp.ServerDisconnectedError, ConnectionError)):
            await asked


async def test_a_large_reply_is_not_cut_short(dataset: Path, tmp_path: Path) -> None:
    gates = Gates()
    async with served(dataset, ScriptedGrader(gates), state=tmp_path / "state") as server:
        asked = asyncio.create_task(server.verify("k", answer="a", padding="x" * 8_000_000))
        await until(lambda: bool(server.grader.visits["a"]))
        draining = asyncio.create_task(drain(server.server, 30.0))
        gates.gates["a"].set_result(1.0)
        reply = await asked
        await draining
    assert len(reply.json()["padding"]) == 8_000_000


async def test_a_body_on_its_way_is_cut_off(dataset: Path, tmp_path: Path) -> None:
    async with served(dataset, state=tmp_path / "state") as server:
        port = int(server.server.url.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /verify HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        await until(lambda: any(connection.busy for connection in server.server.listener._connections()))
        await drain(server.server, 0.0)
        try:
            heard = await reader.read()
        except ConnectionError:
            heard = b""
        assert heard == b""
        writer.close()

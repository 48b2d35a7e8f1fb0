"""What is refused, how it is said, and that nothing was done for it."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok

from assay.grading import WrongArgument
from assay.server import Limits, Settings, serve
from assay.server.running import refuse_open_address
from serving import ScriptedGrader, make_dataset, served, until

DIGEST = "sha256:" + "0" * 64
TOKEN = "t" * 32


def files_below(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/verify", 405),
        ("PUT", "/verify", 405),
        ("GET", "/nothing", 404),
        ("GET", "/verify/", 404),
        ("GET", "/tasks/two", 404),
        ("GET", "/tasks/../../../etc/passwd", 404),
        ("GET", "/tasks/%2e%2e%2f%2e%2e%2fetc%2fpasswd", 404),
        ("GET", "/tasks//etc/passwd", 404),
        ("GET", "/tasks/one%00", 404),
        ("GET", "/tasks/" + "x" * 5000, 404),
        ("GET", "/verdicts/..%2f..%2fkeys.sqlite", 404),
        ("GET", "/verdicts/../logs", 404),
        ("GET", "/verdicts/%ff", 404),
        ("GET", "/verdicts/01K0", 404),
        ("GET", "/verdicts/01K0/logs", 404),
        ("HEAD", f"/snapshots/{DIGEST}", 404),
        ("HEAD", "/snapshots/..%2f..%2fetc", 404),
        ("HEAD", "/snapshots/..", 422),
        ("PUT", "/snapshots/sha256:..%2f..%2f..%2fetc%2fpasswd", 404),
        ("PUT", f"/snapshots/{DIGEST.upper()}", 422),
        ("PUT", f"/snapshots/{DIGEST}%0a", 422),
        ("PUT", f"/snapshots/{DIGEST}", 422),
        ("POST", "/seed_session", 422),
        ("POST", "/aggregate_metrics", 422),
        ("GET", "/ng-rollout/../../verify", 404),
    ],
)
async def test_paths(dataset: Path, tmp_path: Path, method: str, path: str, status: int) -> None:
    async with served(dataset, state=tmp_path / "state") as server:
        before = files_below(tmp_path)
        port = int(server.server.url.rpartition(":")[2])
        # As it is: a client library would tidy the path up.
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 0\r\n\r\n".encode())
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        await writer.wait_closed()
        assert files_below(tmp_path) - {"state/server/uploads", "state/unpacked"} == before
    assert head.startswith(f"HTTP/1.1 {status} ".encode()), head
    assert b"x-assay-verifier: " in head
    if method != "HEAD":
        assert json.loads(body)["detail"]
    assert server.grader.visits == {}


@pytest.mark.parametrize("task_id", ["../one", "/etc/passwd", "one/../one", "one\x00", "\ud800", "", "x" * 100_000])
async def test_tricks_in_a_task_id(dataset: Path, tmp_path: Path, task_id: str) -> None:
    async with served(dataset, state=tmp_path / "state") as server:
        reply = await server.verify(task_id=task_id)
    assert (reply.status, reply.json()["field"]) == (404, "task_id")
    assert len(reply.body) < 1000


async def test_a_field_that_the_task_has_too(dataset: Path, tmp_path: Path) -> None:
    async with served(dataset, state=tmp_path / "state") as server:
        same = await server.verify(expected=3)
        other = await server.verify(expected=True)
    assert same.status == 200
    assert (other.status, other.json()["field"]) == (422, "expected")


async def test_a_body_that_is_too_large(dataset: Path, tmp_path: Path) -> None:
    limits = Limits(body_bytes=1000, snapshot_bytes=2000)

    async def chunks(size: int) -> AsyncIterator[bytes]:
        for _ in range(size // 100):
            yield b" " * 100

    async with served(dataset, state=tmp_path / "state", limits=limits) as server:
        for path, size in (("/verify", 1100), ("/aggregate_metrics", 1100), (f"/snapshots/{DIGEST}", 2100)):
            method = "PUT" if "snapshots" in path else "POST"
            said = await server.ask(method, path, data=b" " * size)
            not_said = await server.ask(method, path, data=chunks(size))
            assert (said.status, not_said.status) == (413, 413)
        # A length that is none, or a lie about a huge one, costs nothing.
        assert (await server.verify(answer="a")).status == 200
        assert server.server.service.held.bytes == 0


async def test_all_bodies_together_are_bounded(dataset: Path, tmp_path: Path) -> None:
    gate = asyncio.Event()

    async def wait() -> float:
        await gate.wait()
        return 1.0

    grader = ScriptedGrader(lambda *_: wait())
    async with served(dataset, grader, state=tmp_path / "state", limits=Limits(held_bytes=10_000)) as server:
        first = asyncio.create_task(server.verify(answer="a", padding="x" * 6000))
        await until(lambda: bool(grader.visits))
        refused = await server.verify(answer="b", padding="x" * 6000)
        gate.set()
        assert (await first).status == 200
        again = await server.verify(answer="b", padding="x" * 6000)
    assert (refused.status, refused.json()["kind"], again.status) == (503, "assay:not_admitted", 200)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"Authorization": "Bearer wrong"}, 401),
        ({"Authorization": f"Basic {TOKEN}"}, 401),
        ({"Authorization": TOKEN}, 401),
        ({"Authorization": f"Bearer {TOKEN[:-1]}"}, 401),
        ({"Authorization": f"Bearer {TOKEN}"}, 200),
        ({"Authorization": f"bearer {TOKEN}"}, 200),
    ],
)
async def test_tokens(dataset: Path, tmp_path: Path, headers: dict[str, str], status: int) -> None:
    async with served(dataset, state=tmp_path / "state", tokens=(TOKEN,)) as server:
        for method, path in (("POST", "/verify"), ("GET", "/tasks"), ("GET", "/metrics"), ("GET", "/openapi.json")):
            reply = await server.ask(method, path, headers=headers, data=b"{}" if method == "POST" else None)
            assert reply.status == status
            if status == 401:
                assert reply.headers["WWW-Authenticate"].startswith("Bearer")
        for path in ("/healthz", "/health", "/livez", "/readyz"):
            assert (await server.ask("GET", path)).status == 200


@pytest.mark.parametrize(
    ("host", "tokens", "refused"),
    [
        ("127.0.0.1", (), False),
        ("localhost", (), False),
        ("::1", (), False),
        ("0.0.0.0", (), True),
        ("::", (), True),
        ("192.0.2.1", (), True),
        ("0.0.0.0", (TOKEN,), False),
    ],
)
def test_an_address_that_others_reach_needs_a_token(host: str, tokens: tuple[str, ...], refused: bool) -> None:
    if refused:
        with pytest.raises(WrongArgument, match="a token is needed"):
            refuse_open_address(host, tokens)
    else:
        refuse_open_address(host, tokens)


async def test_a_port_that_is_taken(dataset: Path, tmp_path: Path) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(WrongArgument, match="choose another with --port"),
    ):
        await serve(Settings(dataset, port=taken.getsockname()[1], state=tmp_path / "state"))
    # Nothing is left locked.
    async with served(dataset, state=tmp_path / "state") as server:
        assert (await server.ask("GET", "/healthz")).status == 200


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b'{"resources_session_id": "s", "episode_id": "e"}', 200),
        (b'{"expected_answer": "4"}', 200),
        (b'{"resources_session_id": 7}', 422),
        (b"[]", 422),
        (b"{", 422),
    ],
)
@pytest.mark.parametrize("path", ["/seed_session", "/close_session"])
async def test_sessions(dataset: Path, tmp_path: Path, path: str, body: bytes, status: int) -> None:
    async with served(dataset, state=tmp_path / "state") as server:
        first, second = [await server.ask("POST", path, data=body) for _ in range(2)]
    assert (first.status, first.body) == (status, second.body)
    if status == 200:
        typed = {"resources_session_id": "s", "resources_tools": [], "sandbox_access": None}
        assert first.json() == (typed if b'"s"' in body else {})


async def test_schemathesis_finds_no_server_error(tmp_path: Path) -> None:
    """Requests made from the OpenAPI document, good and bad ones, each to a live server."""
    dataset = make_dataset(tmp_path / "dataset", tasks=("one", "two"))
    count = 300 if os.environ.get("ASSAY_SOAK") else 25
    async with served(dataset, state=tmp_path / "state", limits=Limits(body_bytes=100_000)) as server:
        document = (await server.ask("GET", "/openapi.json")).json()
        statuses = await asyncio.to_thread(_explore, document, server.server.url, count)
    assert {200, 404, 422} <= statuses
    assert max(statuses) < 500


def _explore(document: dict[str, Any], url: str, count: int) -> set[int]:
    schema = schemathesis.openapi.from_dict(document)
    statuses: set[int] = set()
    explored: set[tuple[str, str, str]] = set()
    operations = [result.ok() for result in schema.get_all_operations() if isinstance(result, Ok)]
    assert len(operations) == len([1 for item in document["paths"].values() for _ in item])
    for operation in operations:
        modes = [schemathesis.GenerationMode.POSITIVE]
        if any(True for _ in operation.iter_parameters()) or operation.body:
            modes.append(schemathesis.GenerationMode.NEGATIVE)
        for mode in modes:

            @settings(
                max_examples=count,
                deadline=None,
                database=None,
                derandomize=not os.environ.get("ASSAY_SOAK"),
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            )
            @given(case=operation.as_strategy(generation_mode=mode))
            def explore(case: Any) -> None:
                response = case.call(base_url=url, timeout=30)
                statuses.add(response.status_code)
                case.validate_response(response, checks=[not_a_server_error])

            try:
                explore()
            except Unsatisfiable:
                # Whatever a path holds is a text, as the document says.
                assert mode is schemathesis.GenerationMode.NEGATIVE
                assert not operation.body
            else:
                explored.add((operation.method.upper(), operation.path, mode.value))
    assert {("POST", "/verify", "negative"), ("PUT", "/snapshots/{digest}", "negative")} <= explored
    return statuses

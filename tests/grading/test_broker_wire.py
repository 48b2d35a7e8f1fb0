"""Whoever has got hold of the socket: each request is answered with what it asked for, a typed error, or an end; in time."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import socket
import struct
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.grading.asks import Refused, RunAsk, read_header, split_argv
from assay.grading.broker import IN_FLIGHT, Broker
from assay.grading.siblings import Setting
from assay.sandbox import Ended, ExecResult, Limits
from assay.sandbox.testing import Call, FakeProvider

MIB = 1 << 20


def header(**changes: Any) -> dict[str, Any]:
    """A whole header of a run without arguments but its program `x`; a field that is `...` is left out."""
    whole = {"assay": 1, "ask": "run", "argv_len": 2, "stdin_len": 0, "timeout_ms": 1000, **changes}
    return {name: value for name, value in whole.items() if value is not ...}


def request(blobs: bytes = b"x\0", **changes: Any) -> bytes:
    text = json.dumps(header(**changes)).encode()
    return struct.pack(">I", len(text)) + text + blobs


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    folder.mkdir()
    (folder / "given").write_text("given")
    return folder


Open = Callable[..., contextlib.AbstractAsyncContextManager[Broker]]


@pytest.fixture
def listening(workspace: Path) -> Open:
    @contextlib.asynccontextmanager
    async def listening(provider: FakeProvider, *, request_s: float = 20.0) -> AsyncIterator[Broker]:
        setting = Setting(provider, None, "/app", workspace, Limits(), {"FROM": "task"})
        async with Broker(setting, request_s=request_s) as broker:
            broker.begin(600)
            yield broker
        assert provider.living == 0
        assert not broker.mount.source.exists()

    return listening


async def connect(broker: Broker) -> socket.socket:
    peer = socket.socket(socket.AF_UNIX)
    peer.setblocking(False)
    await asyncio.get_running_loop().sock_connect(peer, str(broker.mount.source))
    return peer


async def read_all(peer: socket.socket) -> bytes:
    content = b""
    with contextlib.suppress(ConnectionError):
        while chunk := await asyncio.get_running_loop().sock_recv(peer, MIB):
            content += chunk
    return content


async def talk(broker: Broker, *parts: bytes, end: bool = False) -> tuple[dict[str, Any] | None, bytes]:
    """The answer's header (None: the connection was ended without one) and the blobs."""
    with await connect(broker) as peer:
        with contextlib.suppress(ConnectionError):
            for part in parts:
                await asyncio.get_running_loop().sock_sendall(peer, part)
        if end:
            peer.shutdown(socket.SHUT_WR)
        content = await asyncio.wait_for(read_all(peer), 60)
    if not content:
        return None, b""
    (length,) = struct.unpack(">I", content[:4])
    return json.loads(content[4 : 4 + length]), content[4 + length :]


def echo(call: Call) -> ExecResult:
    return ExecResult(
        Ended.EXITED, 0, stdout=b"|".join(map(os.fsencode, call.argv)) + b"<" + call.stdin, stdout_bytes=1
    )


async def test_a_whole_run(listening: Open) -> None:
    def script(call: Call) -> ExecResult:
        folder = call.folders["/app"]
        seen = {path.name: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
        (folder / "sub" / "out").write_bytes(b"\0\xff")
        assert (call.env["FROM"], call.env["A"], call.cwd) == ("task", "b", "/app/sub")
        assert seen == {"given": b"given", "f": b"file", "g": b""}
        return ExecResult(Ended.EXITED, 3, stdout=call.stdin, stderr=call.argv[1].encode(), stdout_bytes=9)

    async with listening(FakeProvider(script)) as broker:
        files = [{"path": "f", "len": 4}, {"path": "d/g", "len": 0}]
        asked = request(
            b"p\0arg\0" + b"input" + b"file",
            argv_len=6,
            stdin_len=5,
            files=files,
            outputs=["out", "none"],
            cwd="/app/sub",
            env={"A": "b"},
            memory_mb=64,
            session=None,
        )
        answer, blobs = await talk(broker, asked)
    assert answer == {
        "assay": 1,
        "ended": "exited",
        "code": 3,
        "signal": None,
        "stdout_len": 5,
        "stderr_len": 3,
        "truncated": True,
        "outputs": [{"path": "out", "len": 2}, {"path": "none", "len": None}],
        "wall_ms": 0.0,
        "cpu_ms": None,
        "isolation": "sandbox",
    }
    assert blobs == b"input" + b"arg" + b"\0\xff"


BAD = [
    ({"assay": 2}, "unsupported"),
    ({"assay": True}, "unsupported"),
    ({"assay": ...}, "unsupported"),
    ({"ask": "judge"}, "malformed"),
    ({"ask": "guess"}, "unsupported"),
    ({"ask": None}, "unsupported"),
    ({"ask": ["run"]}, "unsupported"),
    ({"arg": 1}, "malformed"),
    ({"argv_len": ...}, "malformed"),
    ({"argv_len": 0}, "malformed"),
    ({"argv_len": -1}, "malformed"),
    ({"argv_len": 2.0}, "malformed"),
    ({"argv_len": True}, "malformed"),
    ({"argv_len": "2"}, "malformed"),
    ({"argv_len": 128 * 1024 + 1}, "too_large"),
    ({"stdin_len": 16 * MIB + 1}, "too_large"),
    ({"stdin_len": 10**400}, "too_large"),
    ({"stdin_len": None}, "malformed"),
    ({"timeout_ms": 0}, "malformed"),
    ({"timeout_ms": ...}, "malformed"),
    ({"timeout_ms": 10**30}, "too_large"),
    ({"memory_mb": 1}, "malformed"),
    ({"memory_mb": "64"}, "malformed"),
    ({"env": []}, "malformed"),
    ({"env": {"A": 1}}, "malformed"),
    ({"env": {"": "x"}}, "malformed"),
    ({"env": {"A=B": "x"}}, "malformed"),
    ({"env": {"A": "\0"}}, "malformed"),
    ({"env": {"A": "\ud800"}}, "malformed"),
    ({"cwd": "app"}, "malformed"),
    ({"cwd": "/"}, "malformed"),
    ({"cwd": "/app/../etc"}, "malformed"),
    ({"cwd": "/application"}, "malformed"),
    ({"cwd": "/app/\ud800"}, "malformed"),
    ({"cwd": "/app/\0"}, "malformed"),
    ({"cwd": "/app/" + "x" * 300}, "too_large"),
    ({"cwd": 1}, "malformed"),
    ({"files": {}}, "malformed"),
    ({"files": [["f", 1]]}, "malformed"),
    ({"files": [{"path": "f"}]}, "malformed"),
    ({"files": [{"path": "f", "len": -1}]}, "malformed"),
    ({"files": [{"path": "f", "len": 1, "mode": 7}]}, "malformed"),
    ({"files": [{"path": "/f", "len": 1}]}, "malformed"),
    ({"files": [{"path": "../f", "len": 1}]}, "malformed"),
    ({"files": [{"path": "a/../../f", "len": 1}]}, "malformed"),
    ({"files": [{"path": "", "len": 1}]}, "malformed"),
    ({"files": [{"path": "f/", "len": 1}]}, "malformed"),
    ({"files": [{"path": "a\0b", "len": 1}]}, "malformed"),
    ({"files": [{"path": "\ud800", "len": 1}]}, "malformed"),
    ({"files": [{"path": 7, "len": 1}]}, "malformed"),
    ({"files": [{"path": "x" * 256, "len": 1}]}, "too_large"),
    ({"files": [{"path": "ü" * 200, "len": 1}]}, "too_large"),
    ({"files": [{"path": "/".join("x" * 65), "len": 1}]}, "too_large"),
    ({"files": [{"path": "/".join(["x" * 200] * 6), "len": 1}]}, "too_large"),
    ({"files": [{"path": "f", "len": 1}, {"path": "./f", "len": 1}]}, "malformed"),
    ({"files": [{"path": "f", "len": 1}, {"path": "f/g", "len": 1}]}, "malformed"),
    ({"files": [{"path": str(n), "len": 1} for n in range(65)]}, "too_large"),
    ({"files": [{"path": "f", "len": 64 * MIB + 1}]}, "too_large"),
    ({"files": [{"path": "f", "len": 40 * MIB}, {"path": "g", "len": 40 * MIB}]}, "too_large"),
    ({"outputs": "f"}, "malformed"),
    ({"outputs": ["../f"]}, "malformed"),
    ({"outputs": [str(n) for n in range(65)]}, "too_large"),
    ({"outputs": ["f", "f"]}, "malformed"),
    ({"session": ""}, "malformed"),
    ({"session": "x" * 101}, "malformed"),
    ({"session": 1}, "malformed"),
]


@pytest.mark.parametrize(("changes", "error"), BAD, ids=lambda value: str(value)[:60])
def test_a_bad_header_is_refused_with_a_type(changes: dict[str, Any], error: str) -> None:
    with pytest.raises(Refused) as caught:
        read_header(json.dumps(header(**changes)).encode(), "/app")
    assert (caught.value.error, bool(caught.value.reason)) == (error, True)


def test_a_good_header_is_taken() -> None:
    assert read_header(json.dumps(header(cwd="/app/./a//b/", outputs=["./x//y"])).encode(), "/app") == RunAsk(
        2, 0, "/app/a/b", 1.0, {}, None, (), ("x/y",), None
    )
    assert split_argv(b"a\0\0\xff\0") == ["a", "", "\udcff"]


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"1", b"\xff\xfe", b"NaN", b'{"assay":1,"assay":1}', b"[" * 60_000]
)
def test_what_is_no_header_is_refused(content: bytes) -> None:
    with pytest.raises(Refused):
        read_header(content, "/app")


@pytest.mark.parametrize("blob", [b"ab", b"\0a\0", b"a\0b"])
def test_bad_arguments_are_refused(blob: bytes) -> None:
    with pytest.raises(Refused):
        split_argv(blob)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
FIELD = st.sampled_from(sorted({*header(), "env", "cwd", "memory_mb", "files", "outputs", "session"}))


@given(st.dictionaries(FIELD, JSON, max_size=3))
@settings(max_examples=1_000, deadline=None)
def test_any_header_is_taken_or_refused(changes: dict[str, Any]) -> None:
    with contextlib.suppress(Refused):
        ask = read_header(json.dumps(header(**changes)).encode(), "/app")
        assert ask.stdin_length <= 16 * MIB
        assert ask.cwd == "/app" or ask.cwd.startswith("/app/")


WRONG = [
    (b"\xff\xff\xff\xff", "too_large"),
    (struct.pack(">I", 64 * 1024 + 1), "too_large"),
    (struct.pack(">I", 0), "malformed"),
    (struct.pack(">I", 3) + b"xyz", "malformed"),
    (request(b"\0\0"), "malformed"),
    (request(ask="judge"), "malformed"),
    (request(ask="guess"), "unsupported"),
]


@pytest.mark.parametrize(("sent", "error"), WRONG)
async def test_a_bad_request_is_answered_with_a_type(listening: Open, sent: bytes, error: str) -> None:
    async with listening(FakeProvider(echo)) as broker:
        answer, blobs = await talk(broker, sent)
        assert answer is not None
        assert (set(answer), answer["error"], blobs) == ({"assay", "error", "reason"}, error, b"")
        good, _ = await talk(broker, request())
        assert good is not None
        assert good["code"] == 0
        assert broker.fault is None


@pytest.mark.parametrize("length", [0, 1, 4, 60, 90])
async def test_a_request_that_breaks_off_ends_the_connection(listening: Open, length: int) -> None:
    async with listening(FakeProvider(echo)) as broker:
        assert await talk(broker, request(b"x\0", stdin_len=100)[:length], end=True) == (None, b"")
        good, _ = await talk(broker, request())
        assert good is not None
        assert broker.fault is None


@pytest.mark.parametrize("sent", [b"", b"\0", request(stdin_len=100), request(files=[{"path": "f", "len": 100}])])
async def test_who_sends_slowly_is_cut_off(listening: Open, sent: bytes) -> None:
    async with listening(FakeProvider(echo), request_s=0.2) as broker:
        answers = await asyncio.gather(*(talk(broker, sent) for _ in range(2 * IN_FLIGHT)))
        assert {answer["error"] for answer, _ in answers if answer is not None} == {"limit"}
        assert broker.fault is None


async def test_who_never_takes_the_answer_is_cut_off(listening: Open) -> None:
    def flood(call: Call) -> ExecResult:
        size = 16 * MIB if call.stdin else 3
        return ExecResult(Ended.EXITED, 0, stdout=bytes(size), stdout_bytes=size)

    async with listening(FakeProvider(flood), request_s=1.0) as broker, contextlib.AsyncExitStack() as stack:
        peers: list[socket.socket] = []
        for _ in range(IN_FLIGHT):
            peer = stack.enter_context(await connect(broker))
            peers.append(peer)
            await asyncio.get_running_loop().sock_sendall(peer, request(b"x\0much", stdin_len=4))
        answer, blobs = await talk(broker, request())
        assert answer is not None
        assert (len(blobs), answer["stdout_len"]) == (3, 3)
        for peer in peers:
            assert len(await read_all(peer)) < 16 * MIB


async def test_random_bytes_bring_nothing_down(listening: Open) -> None:
    chance = random.Random(1)
    whole = request(b"x\0" + b"input", stdin_len=5, files=[{"path": "f", "len": 0}], outputs=["f"])
    async with listening(FakeProvider(echo), request_s=1.0) as broker:
        for _ in range(300):
            sent = bytearray(whole)
            for _ in range(chance.randint(1, 8)):
                sent[chance.randrange(len(sent))] = chance.randrange(256)
            cut = chance.choice([len(sent), chance.randrange(len(sent))])
            answer, _ = await talk(broker, bytes(sent[:cut]), end=chance.random() < 0.97)
            assert answer is None or "error" in answer or answer["ended"] == "exited"
        answer, _ = await talk(broker, whole)
        assert answer is not None
        assert answer["ended"] == "exited"
        assert broker.fault is None


async def test_four_run_at_once_and_the_fifth_waits(listening: Open) -> None:
    running, most, go = 0, 0, asyncio.Event()

    async def hold(call: Call) -> ExecResult:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == IN_FLIGHT:
            go.set()
        await go.wait()
        await asyncio.sleep(0)
        running -= 1
        return ExecResult(Ended.EXITED, 0)

    async with listening(FakeProvider(hold)) as broker:
        answers = await asyncio.gather(*(talk(broker, request()) for _ in range(12)))
    assert [answer["ended"] for answer, _ in answers if answer is not None] == ["exited"] * 12
    assert (most, broker.runs) == (IN_FLIGHT, 12)


@pytest.mark.parametrize("session", [None, "s"])
@pytest.mark.parametrize("how", ["close", "more"])
async def test_hanging_up_ends_the_run(listening: Open, how: str, session: str | None) -> None:
    started, ended = asyncio.Event(), asyncio.Event()

    async def hold(call: Call) -> ExecResult:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        raise AssertionError

    provider = FakeProvider(hold)
    async with listening(provider) as broker:
        with await connect(broker) as peer:
            await asyncio.get_running_loop().sock_sendall(peer, request(session=session))
            await asyncio.wait_for(started.wait(), 30)
            if how == "more":
                await asyncio.get_running_loop().sock_sendall(peer, request())
                await asyncio.wait_for(ended.wait(), 30)
        await asyncio.wait_for(ended.wait(), 30)
        provider.script = echo
        answer, _ = await talk(broker, request(session=session))
        assert answer is not None
        assert answer["code"] == 0
        assert broker.fault is None


async def test_the_request_after_the_last_is_refused(listening: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("assay.grading.broker.REQUESTS_MAX", 20)
    async with listening(FakeProvider(echo)) as broker:
        answers = [(await talk(broker, request()))[0] or {} for _ in range(22)]
    assert [answer.get("error") for answer in answers] == [None] * 20 + ["limit"] * 2


async def test_a_run_gets_no_more_time_than_is_left(listening: Open) -> None:
    provider = FakeProvider(echo)
    async with listening(provider) as broker:
        broker.begin(50)
        await talk(broker, request(timeout_ms=10**9))
        await talk(broker, request(timeout_ms=10_000))
        broker.begin(-1)
        answer, _ = await talk(broker, request())
    assert [call.timeout_s for call in provider.calls] == [pytest.approx(50, abs=5), 10.0]
    assert answer is not None
    assert answer["ended"] == "wall_limit"


async def test_a_lane_is_used_again_and_a_session_apart(listening: Open) -> None:
    made: list[Any] = []

    class Counting(FakeProvider):
        async def create(self, spec: Any) -> Any:
            made.append(spec)
            return await super().create(spec)

    async with listening(Counting(echo)) as broker:
        for changes in (
            {},
            {},
            {"memory_mb": 64},
            {"memory_mb": 64},
            {"session": "a"},
            {"session": "a"},
            {"session": "b"},
        ):
            answer, _ = await talk(broker, request(**changes))
            assert answer is not None
            assert answer["code"] == 0
    assert [type(spec.mounts[0]).__name__ for spec in made] == ["Overlay", "Overlay", "Writable", "Writable"]
    assert not any(spec.network for spec in made)
    assert [spec.limits.memory_bytes for spec in made] == [None, 64 * MIB, None, None]


async def test_a_stranger_is_not_served(listening: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    async with listening(FakeProvider(echo)) as broker:
        assert (await talk(broker, request()))[0] is not None
        if os.geteuid() == 0:
            os.chown(broker.mount.source, 65_533, 65_533)
        else:
            monkeypatch.setattr("assay.grading.broker._CREDENTIALS", struct.Struct("Iii"))
        assert await talk(broker, request()) == (None, b"")
        assert broker.runs == 1


async def test_a_bug_of_ours_is_seen_and_not_told(
    listening: Open, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with listening(FakeProvider(echo)) as broker:
        monkeypatch.setattr(broker._siblings, "run", None)
        assert await talk(broker, request()) == (None, b"")
        await asyncio.sleep(0)
        assert broker.fault is not None
        assert broker.fault.kind == "provider_unavailable"
    assert "the broker failed" in caplog.text

from __future__ import annotations

import asyncio
import socket
from typing import Any

import aiohttp
import pytest

from assay.client import JudgeEndpoint, Reply, ServerClient, StatusError, may_be_delivered
from assay.client.delivery import mark_delivery
from assay.client.server_client import _kept_alive
from assay.client.testing import ScriptedVerifier, faults, refusing, silent
from assay.runs import AgentSettings
from jumping import run


async def failed(client: ServerClient, name: str = "v", json: Any = None) -> Exception:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - each caller says which
        await client.post(name, "/verify", json={} if json is None else json)
    return caught.value


@pytest.mark.parametrize(
    ("fault", "request_bytes"),
    [
        (faults.no_reply(), 0),
        (faults.no_reply("reset"), 0),
        (faults.no_reply("stall"), 0),
        (faults.cut_body(), 0),
        (faults.no_http(), 0),
        (faults.upload_cut(), 0),
        (faults.upload_stalls(), 8_000_000),
        (faults.cut_body(5, "fin", "close"), 0),
    ],
    ids=str,
)
def test_evidence_that_it_may_have_been_delivered(fault: faults.Fault, request_bytes: int) -> None:
    async def main() -> Exception:
        async with ScriptedVerifier([fault]) as verifier, ServerClient({"v": verifier.url}) as client:
            return await failed(client, json={"x": "x" * request_bytes})

    assert may_be_delivered(run(main())) is True


@pytest.mark.parametrize(("door", "scheme"), [(refusing, "http"), (silent, "https")])
def test_evidence_that_it_never_was(door: Any, scheme: str) -> None:
    async def main() -> Exception:
        with door() as address:
            async with ServerClient({"v": f"{scheme}://{address}"}) as client:
                return await failed(client)

    assert may_be_delivered(run(main())) is False


def test_evidence_goes_before_the_class() -> None:
    """A limit on the whole that strikes while it connects: the class alone says that it may have been delivered."""

    async def main() -> Exception:
        with silent() as address:
            async with ServerClient({"v": f"https://{address}"}, connect_s=50, total_s=10) as client:
                return await failed(client)

    error = run(main())
    assert isinstance(error, TimeoutError)
    assert may_be_delivered(error) is False


def test_a_mark_holds_whatever_the_class() -> None:
    error = aiohttp.ConnectionTimeoutError()
    assert may_be_delivered(error) is False
    mark_delivery(error, True)
    assert may_be_delivered(error) is True


async def test_what_goes_along() -> None:
    async with (
        ScriptedVerifier() as verifier,
        ServerClient({"v": verifier.url + "/"}, token="secret") as client,
        ServerClient({"v": verifier.url}) as plain,
    ):
        reply = await client.post("v", "/verify", json={"a": "ä"}, headers={"Cookie": "session=1"})
        await plain.post("v", "/verify", json={})
        sent, bare = verifier.posts
    assert reply.json()["a"] == "ä"
    assert reply.headers["Content-type"] == "application/json"
    assert (sent.headers["authorization"], sent.headers["cookie"]) == ("Bearer secret", "session=1")
    assert sent.headers["content-type"] == "application/json"
    assert "authorization" not in bare.headers
    # Neither a key nor a deadline outside of a verify call.
    assert not {"idempotency-key", "x-assay-deadline-s"} & set(sent.headers)


async def test_the_deadline_goes_along() -> None:
    from assay.client import verify_with_transport_retry

    async with ScriptedVerifier() as verifier, ServerClient({"v": verifier.url}) as client:
        await verify_with_transport_retry(lambda: client.post("v", "/verify", json={}), client, "v", timeout_s=100)
        await verify_with_transport_retry(lambda: client.post("v", "/verify", json={}), client, "v")
    first, second = verifier.posts
    assert 0 < float(first.headers["x-assay-deadline-s"]) <= 100
    assert "x-assay-deadline-s" not in second.headers
    assert len(first.headers["idempotency-key"]) == len(second.headers["idempotency-key"]) == 32
    assert first.headers["idempotency-key"] != second.headers["idempotency-key"]


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
async def test_no_redirect_is_followed(code: int) -> None:
    async with (
        ScriptedVerifier([faults.redirect_loop(code)] * 3) as verifier,
        ServerClient({"v": verifier.url}) as client,
    ):
        assert (await client.post("v", "/verify", json={})).status == code
    assert len(verifier.posts) == 1


async def test_no_connection_is_used_twice() -> None:
    """A kept one may be cut by its server at the very moment of the next request."""
    async with ScriptedVerifier() as verifier, ServerClient({"v": verifier.url}) as client:
        await client.get("v", "/reverify_mode")
        await client.post("v", "/verify", json={})
        await client.post("v", "/verify", json={})
    assert [post.headers["connection"] for post in verifier.posts] == ["close", "close"]


def test_a_late_reply_is_never_the_next_requests() -> None:
    async def main() -> tuple[Exception, Reply]:
        async with (
            ScriptedVerifier([faults.late_reply()]) as verifier,
            ServerClient({"v": verifier.url}) as client,
        ):
            first = await failed(client, json={"number": 1})
            return first, await client.post("v", "/verify", json={"number": 2})

    first, second = run(main())
    assert isinstance(first, aiohttp.SocketTimeoutError)
    assert second.json()["number"] == 2


def test_no_cookie_is_kept() -> None:
    async def main() -> list[str | None]:
        async def strike(exchange: Any) -> None:
            await exchange.write(exchange.answer.head(set_cookie="session=1") + exchange.answer.body)

        async with (
            ScriptedVerifier([faults.Fault("cookie", strike)]) as verifier,
            ServerClient({"v": verifier.url}) as client,
        ):
            await client.post("v", "/verify", json={})
            await client.post("v", "/verify", json={})
        return [post.headers.get("cookie") for post in verifier.posts]

    assert run(main()) == [None, None]


@pytest.mark.parametrize("fault", [faults.cut_status(500), faults.cut_status(404)], ids=str)
async def test_the_status_of_a_cut_refusal_stands(fault: faults.Fault) -> None:
    async with ScriptedVerifier([fault]) as verifier, ServerClient({"v": verifier.url}) as client:
        reply = await client.post("v", "/verify", json={})
    assert reply.body == b'{"d'
    with pytest.raises(StatusError, match=r'HTTP [45]0.: \{"d'):
        reply.raise_for_status()


@pytest.mark.parametrize(
    ("status", "headers", "body", "error"),
    [
        (200, {}, b"{}", None),
        (200, {}, b'{"reward": 1', aiohttp.ClientPayloadError),
        (200, {}, b"", aiohttp.ClientPayloadError),
        (200, {"Content-Encoding": "gzip", "Content-Length": "9"}, b'{"reward": 1', aiohttp.ClientPayloadError),
        (200, {"Content-Encoding": "identity", "Content-Length": "9"}, b'{"reward": 1', ValueError),
        (200, {"Content-Length": "12"}, b'{"reward": 1', ValueError),
        (200, {"Transfer-Encoding": "chunked"}, b'{"reward": 1', ValueError),
        (200, {"Content-Length": "9"}, b"[" * 100_000, ValueError),
        (502, {}, b"<html>", ValueError),
    ],
)
def test_a_body_that_does_not_parse(
    status: int, headers: dict[str, str], body: bytes, error: type[Exception] | None
) -> None:
    reply = Reply(status, headers, body)
    if error is None:
        assert reply.json() == {}
        return
    with pytest.raises(error) as caught:
        reply.json()
    assert may_be_delivered(caught.value) is True


async def test_text_may_end_with_its_connection() -> None:
    async def strike(exchange: Any) -> None:
        answer = type(exchange.answer)(200, b"# HELP metrics\n")
        await exchange.write(answer.head(content_length=None, content_type="text/plain") + answer.body)
        exchange.close()

    async with (
        ScriptedVerifier(probe_script=[faults.Fault("text", strike)]) as verifier,
        ServerClient({"v": verifier.url}) as client,
    ):
        assert (await client.get("v", "/metrics")).body == b"# HELP metrics\n"


async def test_more_than_a_megabyte_each_way() -> None:
    async with ScriptedVerifier() as verifier, ServerClient({"v": verifier.url}) as client:
        reply = await client.post("v", "/verify", json={"long": "x" * 3_000_000})
    assert len(reply.json()["long"]) == 3_000_000


async def test_wrong_use_is_said() -> None:
    client = ServerClient({"verifier": "http://127.0.0.1:1", "bad": "http://host:port"})
    with pytest.raises(RuntimeError, match="async with"):
        await client.post("verifier", "/verify", json={})
    async with client:
        with pytest.raises(KeyError, match="no server is named 'judge'; there are bad, verifier"):
            await client.get("judge", "/")
        with pytest.raises(aiohttp.InvalidURL):
            await client.get("bad", "/")
        with pytest.raises(ValueError, match="not JSON compliant"):
            await client.post("verifier", "/verify", json={"reward": float("nan")})


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("127.0.0.1:8080", "http://127.0.0.1:8080"),
        ("verifier:80/v1", "http://verifier:80/v1"),
        ("localhost", "http://localhost"),
        ("//host:1", "http://host:1"),
        ("http:host", "http://host"),
        ("http:/host:1", "http://host:1"),
        ("https:///host", "https://host"),
        ("[::1]:8080", "http://[::1]:8080"),
        ("ftp://host", None),
        ("", None),
        ("http://", None),
        ("https:///", None),
        ("two words", None),
    ],
)
def test_what_is_no_url_is_refused_with_the_one_that_was_meant(given: str, meant: str | None) -> None:
    """Wherever one is given: to the client, to a judge, to the agent that is a model, by name or in a name's place."""
    for make in (
        lambda: ServerClient({"verifier": "http://ok", "other": given}),
        lambda: JudgeEndpoint(given),
        lambda: AgentSettings("model", model="m", base_url=given or " "),
    ):
        with pytest.raises(ValueError, match="must be a URL that begins with http:// or https://") as caught:
            make()
        assert str(caught.value).endswith(f"did you mean {meant!r}?") == (meant is not None)
    with pytest.raises(ValueError, match="give URLs by name") as caught:
        ServerClient(given)  # type: ignore[arg-type] # the mistake
    assert f'{{"verifier": "{meant or given}"}}' in str(caught.value)


def test_a_connection_is_kept_alive() -> None:
    with _kept_alive((socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", 1))) as made:
        assert made.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        gone_after_s = made.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) + made.getsockopt(
            socket.IPPROTO_TCP, socket.TCP_KEEPINTVL
        ) * made.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT)
        assert gone_after_s == 90


def test_hundreds_at_once_wait_for_no_connection_of_anothers() -> None:
    """With a pool of its usual hundred, the others would have been cut off by the limit on connecting."""

    async def main() -> int:
        gate = asyncio.Event()
        waiting = 0

        async def grade(request: Any) -> Any:
            nonlocal waiting
            waiting += 1
            if waiting == 200:
                gate.set()
            await gate.wait()
            return {"reward": 1.0}

        async with ScriptedVerifier(grade=grade) as verifier, ServerClient({"v": verifier.url}) as client:
            replies = await asyncio.gather(*(client.post("v", "/verify", json={}) for _ in range(200)))
        return sum(reply.ok for reply in replies)

    assert run(main()) == 200

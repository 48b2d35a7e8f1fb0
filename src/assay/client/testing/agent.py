"""A small agent server: an answer is made, verified over HTTP, and returned, whatever became of the verification."""

from __future__ import annotations

import asyncio
import inspect
import random as _random
from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import Any

from aiohttp import web

from assay.client.server_client import ServerClient
from assay.client.verify_call import masked_verify_failure, verify_with_transport_retry
from assay.failures import HEADER_NAME, encode_header, event_for, failure_report_for

MakeAnswer = Callable[[Mapping[str, Any]], "Mapping[str, Any] | Awaitable[Mapping[str, Any]]"]


class AgentServer:
    """An agent with one route, `POST /run`, on the loopback. An async context manager: it listens inside the block.

    The row of a request (a JSON object) goes to `make_answer`, which returns the response; the row with that response is
    verified at the server `server_name` of `client`, tried again where that is harmless, and what the verifier replied is
    the reply. When there is no verdict the reply is the row with its response as a masked zero, never an error: an answer
    that took hours is not dropped because its grading failed.
    """

    def __init__(
        self,
        make_answer: MakeAnswer,
        client: ServerClient,
        server_name: str,
        *,
        regradable: bool = True,
        timeout_s: float | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        random: Callable[[], float] = _random.random,
    ) -> None:
        """`client` is entered by the caller. The others are those of the verify call."""
        self._make_answer = make_answer
        self._client = client
        self._server_name = server_name
        self._regradable = regradable
        self._timeout_s = timeout_s
        self._sleep = sleep
        self._random = random
        self._runner: web.AppRunner | None = None
        self.url = ""
        """Where it listens; known inside the block."""

    async def __aenter__(self) -> AgentServer:
        """Listen on a port of the system's choice."""
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_post("/run", self._run)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop listening, end what runs."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _run(self, request: web.Request) -> web.Response:
        try:
            row = await request.json()
        except ValueError:
            row = None
        if not isinstance(row, dict):
            return web.json_response({"detail": "the body must be a JSON object: the row of a task"}, status=422)
        try:
            made = self._make_answer(row)
            response = await made if inspect.isawaitable(made) else made
        except Exception as error:
            return self._masked(row, event_for(error, boundary="agent", stage="agent"))
        answer = {**row, "response": response}
        try:
            return web.json_response(await self._verify(answer))
        except Exception as error:
            return self._masked(answer, error)

    async def _verify(self, answer: Mapping[str, Any]) -> Any:
        async def call() -> Any:
            reply = await self._client.post(self._server_name, "/verify", json=answer)
            reply.raise_for_status()
            return reply.json()

        return await verify_with_transport_retry(
            call,
            self._client,
            self._server_name,
            timeout_s=self._timeout_s,
            sleep=self._sleep,
            random=self._random,
        )

    def _masked(self, answer: Mapping[str, Any], failure: Exception) -> web.Response:
        row = masked_verify_failure(answer, failure, regradable=self._regradable)
        return web.json_response(row, headers={HEADER_NAME: encode_header(failure_report_for(failure))})

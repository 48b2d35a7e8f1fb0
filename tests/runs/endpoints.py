"""An OpenAI-compatible endpoint for tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer


@dataclass
class Endpoint:
    """What it was asked, and how it answers."""

    url: str = ""
    status: int = 200
    text: str = "yes"
    asked: list[Any] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)

    async def answer(self, request: web.Request) -> web.Response:
        self.asked.append(await request.json())
        self.keys.append(request.headers.get("Authorization"))
        if self.status != 200:
            return web.json_response({"error": {"message": "not now"}}, status=self.status)
        message = {
            "choices": [{"message": {"content": self.text}}],
            "usage": {"prompt_tokens": 3, "completion_tokens": 1},
        }
        return web.json_response(message)


@asynccontextmanager
async def endpoint(*, port: int | None = None, **how: Any) -> AsyncIterator[Endpoint]:
    made = Endpoint(**how)
    app = web.Application()
    app.router.add_post("/v1/chat/completions", made.answer)
    async with TestServer(app, port=port) as server:
        made.url = str(server.make_url("/v1"))
        yield made

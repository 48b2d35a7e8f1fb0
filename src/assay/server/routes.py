"""The routes beside `POST /verify`."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.openapi.utils import get_openapi
from starlette.exceptions import HTTPException
from starlette.responses import Response

from assay.tasks import Task, strict_json

from .document import (
    DIGEST,
    Capabilities,
    MetricsBody,
    MetricsReply,
    SessionBody,
    SessionReply,
    TaskEntry,
    TaskList,
    body_of,
    in_path,
    problems,
    replies,
    reply_of,
    schemas,
    verify_operation,
)
from .page import HEADERS, page_of
from .refusal import Refused, malformed
from .replies import json_response, refusal_response
from .request import is_digest
from .service import Service
from .sums import aggregate

_TEXT: Final = {"text/plain": {"schema": {"type": "string"}}}


def make_routes(service: Service) -> FastAPI:
    """The application of all routes but `POST /verify`; its OpenAPI document has that one, too."""
    # FastAPI's own pages load their scripts from the network.
    app = FastAPI(
        title="Assay verifier server", version=service.version, redirect_slashes=False, docs_url=None, redoc_url=None
    )
    app.add_exception_handler(Refused, _refused)
    app.add_exception_handler(HTTPException, _no_route)
    _add_probes(app, service)
    _add_facts(app, service)
    _add_protocol(app, service)
    _add_kept(app, service)
    _add_page(app)
    app.openapi = lambda: _document(app, service)  # type: ignore[method-assign] # how FastAPI wants it
    return app


def _add_probes(app: FastAPI, service: Service) -> None:
    async def alive() -> Response:
        return json_response({"status": "ok"})

    for path in ("/healthz", "/health", "/livez"):
        app.get(path, summary="Liveness", include_in_schema=path == "/healthz", response_model=None)(alive)

    @app.get("/readyz", summary="Whether it accepts work", responses=problems(503), response_model=None)
    async def ready() -> Response:
        if service.verifications.admission.open:
            return json_response({"status": "ready"})
        return json_response({"detail": "the server is stopping"}, 503, {"Retry-After": "5"})

    @app.get("/metrics", summary="For Prometheus", responses=replies({"content": _TEXT}, 401), response_model=None)
    async def metrics() -> Response:
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


def _add_facts(app: FastAPI, service: Service) -> None:
    mode = {"type": "string", "enum": ["stateless", "unsupported", "unknown"]}

    @app.get(
        "/reverify_mode",
        summary="May the same answer be graded again",
        responses=replies({"content": {"application/json": {"schema": mode}}}, 401),
        response_model=None,
    )
    async def reverify_mode() -> Response:
        return json_response(service.catalogue.reverify_mode)

    @app.get(
        "/capabilities",
        summary="What a client may rely on",
        responses=replies(reply_of(Capabilities), 401),
        response_model=None,
    )
    async def capabilities() -> Response:
        return json_response(
            {
                "idempotency": True,
                "max_body_bytes": service.limits.body_bytes,
                "max_snapshot_bytes": service.limits.snapshot_bytes,
                "version": service.version,
            }
        )

    @app.get(
        "/tasks",
        summary="What can be graded",
        responses=replies(reply_of(TaskList), 401),
        response_model=None,
    )
    async def tasks() -> Response:
        entries, invalid = (
            [],
            [{"task_id": one.path.name, "problems": list(one.problems)} for one in service.catalogue.invalid],
        )
        for task_id in service.catalogue.ids:
            try:
                entries.append(_entry(service, await service.catalogue.find(task_id)))
            except Refused as refused:
                invalid.append({"task_id": task_id, "problems": [refused.detail]})
        return json_response({"tasks": entries, "invalid": invalid})

    @app.get(
        "/tasks/{task_id:path}",
        summary="One task",
        responses=replies(reply_of(TaskEntry), 401, 404, 409),
        openapi_extra=in_path("task_id"),
        response_model=None,
    )
    async def task(request: Request) -> Response:
        found = await service.catalogue.find(request.path_params["task_id"])
        return json_response(_entry(service, found))


def _add_protocol(app: FastAPI, service: Service) -> None:
    async def session(request: Request) -> Response:
        fields = await _object(request)
        named = fields.get("resources_session_id")
        if named is None:
            return json_response({})
        if not isinstance(named, str):
            raise malformed("resources_session_id", "must be a text")
        return json_response({"resources_session_id": named, "resources_tools": [], "sandbox_access": None})

    for path in ("/seed_session", "/close_session"):
        app.post(
            path,
            summary="Accepted; nothing is kept",
            responses=replies(reply_of(SessionReply), 401, 413, 422, 503),
            openapi_extra=body_of(SessionBody),
            response_model=None,
        )(session)

    @app.post(
        "/aggregate_metrics",
        summary="Means over graded rows",
        responses=replies(reply_of(MetricsReply), 401, 413, 422, 503),
        openapi_extra=body_of(MetricsBody),
        response_model=None,
    )
    async def aggregate_metrics(request: Request) -> Response:
        rows = (await _object(request)).get("verify_responses")
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise malformed("verify_responses", "must be a list of objects: replies of POST /verify")
        return json_response(await asyncio.to_thread(aggregate, rows))


def _add_kept(app: FastAPI, service: Service) -> None:
    @app.put(
        "/snapshots/{digest}",
        summary="Upload a workspace: a tar archive, named by the digest of its canonical manifest",
        responses=replies({}, 401, 413, 422, 503) | {201: {"description": "Kept; 200: it was here already"}},
        openapi_extra=in_path("digest", DIGEST)
        | {
            "requestBody": {
                "required": True,
                "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
            }
        },
        response_model=None,
    )
    async def put_snapshot(request: Request) -> Response:
        digest = _digest(request)
        if await service.uploads.has(digest):
            return json_response({"snapshot": digest})
        await service.uploads.put(digest, request.receive)
        return json_response({"snapshot": digest}, 201)

    @app.head(
        "/snapshots/{digest}",
        summary="Whether a workspace was uploaded",
        responses=replies({}, 401, 404, 422),
        openapi_extra=in_path("digest", DIGEST),
        response_model=None,
    )
    async def head_snapshot(request: Request) -> Response:
        digest = _digest(request)
        if not await service.uploads.has(digest):
            raise Refused(404, f"there is no {digest} here", field="digest")
        return Response()

    @app.get(
        "/verdicts/{verdict_id}",
        summary="A kept verdict",
        responses=replies({"content": {"application/json": {"schema": {"type": "object"}}}}, 401, 404),
        openapi_extra=in_path("verdict_id"),
        response_model=None,
    )
    async def verdict(request: Request) -> Response:
        found = await service.keys.verdict(request.path_params["verdict_id"])
        if found is None:
            raise _no_verdict()
        return Response(found.encode("ascii"), media_type="application/json")

    @app.get(
        "/verdicts/{verdict_id}/logs",
        summary="What the verifier printed: the last 256 KiB",
        responses=replies({"content": _TEXT}, 401, 404),
        openapi_extra=in_path("verdict_id"),
        response_model=None,
    )
    async def logs(request: Request) -> Response:
        found = await service.keys.log(request.path_params["verdict_id"])
        if found is None:
            raise _no_verdict()
        # Whatever a verifier or a submission printed must never be taken for a page of this server's.
        headers = {"X-Content-Type-Options": "nosniff", "Content-Security-Policy": "sandbox"}
        return Response(found, media_type="text/plain; charset=utf-8", headers=headers)


def _add_page(app: FastAPI) -> None:
    @app.get("/docs", include_in_schema=False, response_model=None)
    async def docs() -> Response:
        return Response(page_of(app.openapi()), media_type="text/html; charset=utf-8", headers=HEADERS)


def _entry(service: Service, task: Task) -> dict[str, Any]:
    return {
        "task_id": task.id,
        "task_digest": task.digest,
        "verifier_digest": task.verifier_digest,
        "reverify_mode": service.catalogue.mode_of(task),
        "reward_range": list(task.reward_range) if task.reward_range is not None else None,
    }


def _digest(request: Request) -> str:
    digest: str = request.path_params["digest"]
    if not is_digest(digest):
        raise malformed("digest", 'must be "sha256:" and 64 lower-case hex digits')
    return digest


async def _object(request: Request) -> dict[str, Any]:
    try:
        value = strict_json(await request.body())
    except ValueError as error:
        raise Refused(422, f"the body {error}") from None
    if not isinstance(value, dict):
        raise Refused(422, "the body must be a JSON object")
    return value


def _no_verdict() -> Refused:
    return Refused(404, "there is no such verdict here, or it is not kept any more", field="verdict_id")


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refused)  # noqa: S101 - what it was registered for
    return refusal_response(error)


async def _no_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101 - what it was registered for
    headers = dict(error.headers) if error.headers else None
    return json_response({"detail": str(error.detail)}, error.status_code, headers)


def _document(app: FastAPI, service: Service) -> dict[str, Any]:
    if app.openapi_schema is None:
        document = get_openapi(title=app.title, version=app.version, routes=app.routes)
        document["paths"]["/verify"] = {"post": verify_operation()}
        document.setdefault("components", {})["schemas"] = schemas()
        if service.tokens.needed:
            document["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
            document["security"] = [{"token": []}]
        app.openapi_schema = document
    return app.openapi_schema

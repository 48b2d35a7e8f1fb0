"""The commands of `docs/http.md`, run as they stand there."""

from __future__ import annotations

import html
import json
import os
import re
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from assay.cli.serve import command
from assay.server.app import Application
from assay.server.page import HEADERS, page_of
from serving import served

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "http.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[list[str]]:
    """The first block started; a bash in an empty folder for the others, where the port is the server's own."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    env = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "ASSAY_STATE": str(tmp_path / "state"),
    }
    first = BLOCKS[0].strip().replace("--port 8089", "--port 0")
    server = subprocess.Popen(["bash", "-c", f"exec {first}"], cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        assert select.select([server.stdout], [], [], 60)[0]
        port = re.search(r"http://127\.0\.0\.1:(\d+)", server.stdout.readline())
        assert port is not None
        outputs = []
        for block in BLOCKS[1:]:
            script = "set -euo pipefail\n" + block.replace(":8089", f":{port[1]}").replace(
                "curl -s", "curl -sS -w '\\n'"
            )
            done = subprocess.run(
                ["bash", "-c", script], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120
            )
            assert done.returncode == 0, done.stderr
            outputs.append(done.stdout)
        yield outputs
    finally:
        server.terminate()
        server.communicate()


def test_the_commands_do_what_the_page_says(shell: list[str]) -> None:
    facts, graded, uploaded, kept = [output.splitlines() for output in shell]
    assert "top-words" in {task["task_id"] for task in json.loads(facts[0])["tasks"]}
    assert (json.loads(facts[1]), json.loads(facts[2])["idempotency"]) == ("stateless", True)
    assert json.loads(graded[0])["reward"] == 1.0
    assert json.loads(uploaded[0])["snapshot"].startswith("sha256:")
    assert json.loads(uploaded[1])["reward"] == 0.0
    assert json.loads(kept[0]) == json.loads(graded[0])["verdict"]


async def test_the_page_of_routes_needs_no_network(dataset: Path, tmp_path: Path) -> None:
    """Every operation and schema is on it, and neither it nor any other page of the server asks for something elsewhere."""
    async with served(dataset, state=tmp_path / "state") as server:
        document = (await server.ask("GET", "/openapi.json")).json()
        replies = {
            path: await server.ask("GET", path)
            for path in {route.path for route in Application(server.server.service).routes.routes}
        }
    pages = {
        path: reply for path, reply in replies.items() if reply.headers.get("Content-Type", "").startswith("text/html")
    }
    assert set(pages) == {"/docs"}
    page = pages["/docs"]
    assert (page.status, page.headers["Content-Security-Policy"]) == (200, HEADERS["Content-Security-Policy"])
    text = page.body.decode()
    assert (
        re.findall(
            r"<(?:script|link|img|iframe|base|object|embed)\b|url\(|@import|(?:src|href)=[\"']?(?:\w+:|//)", text
        )
        == []
    )
    shown = html.unescape(text)
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            assert f"{method.upper()} {path}" in shown
            assert all(one["name"] in shown for one in operation.get("parameters", ()))
    assert all(f'id="{name}"' in text for name in document["components"]["schemas"])


def test_what_a_document_says_is_text_on_its_page() -> None:
    operation = {"summary": "<b>", "description": "<i>", "responses": {"200": {"description": "<u>"}}}
    document = {
        "info": {"title": "<t>", "version": "1"},
        "paths": {"/<p>": {"get": operation}},
        "components": {"schemas": {"<s>": {"description": "<q>"}}},
    }
    page = page_of(document)
    assert [tag for tag in ("<b>", "<i>", "<u>", "<t>", "/<p>", "<s>", "<q>") if tag in page] == []
    assert "GET /&lt;p&gt;" in page


async def test_every_route_metric_and_flag_is_on_the_page(dataset: Path, tmp_path: Path) -> None:
    async with served(dataset, state=tmp_path / "state") as server:
        routes = (await server.ask("GET", "/openapi.json")).json()["paths"]
        await server.verify()
        metrics = (await server.ask("GET", "/metrics")).body.decode()
    missing = {route for route in routes if f"{route}`" not in PAGE and f"…{route[route.rfind('/') :]}`" not in PAGE}
    names = set(re.findall(r"^# TYPE (\w+) ", metrics, re.MULTILINE))
    missing |= {name for name in names if name not in PAGE and not name.endswith("_created")}
    options = [
        option
        for one in command.params
        for option in one.opts
        if option.startswith(("--max-", "--queue", "--grace", "--no-"))
    ]
    missing |= {option for option in options if f"`{option}" not in PAGE}
    assert missing == set()

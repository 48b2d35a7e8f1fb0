"""Asking a model, from where there is neither a network nor a key: the supervisor makes the call (`assay.verifiers.asking`)."""

from __future__ import annotations

import os

from . import asking
from .errors import CannotGrade

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, Optional

PROMPT_MAX = 4 * 1024 * 1024
SCHEMA_MAX = 64 * 1024
_NAME_MAX = 100


def ask_judge(prompt: str, *, schema: Optional[Mapping[str, Any]] = None, judge: str = "default") -> str:
    """What the model `judge` replies to `prompt`, as text.

    Which model that is, where it is and what it may cost is said outside: `[assay.judges.<name>]` of the dataset, or
    `--judge NAME=URL`. With `schema`, a JSON Schema, the reply is asked for in that form, and is JSON. At most 200 calls
    a verification, up to four at once.

    Raises `CannotGrade` when the judge failed (the verdict is then `judge_failed`, whatever `verify` does with that),
    `JudgeUnparseable` for a reply that cannot be used: let it pass and there is no verdict, or catch it and say what it
    is worth. `RuntimeError` when there is no such judge or a limit on the asking is reached; `TypeError` and `ValueError`
    for arguments that are none.
    """
    import json

    if not isinstance(prompt, str):
        raise TypeError(f"prompt must be text, got {prompt!r:.200}")
    if not prompt.strip():
        raise ValueError("prompt must say something")
    if not isinstance(judge, str) or not 0 < len(judge) <= _NAME_MAX:
        raise ValueError(f"judge must be a name of 1 to {_NAME_MAX} characters, got {judge!r:.200}")
    content = prompt.encode("utf-8")
    form = b"" if schema is None else json.dumps(schema, allow_nan=False).encode("ascii")
    if len(content) > PROMPT_MAX or len(form) > SCHEMA_MAX:
        raise ValueError(f"a prompt may have {PROMPT_MAX} bytes and a schema {SCHEMA_MAX}")
    place = os.environ.get(asking.VARIABLE)
    if not place:
        raise CannotGrade("there is nobody to ask a judge for: ask_judge works where Assay grades on a snapshot")
    try:
        return asking.judge(place, judge, content, form)
    except OSError as error:
        raise CannotGrade(f"no judge could be asked: the supervisor is gone ({error})") from error

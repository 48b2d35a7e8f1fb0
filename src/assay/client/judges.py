"""The judges of a dataset, as what grading asks: `[assay.judges.<name>]`, and what is given in their place."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any, Final

from assay.client.judge_call import JudgeEndpoint, JudgeError, call_judge
from assay.failures.kinds import JUDGE_FAILED
from assay.grading import AskJudge, Judgement, NoSuchJudge
from assay.tasks import Judge

_SCHEMA_NAME: Final = "judgement"


def judges_of(settings: Mapping[str, Judge], urls: Mapping[str, str] | None = None) -> AskJudge | None:
    """What `assay.grade(…, judge=…)` takes: asks the judges of `task.settings.judges`; None when there are none.

    `urls` are base URLs by name, in place of the dataset's, or for judges that it does not have. A key is read from the
    host's environment when it is needed, from the variable that the dataset names.
    """
    given = dict(urls or {})
    if not settings and not given:
        return None

    async def ask(name: str, prompt: str, schema: Mapping[str, Any] | None) -> Judgement:
        if name not in settings and name not in given:
            known = ", ".join(sorted({*settings, *given}))
            raise NoSuchJudge(f"no judge is named {name!r}; there are {known}, and --judge {name}=URL gives one")
        endpoint = _endpoint(name, settings.get(name, Judge()), given.get(name))
        request: dict[str, Any] = {"messages": [{"role": "user", "content": prompt}]}
        if schema is not None:
            form = {"name": _SCHEMA_NAME, "schema": dict(schema), "strict": True}
            request["response_format"] = {"type": "json_schema", "json_schema": form}
        judged = await call_judge(endpoint, request, check=None if schema is None else json.loads)
        return Judgement(judged.text, judged.input_tokens, judged.output_tokens)

    return ask


def _endpoint(name: str, settings: Judge, url: str | None) -> JudgeEndpoint:
    """Raises `JudgeError` when the host lacks what the settings name."""
    base_url = url or settings.base_url
    if base_url is None:
        raise _unusable(f"[assay.judges.{name}] has no base_url; write one there or give --judge {name}=URL")
    key = None
    if settings.api_key_env is not None:
        key = os.environ.get(settings.api_key_env)
        if not key:
            raise _unusable(f"[assay.judges.{name}] takes its key from ${settings.api_key_env}, which is not set here")
    limits = {} if settings.timeout_sec is None else {"timeout_s": float(settings.timeout_sec)}
    try:
        return JudgeEndpoint(base_url, settings.model, key, settings.max_tokens, **limits)
    except ValueError as error:
        raise _unusable(f"[assay.judges.{name}] {error}") from None


def _unusable(reason: str) -> JudgeError:
    return JudgeError(JUDGE_FAILED, reason, boundary="model", operation="judge")

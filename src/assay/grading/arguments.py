"""What a caller gave wrong: told apart from a bug of ours, which may well be a `ValueError` too."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping

from assay.sandbox import Provider, get_provider

_LARGE = 256 * 1024
_EACH = 16
"""Characters that a value of any kind counts as."""


class WrongArgument(ValueError):
    """An argument is of the wrong kind, or names something that does not exist. The message says what to give instead."""


def provider_of(sandbox: Provider | str) -> Provider:
    """A provider itself, or the one of that name. Raises `WrongArgument` for a name that nobody has."""
    if not isinstance(sandbox, str):
        return sandbox
    try:
        return get_provider(sandbox)
    except ValueError as error:
        raise WrongArgument(f"sandbox: {error}") from None


async def require_json(name: str, value: object) -> None:
    """Raises `WrongArgument` for what is no JSON. The event loop goes on beside what takes long."""
    if is_large(value):
        await asyncio.to_thread(_require_json, name, value, at_once=False)
    else:
        _require_json(name, value, at_once=True)


def is_large(value: object) -> bool:
    """Whether turning a value into JSON would hold an event loop up; found without looking at much of it."""
    left = _LARGE
    waiting = [value]
    while waiting and left >= 0:
        one = waiting.pop()
        left -= _EACH
        if isinstance(one, str):
            left -= len(one)
        elif isinstance(one, Mapping | list | tuple):
            left -= _EACH * len(one)
            if left >= 0:
                waiting += [*one, *one.values()] if isinstance(one, Mapping) else one
    return left < 0


def _require_json(name: str, value: object, *, at_once: bool) -> None:
    encoder = json.JSONEncoder(allow_nan=False)
    try:
        if at_once:
            encoder.encode(value)
        else:
            # Piece by piece: all at once is quicker, and holds the interpreter's lock, and so the event loop, to its end.
            for _ in encoder.iterencode(value):
                pass
    except (ValueError, TypeError, RecursionError) as error:
        raise WrongArgument(f"{name} must be JSON: {error}") from None

"""Providers by name."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from assay.sandbox.base import Provider
from assay.sandbox.policy import default_policy

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "assay.sandbox_providers"
AUTO = "auto"
_BEST_FIRST = ("namespaces", "bubblewrap")
"""What "auto" may choose: our own launcher, else the independent implementation that is held to the same tests.

A provider that does not isolate is never among them: it must be asked for by name.
"""

_log = logging.getLogger(__name__)

_made: dict[str, Provider] = {}


def provider_names() -> tuple[str, ...]:
    """The names that `get_provider` knows, `auto` first."""
    return (AUTO, *sorted(_found()))


def get_provider(name: str = AUTO) -> Provider:
    """The provider of that name, one per process; "auto" is the best that isolates here: it is tried when first asked for.

    Providers are entry points of the group `assay.sandbox_providers`. Raises `ValueError` for an unknown name, `TypeError`
    for an entry point that does not make a provider.
    """
    if name in _made:
        return _made[name]
    found = _found()
    if name == AUTO:
        candidates = [best for best in _BEST_FIRST if best in found]
        for best in candidates:
            provider = _made_of(best, found)
            if default_policy() <= provider.capabilities():
                _made[AUTO] = provider
                return provider
            _log.info("the sandbox %r does not give what a verdict needs on this machine", best)
        name = candidates[0] if candidates else name
    if name not in found:
        raise ValueError(f"there is no sandbox provider {name!r}; known: {', '.join(provider_names())}")
    return _made_of(name, found)


def _made_of(name: str, found: Mapping[str, EntryPoint]) -> Provider:
    if name not in _made:
        provider = found[name].load()()
        missing = [part for part in ("name", "isolated", "capabilities", "create") if not hasattr(provider, part)]
        if missing:
            raise TypeError(f"the entry point {found[name].value!r} makes no sandbox provider: no {', '.join(missing)}")
        _made[name] = provider
    return _made[name]


def _found() -> dict[str, EntryPoint]:
    # 14 ms that only who asks for a provider pays.
    from importlib.metadata import entry_points

    return {entry.name: entry for entry in entry_points(group=GROUP)}

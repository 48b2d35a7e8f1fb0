"""Trying a provider out: one sandbox, one command that does nothing, from wherever the caller happens to be."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from assay.failures import FailureEvent
from assay.sandbox.base import Capability, Ended, Provider, SandboxSpec
from assay.sandbox.hosted import HostedSandbox, create_in_thread

_log = logging.getLogger(__name__)
_TRIAL_S = 30.0


class TriedProvider(ABC):
    """A provider of this machine's own sandboxes, whose guarantees are found by running one."""

    name: str
    isolated: bool

    def __init__(self) -> None:
        """Looks at nothing yet: the machine is looked at when the first sandbox, or the capabilities, are asked for."""
        self._capabilities: frozenset[Capability] = frozenset()

    @abstractmethod
    def make(self, spec: SandboxSpec) -> HostedSandbox:
        """Make a sandbox, in whatever thread. Raises as `Provider.create`."""

    @abstractmethod
    def claims(self) -> frozenset[Capability]:
        """What is guaranteed where a sandbox runs."""

    def capabilities(self) -> frozenset[Capability]:
        """What this machine lets it guarantee, found by running one sandbox. Empty where none can be made."""
        # What failed may have been a passing fault: only a success is remembered.
        if not self._capabilities:
            self._capabilities = try_out(self, self.claims)
        return self._capabilities

    async def create(self, spec: SandboxSpec) -> HostedSandbox:
        """See `Provider.create`."""
        return await create_in_thread(lambda: self.make(spec))


def try_out(provider: Provider, claims: Callable[[], frozenset[Capability]]) -> frozenset[Capability]:
    """What `claims` says if a sandbox of this provider runs here, else nothing; why not is logged.

    Works inside a running event loop too: the trial has a thread and a loop of its own.
    """
    with ThreadPoolExecutor(1) as threads:
        try:
            why_not = threads.submit(asyncio.run, _try(provider)).result()
        except FailureEvent as failure:
            why_not = failure.reason
    if why_not is None:
        return claims()
    _log.warning("the sandbox %r does not run on this machine: %s", provider.name, why_not)
    return frozenset()


async def _try(provider: Provider) -> str | None:
    sandbox = await provider.create(SandboxSpec())
    try:
        result = await sandbox.exec(["true"], timeout_s=_TRIAL_S)
    finally:
        await sandbox.close()
    if (result.how, result.code) == (Ended.EXITED, 0):
        return None
    return result.fault or f"`true` {result.how} with {result.code}: {result.stderr.decode('utf-8', 'replace')}"

"""Every provider passes the conformance kit, as root and as an ordinary user; and a provider that lies does not."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from assay.sandbox import MIB, Capability, ExecResult, Limits, Overlay, Provider, Sandbox, SandboxSpec, get_provider
from assay.sandbox.testing import FakeProvider, Outcome, check_names, check_provider
from ordinary_user import REPOSITORY, run_as_ordinary_user
from warm import WarmProvider

NO_ISOLATION = {
    Capability.NETWORK_OFF,
    Capability.READ_ONLY_BASE,
    Capability.HOST_HIDDEN,
    Capability.SYSCALL_FILTER,
    Capability.USER_MAPPING,
}
NEEDS_RIGHTS = {Capability.UID_SEPARATION, Capability.MEMORY_LIMIT, Capability.CPU_LIMIT}
_PROGRAM = """
import asyncio, json, sys
sys.path.append("tests")
from assay.sandbox import get_provider
from assay.sandbox.testing import check_provider
from warm import WarmProvider
provider = WarmProvider() if sys.argv[1] == "warm" else get_provider(sys.argv[1])
results = asyncio.run(check_provider(provider, report=lambda line: None))
print(json.dumps([[r.name, r.outcome, r.detail] for r in results]))
"""


@pytest.mark.parametrize(
    ("name", "unclaimed"),
    [("namespaces", set()), ("warm", set()), ("bubblewrap", set()), ("process", NO_ISOLATION)],
)
async def test_provider_conforms(name: str, unclaimed: set[Capability]) -> None:
    provider = WarmProvider() if name == "warm" else get_provider(name)
    results = await check_provider(provider)
    assert [r.name for r in results] == check_names()
    assert {r.name: r.detail for r in results if r.outcome is Outcome.FAILED} == {}
    allowed = unclaimed | (NEEDS_RIGHTS if os.geteuid() != 0 else set())
    assert {r.name for r in results if r.outcome is Outcome.NOT_CLAIMED} <= {f"claims {c}" for c in allowed}
    assert not [r for r in results if r.outcome is Outcome.NOT_APPLICABLE]


@pytest.mark.parametrize(
    ("name", "unclaimed"),
    [("namespaces", set()), ("warm", set()), ("bubblewrap", set()), ("process", NO_ISOLATION)],
)
def test_provider_conforms_for_an_ordinary_user(name: str, unclaimed: set[Capability]) -> None:
    done = run_as_ordinary_user([sys.executable, "-c", _PROGRAM, name], cwd=REPOSITORY)
    assert done.returncode == 0, done.stderr.decode()
    results = json.loads(done.stdout)
    assert [name for name, _, _ in results] == check_names()
    assert {name: detail for name, outcome, detail in results if outcome == "failed"} == {}
    seen = {name for name, outcome, _ in results if outcome == "not_claimed"}
    assert {f"claims {c}" for c in unclaimed} <= seen <= {f"claims {c}" for c in unclaimed | NEEDS_RIGHTS}
    assert "claims uid_separation" in seen


async def test_the_fake_conforms_as_far_as_it_can() -> None:
    lines: list[str] = []
    provider = FakeProvider()
    results = await check_provider(provider, report=lines.append, runs_commands=False)
    outcomes = {r.outcome for r in results}
    assert outcomes == {Outcome.PASSED, Outcome.NOT_APPLICABLE}
    assert sum(r.outcome is Outcome.PASSED for r in results) == 5
    assert len(lines) == len(results) == len(check_names())
    assert provider.living == 0


@dataclass
class _Wrapped:
    """A provider that passes everything on to another, but claims what it does not give."""

    inner: Provider
    claims: frozenset[Capability]
    name: str = "wrapped"
    isolated: bool = True

    def capabilities(self) -> frozenset[Capability]:
        return self.claims

    async def create(self, spec: SandboxSpec) -> Sandbox:
        return await self.inner.create(spec)


# As root the process provider runs under a uid that may not write the host's base either.
FALSE = NO_ISOLATION - {Capability.READ_ONLY_BASE}


@pytest.mark.parametrize("capability", sorted(FALSE))
async def test_false_claims_are_found(capability: Capability) -> None:
    liar = _Wrapped(get_provider("process"), frozenset({capability}))
    (result,) = await check_provider(liar, only=[f"claims {capability}"])
    assert result.outcome is Outcome.FAILED


class _Unlimited(_Wrapped):
    async def create(self, spec: SandboxSpec) -> Sandbox:
        return await self.inner.create(replace(spec, limits=Limits(memory_bytes=1024 * MIB)))


@pytest.mark.parametrize("name", ["claims process_limit", "claims cpu_limit", "claims memory_limit", "output_flood"])
async def test_limits_that_are_ignored_are_found(name: str) -> None:
    ignoring = _Unlimited(get_provider("bubblewrap"), frozenset(Capability))
    # On a busy machine nothing may get more than a processor's fifth for once, with or without a limit.
    for _ in range(20 if name == "claims cpu_limit" else 1):
        (result,) = await check_provider(ignoring, only=[name])
        if result.outcome is Outcome.FAILED:
            return
    pytest.fail(f"never found: {result.detail}")


async def test_only_known_checks_can_be_asked_for() -> None:
    with pytest.raises(ValueError, match="there is no check unheard_of"):
        await check_provider(FakeProvider(), only=["exit_codes", "unheard_of"])


async def test_a_broken_provider_is_a_finding_and_not_an_error() -> None:
    def crash(call: object) -> ExecResult:
        raise OSError("broken")

    results = await check_provider(FakeProvider(crash), report=lambda line: None)
    failed = {r.name: r.detail for r in results if r.outcome is Outcome.FAILED}
    assert failed["exit_codes"] == "OSError: broken"
    assert len(failed) == len(results) - 6


async def test_an_overlay_that_writes_through_is_found(tmp_path: Path) -> None:
    class WritesThrough(_Wrapped):
        async def create(self, spec: SandboxSpec) -> Sandbox:
            for mount in spec.mounts:
                if isinstance(mount, Overlay):
                    (mount.lower / "kept").write_text("changed")
            return await self.inner.create(spec)

    provider = WritesThrough(get_provider("bubblewrap"), frozenset({Capability.OVERLAY}))
    (result,) = await check_provider(provider, only=["claims overlay"])
    assert result.outcome is Outcome.FAILED
    assert "kept" in result.detail

"""Where attacks are fought, what the host must look like afterwards, and the table of outcomes at the end of the run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from assay.sandbox import get_provider, provider_names
from attacks.filesystems import make_agents_filesystem
from attacks.harness import MODES, SOAK, Arena, Attack
from attacks.host import MARKER, state_of_host

_OUTCOMES = pytest.StashKey[dict[tuple[int, str], dict[str, str]]]()


def isolating() -> list[str]:
    return [name for name in provider_names() if name != "auto" and get_provider(name).isolated]


def pytest_configure(config: pytest.Config) -> None:
    config.stash.setdefault(_OUTCOMES, {})


@pytest.fixture(scope="session", autouse=True)
def host_as_before() -> Iterator[None]:
    """Fail the session when the kernel's switches, shared places or keyrings are not as they were."""
    before = state_of_host()
    assert not [found for found in before if MARKER in found], "an earlier session left something on this host"
    yield
    after = state_of_host()
    assert after == before, f"changed on the host: {sorted(after ^ before)}"


@pytest.fixture(scope="session")
def agents_filesystem(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is graded in shared mode, before the workspace is laid into it."""
    return make_agents_filesystem(tmp_path_factory.mktemp("agent") / "root")


ARENAS = [(provider, mode) for mode in MODES for provider in isolating()]


@pytest.fixture(params=ARENAS, ids="-".join)
def arena(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    outcomes: Callable[[int, str, str, str], None],
    controls: dict[tuple[object, ...], Path],
) -> Arena:
    """Every provider that isolates, in every mode; the first with all that is costly."""
    provider, mode = request.param
    if not get_provider(provider).capabilities():
        pytest.skip(f"the sandbox {provider!r} cannot make sandboxes on this machine: `assay doctor` says why")
    spare = request.param != ARENAS[0] and not SOAK

    def record(attack: Attack, outcome: str) -> None:
        outcomes(attack.number, attack.name, f"{provider}, {mode}", outcome)

    return Arena(provider, mode, tmp_path, _bases(request), record, controls, spare)


@pytest.fixture(scope="session")
def controls() -> dict[tuple[object, ...], Path]:
    """What is known of verifiers by the honest submissions of this session (`Arena.control`)."""
    return {}


@pytest.fixture
def outcomes(request: pytest.FixtureRequest) -> Callable[[int, str, str, str], None]:
    """Takes what goes into the table: the attack's number and name, where it was graded, what it came to."""
    table = request.config.stash[_OUTCOMES]

    def add(number: int, name: str, where: str, outcome: str) -> None:
        table.setdefault((number, name), {})[where] = outcome

    return add


def _bases(request: pytest.FixtureRequest) -> Callable[[str], str]:
    # Asked for by name: only who needs a root folder waits for its making.
    fixtures = {"agent": "agents_filesystem", "pytest": "base_with_pytest", "numpy": "base_with_numpy"}
    return lambda base: base if base == "host" else str(request.getfixturevalue(fixtures[base]))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    outcomes = config.stash[_OUTCOMES]
    if not outcomes:
        return
    terminalreporter.section("attacks: what each came to (honest controls: 1 each)")
    for (number, name), row in sorted(outcomes.items()):
        for where, outcome in row.items():
            terminalreporter.write_line(f"{number:>3}  {name:<52.52}  {where:<37}  {outcome}")

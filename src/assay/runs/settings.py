"""What a run was asked for, as it is kept in its store: enough to go on with it days later."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final

from assay.answers import StoreUnusable
from assay.grading import WrongArgument

AGENTS: Final = ("oracle", "nop", "command", "replay", "model")
"""Who can work on tasks."""


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """Who works on the tasks, and how."""

    name: str
    """One of `AGENTS`."""
    command: str | None = None
    """`command`: a shell command."""
    source: str | None = None
    """`replay`: a file, a folder or a run, absolute."""
    model: str | None = None
    """`model`: its name."""
    base_url: str | None = None
    """`model`: the endpoint, up to and with the version."""
    api_key_env: str | None = None
    """`model`: the host variable that holds the key."""
    env: tuple[str, ...] = ()
    """`command`: names of host variables that it is given; their values are kept nowhere."""
    network: bool = False
    """`command`: whether its sandbox has the network."""
    timeout_s: float | None = None
    """Wall-clock seconds of one rollout; None: the task's own limit."""

    def __post_init__(self) -> None:
        """Raises `WrongArgument` for an agent that lacks what it needs, or is given what it cannot use."""
        if self.name not in AGENTS:
            raise WrongArgument(f"agent: there is none called {self.name!r}; there are {', '.join(AGENTS)}")
        needs = {"command": ("command",), "replay": ("source",), "model": ("model", "base_url")}.get(self.name, ())
        takes = {
            "command": ("command", "env", "network", "timeout_s"),
            "replay": ("source",),
            "model": ("model", "base_url", "api_key_env", "timeout_s"),
        }.get(self.name, ("timeout_s",))
        for name in needs:
            if not getattr(self, name):
                raise WrongArgument(f"agent {self.name}: give {_OPTIONS[name]}")
        if self.base_url is not None:
            # Loaded where it is needed: HTTP takes long to load.
            from assay.client.server_client import require_url

            try:
                require_url(_OPTIONS["base_url"].split()[0], self.base_url)
            except ValueError as error:
                raise WrongArgument(f"agent {self.name}: {error}") from None
        for name, option in _OPTIONS.items():
            if name not in takes and getattr(self, name):
                raise WrongArgument(f"agent {self.name}: has no use for {option}")

    def shown(self) -> dict[str, Any]:
        """What is kept beside each answer: what was given, and no secret."""
        return {name: value for name, value in asdict(self).items() if value and name != "name"}


_OPTIONS: Final = {
    "command": "--command 'CMD'",
    "source": "--from FILE_OR_RUN",
    "model": "--model NAME",
    "base_url": "--base-url URL",
    "api_key_env": "--api-key-env NAME",
    "env": "--agent-env NAME",
    "network": "--agent-network",
    "timeout_s": "--agent-timeout S",
}


@dataclass(frozen=True, slots=True)
class GradingSettings:
    """How answers are verified: the arguments of `assay.grade`."""

    sandbox: str = "auto"
    rootfs: str | None = None
    network: bool = False
    timeout_s: float | None = None
    control: bool = True
    warm: bool = True
    judges: Mapping[str, str] = field(default_factory=dict)
    """Base URLs by name, in place of the dataset's."""

    def to_json(self) -> dict[str, Any]:
        """JSON values."""
        return {**asdict(replace(self, judges={})), "judges": dict(self.judges)}


@dataclass(frozen=True, slots=True)
class RunSettings:
    """A run as it was asked for."""

    dataset: str
    """The folder, absolute."""
    agent: AgentSettings
    grading: GradingSettings = GradingSettings()
    rollouts: int = 1

    def to_json(self) -> dict[str, Any]:
        """JSON values; `from_json` reads them."""
        record = asdict(replace(self, grading=GradingSettings()))
        record["agent"]["env"] = list(self.agent.env)
        return {**record, "grading": self.grading.to_json()}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> RunSettings:
        """The settings of a record. Raises `StoreUnusable` for one that some other program wrote."""
        try:
            agent = {**record["agent"], "env": tuple(record["agent"].get("env", ()))}
            return cls(
                str(record["dataset"]),
                AgentSettings(**_known(AgentSettings, agent)),
                GradingSettings(**_known(GradingSettings, record["grading"])),
                int(record["rollouts"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise StoreUnusable(f"the run's settings cannot be read ({error}); was it made with `assay run`?") from None

    def differs_from(self, other: RunSettings) -> list[str]:
        """What another command would do otherwise: `dataset`, `agent`. How many rollouts, and how they are graded, may change."""
        found = []
        if Path(self.dataset).resolve() != Path(other.dataset).resolve():
            found.append(f"the dataset is {other.dataset}")
        if self.agent != other.agent:
            found.append(f"the agent is {other.agent.name} {other.agent.shown() or ''}".rstrip())
        return found


def _known(kind: Any, record: Mapping[str, Any]) -> dict[str, Any]:
    """Fields that this version knows: one that an older version kept and this one dropped does no harm."""
    names = {one.name for one in fields(kind)}
    return {name: value for name, value in record.items() if name in names}

"""Every table of task.toml as a model: types, defaults, deprecated forms. Keys nobody knows are kept.

Defaults are those of the Harbor task format, schema 1.4. Where a deprecated key is given and its successor is not, the
successor gets its value: `memory = "2G"` reads as `memory_mb = 2048`, `allow_internet = false` as `network_mode =
"no-network"`, `version` as `schema_version`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from assay.tasks.fields import (
    AbsolutePath,
    Count,
    Cpus,
    LooseText,
    Megabytes,
    MinReward,
    NetworkMode,
    Positive,
    RelativePath,
    RewardRange,
    Seconds,
    SecondsOrZero,
    Size,
    User,
    one_of,
    size_in_mb,
)
from assay.tasks.nearest import did_you_mean

CAPABILITIES = (
    "network_off",
    "read_only_base",
    "host_hidden",
    "overlay",
    "proof_of_death",
    "uid_separation",
    "memory_limit",
    "process_limit",
    "cpu_limit",
    "syscall_filter",
    "user_mapping",
)
"""The guarantees that `[assay] require` may name."""

DEPRECATED = {
    ("environment", "memory"): "memory_mb",
    ("environment", "storage"): "storage_mb",
    ("environment", "allow_internet"): "network_mode",
    ("version",): "schema_version",
}
"""Deprecated keys and their successors in the same table; `[verifier.environment]` has those of `[environment]`."""


class Table(BaseModel):
    """One table: typed known keys, everything else kept in `model_extra`."""

    model_config = ConfigDict(extra="allow", frozen=True, protected_namespaces=())


class Author(Table):
    """One of `[task] authors`."""

    name: str
    email: str | None = None


def _author(value: Any) -> Any:
    # Public tasks write plain names; nothing hangs on them.
    return {"name": value} if isinstance(value, str) else value


class About(Table):
    """`[task]`."""

    name: str
    """`org/name`."""
    version: LooseText | None = None
    description: str | None = None
    authors: list[Annotated[Author, BeforeValidator(_author)]] = []
    keywords: list[str] = []


class AgentTable(Table):
    """`[agent]`."""

    timeout_sec: Seconds | None = None
    user: User | None = None
    network_mode: NetworkMode | None = None
    allowed_hosts: list[str] | None = None


class Healthcheck(Table):
    """`[environment.healthcheck]`, and a step's."""

    command: str
    interval_sec: Seconds = 5.0
    timeout_sec: Seconds = 30.0
    start_period_sec: SecondsOrZero = 0.0
    start_interval_sec: Seconds = 5.0
    retries: Count = 3


class McpServer(Table):
    """One of `[environment] mcp_servers`; which keys it needs depends on its transport and is the agent's concern."""

    name: str
    transport: str | None = None
    url: str | None = None
    command: str | None = None
    args: list[str] = []


class EnvironmentTable(Table):
    """`[environment]`, and `[verifier.environment]`."""

    build_timeout_sec: Seconds = 600.0
    docker_image: str | None = None
    os: Annotated[Literal["linux", "windows"], one_of("linux", "windows")] = "linux"
    cpus: Cpus | None = None
    memory_mb: Megabytes | None = None
    storage_mb: Megabytes | None = None
    gpus: Count | None = None
    gpu_types: list[str] | None = None
    mcp_servers: list[McpServer] = []
    env: dict[str, str] = {}
    skills_dir: str | None = None
    healthcheck: Healthcheck | None = None
    workdir: AbsolutePath | None = None
    network_mode: NetworkMode = "public"
    allowed_hosts: list[str] | None = None
    memory: Size | None = None
    """Deprecated: `memory_mb`."""
    storage: Size | None = None
    """Deprecated: `storage_mb`."""
    allow_internet: bool | None = None
    """Deprecated: `network_mode`."""

    @model_validator(mode="before")
    @classmethod
    def _successors(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        data = dict(data)
        for old, new in (("memory", "memory_mb"), ("storage", "storage_mb")):
            if isinstance(data.get(old), str) and new not in data:
                size = size_in_mb(data[old])
                if size is not None:
                    data[new] = size
        if isinstance(data.get("allow_internet"), bool) and "network_mode" not in data:
            data["network_mode"] = "public" if data["allow_internet"] else "no-network"
        return data


class Collect(Table):
    """One of `[[verifier.collect]]`."""

    command: str
    service: str = "main"
    timeout_sec: Seconds = 60.0
    user: User | None = None


class VerifierTable(Table):
    """`[verifier]`, and a step's."""

    timeout_sec: Seconds = 600.0
    env: dict[str, str] = {}
    user: User | None = None
    environment_mode: Annotated[Literal["shared", "separate"], one_of("shared", "separate")] | None = None
    environment: EnvironmentTable | None = None
    collect: list[Collect] = []
    network_mode: NetworkMode | None = None
    allowed_hosts: list[str] | None = None


class SolutionTable(Table):
    """`[solution]`."""

    env: dict[str, str] = {}


class Artifact(Table):
    """One of `artifacts`; plain text is its `source`."""

    source: str
    destination: RelativePath | None = None
    exclude: list[str] = []
    service: str | None = None


def _artifact(value: Any) -> Any:
    if isinstance(value, str):
        return {"source": value}
    if not isinstance(value, dict):
        raise ValueError("must be a path, or a table with source")  # noqa: TRY004 (pydantic reports ValueError alone)
    return value


Artifacts = list[Annotated[Artifact, BeforeValidator(_artifact)]]


class StepTable(Table):
    """One of `[[steps]]`."""

    name: str
    agent: AgentTable = Field(default_factory=AgentTable)
    verifier: VerifierTable | None = None
    min_reward: MinReward | None = None
    healthcheck: Healthcheck | None = None
    artifacts: Artifacts = []


def _require(names: Any) -> Any:
    if not isinstance(names, list):
        raise ValueError("must be a list of capability names")  # noqa: TRY004 (pydantic reports ValueError alone)
    for name in names:
        if name not in CAPABILITIES:
            guess = did_you_mean(str(name), CAPABILITIES)
            raise ValueError(f'must be a list of capability names, and "{name}" is none{guess}')
    return names


def _base_url(value: Any) -> Any:
    if isinstance(value, str) and not value.startswith(("http://", "https://")):
        raise ValueError("must be a URL that begins with http:// or https://")
    return value


class Judge(Table):
    """`[assay.judges.<name>]`: a model that a verifier may ask."""

    base_url: Annotated[str, BeforeValidator(_base_url)] | None = None
    model: str | None = None
    api_key_env: str | None = None
    """The host variable that holds the key; the key itself never stands in a task."""
    max_tokens: Positive | None = None
    timeout_sec: Seconds | None = None


class AssaySettings(Table):
    """`[assay]`: what only Assay reads. Here a key that nobody knows is an error."""

    reverify_mode: (
        Annotated[Literal["stateless", "unsupported", "unknown"], one_of("stateless", "unsupported", "unknown")] | None
    ) = None
    reward_key: str | None = None
    reward_range: RewardRange | None = None
    require: Annotated[tuple[str, ...], BeforeValidator(_require)] = ()
    rootfs: str | None = None
    judges: dict[str, Judge] = {}


class Overrides(AssaySettings):
    """`[assay.defaults]` and `[assay.tasks."<id>"]` of a dataset: fields for every task, or for one."""

    environment: EnvironmentTable | None = None
    verifier: VerifierTable | None = None


class DatasetSettings(AssaySettings):
    """`[assay]` of dataset.toml."""

    defaults: Overrides = Field(default_factory=Overrides)
    tasks: dict[str, Overrides] = {}


class TaskConfig(Table):
    """A whole task.toml."""

    schema_version: LooseText | None = None
    version: LooseText | None = None
    """Deprecated: `schema_version`."""
    source: str | None = None
    task: About | None = None
    metadata: dict[str, Any] = {}
    agent: AgentTable = Field(default_factory=AgentTable)
    verifier: VerifierTable = Field(default_factory=VerifierTable)
    environment: EnvironmentTable = Field(default_factory=EnvironmentTable)
    solution: SolutionTable = Field(default_factory=SolutionTable)
    artifacts: Artifacts = []
    multi_step_reward_strategy: Annotated[Literal["mean", "final"], one_of("mean", "final")] = "mean"
    steps: list[StepTable] = []
    assay: AssaySettings = Field(default_factory=AssaySettings)

    @model_validator(mode="before")
    @classmethod
    def _successors(cls, data: Any) -> Any:
        if isinstance(data, dict) and "version" in data and "schema_version" not in data:
            return {**data, "schema_version": data["version"]}
        return data

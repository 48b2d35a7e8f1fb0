"""One task: what a folder (or one row of it) says, read and checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from assay.tasks.config import UnknownKey
from assay.tasks.digest import solution_digest, task_digest, verifier_digest
from assay.tasks.source import Source
from assay.tasks.tables import AssaySettings, StepTable, TaskConfig
from assay.tasks.tree import Entry


@dataclass(frozen=True, slots=True)
class VerifierSource:
    """What grades a task."""

    kind: Literal["bash", "python"]
    path: Path
    """The file on the host. For one that is rendered for each row: where it would lie."""
    origin: Literal["task", "dataset"]


@dataclass(frozen=True, slots=True)
class ImageNeed:
    """Which root filesystem a task was made for."""

    docker_image: str | None
    """`[environment] docker_image`."""
    has_dockerfile: bool
    """Whether there is `environment/Dockerfile`."""
    has_compose: bool = False
    """Whether there is an `environment/docker-compose.yaml` (or `.yml`)."""

    @property
    def needed(self) -> bool:
        """Whether the host's base is not what the author had in mind."""
        return self.docker_image is not None or self.has_dockerfile


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """One step of a multi-step task."""

    name: str
    folder: Path
    config: StepTable
    verifier: VerifierSource
    solution: Path | None


@dataclass(frozen=True, eq=False)
class Task:
    """A task that can be graded. Made by `load_task` and `load_dataset`."""

    id: str
    """The folder's name; for a row `<folder>/<row id>`."""
    folder: Path
    config: TaskConfig
    """task.toml with the dataset's fields for this task merged below it."""
    settings: AssaySettings
    """`[assay]`, merged in the same way."""
    task_data: dict[str, Any]
    row_id: str | None
    verifier: VerifierSource
    """What grades it. In a multi-step task: the root's `tests/` if they can, else the last step's."""
    solution: Path | None
    """The folder with `solve.sh`."""
    workdir: str | None
    """Absolute. None: neither task.toml nor the Dockerfile says, and the caller uses `/app`."""
    image: ImageNeed
    steps: tuple[Step, ...]
    unknown_keys: tuple[UnknownKey, ...]
    """Keys of task.toml that nothing reads; never an error."""
    document: Mapping[str, Any] = field(repr=False)
    """The merged TOML as it was parsed."""
    source: Source = field(repr=False)
    step: Step | None = None
    """Set in a step's view of a multi-step task (`step_tasks`): which step that is."""

    @cached_property
    def digest(self) -> str:
        """`sha256:…` over what the agent is given and works on."""
        return task_digest(self.source, self.document, self.task_data)

    @cached_property
    def verifier_digest(self) -> str:
        """`sha256:…` over what grades."""
        borrowed = self.verifier.path if self.verifier.origin == "dataset" else None
        return verifier_digest(self.source, self.document, borrowed)

    @cached_property
    def solution_digest(self) -> str:
        """`sha256:…` over the task's own solution; it is in neither of the other two."""
        return solution_digest(self.source)

    @cached_property
    def asks_judge(self) -> bool:
        """Whether the code of its verifier, or of a step's, names `ask_judge`."""
        files = [entry for entry in self.source.entries("tests") if _is_authors(entry.path)]
        files += [entry for entry in self.source.entries("steps") if _is_authors(entry.path.partition("/tests/")[2])]
        if self.verifier.origin == "dataset":
            files.append(Entry("verifier.py", "file", self.verifier.path))
        return any(entry.kind == "file" and b"ask_judge" in entry.read() for entry in files)

    @property
    def wants_network(self) -> bool:
        """Whether it explicitly asks for network while verifying."""
        verifier = self.config.verifier
        own = verifier.environment
        modes = [verifier.network_mode]
        if own is not None and "network_mode" in own.model_fields_set:
            modes.append(own.network_mode)
        return any(mode not in {None, "no-network"} for mode in modes)

    @property
    def reverify_mode(self) -> Literal["stateless", "unsupported", "unknown"]:
        """Whether verifying an answer again is harmless: as stated, else `stateless` unless it wants network."""
        return self.settings.reverify_mode or ("unknown" if self.wants_network else "stateless")

    @property
    def reward_range(self) -> tuple[float, float] | None:
        """The declared bounds of the reward; None when none are declared."""
        return self.settings.reward_range


def _is_authors(path: str) -> bool:
    """Whether a path in a tests folder is Python of the author's, not the helpers that the shim has laid beside it."""
    return path.endswith(".py") and not path.startswith((".ng/assay/", ".ng/nemo_gym/"))

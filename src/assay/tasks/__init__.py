"""Task folders: read, check, digest, wrap with the shim, publish."""

from assay.tasks.config import DeprecatedKey, UnknownKey
from assay.tasks.envs import resolve_env
from assay.tasks.errors import TaskInvalid
from assay.tasks.finding import Finding
from assay.tasks.lint import lint
from assay.tasks.load import Dataset, InvalidTask, load_dataset, load_task
from assay.tasks.modes import verifier_environment, verifier_mode
from assay.tasks.publish import PublishedTask, PublishReport, publish
from assay.tasks.scaffold import init_task
from assay.tasks.shim import json_file
from assay.tasks.stage import (
    StagedTests,
    as_response,
    solution_response,
    stage_environment,
    stage_solution,
    stage_tests,
)
from assay.tasks.steps import SETUP, stage_step, step_tasks
from assay.tasks.strict_json import canonical_json, strict_json
from assay.tasks.tables import CAPABILITIES, Artifact, AssaySettings, Collect, Healthcheck, Judge, TaskConfig
from assay.tasks.task import ImageNeed, Step, Task, VerifierSource

__all__ = [
    "CAPABILITIES",
    "SETUP",
    "Artifact",
    "AssaySettings",
    "Collect",
    "Dataset",
    "DeprecatedKey",
    "Finding",
    "Healthcheck",
    "ImageNeed",
    "InvalidTask",
    "Judge",
    "PublishReport",
    "PublishedTask",
    "StagedTests",
    "Step",
    "Task",
    "TaskConfig",
    "TaskInvalid",
    "UnknownKey",
    "VerifierSource",
    "as_response",
    "canonical_json",
    "init_task",
    "json_file",
    "lint",
    "load_dataset",
    "load_task",
    "publish",
    "resolve_env",
    "solution_response",
    "stage_environment",
    "stage_solution",
    "stage_step",
    "stage_tests",
    "step_tasks",
    "strict_json",
    "verifier_environment",
    "verifier_mode",
]

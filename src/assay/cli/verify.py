"""`assay verify`: one verdict."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from .inputs import Place, grading_options, judge_for, read_json_object, read_response
from .output import print_json, print_verdict
from .running import Tell, run

if TYPE_CHECKING:
    from assay.grading import Verdict

_UNUSABLE = ("assay:task_invalid", "assay:workspace_invalid")


@click.command(name="verify")
@click.argument("task", type=Place())
@click.option(
    "--workspace",
    type=Place(),
    metavar="DIR",
    help="What the agent left; for a multi-step task a folder that holds one for each step, DIR/STEP. With --mode shared "
    "it may be left out: the workdir is then what the filesystem has there.",
)
@click.option("--response", type=Place(), metavar="FILE", help="The agent's final response.")
@click.option("--task-data", type=Place(), metavar="FILE", help="Fields merged over the task's own.")
@click.option(
    "--mode",
    type=click.Choice(["separate", "shared"]),
    default="separate",
    show_default=True,
    help="A fresh sandbox on a snapshot, or the agent's own filesystem, which --rootfs DIR then names (for a multi-step "
    "task DIR/STEP). It is copied, never changed; no process of the agent may still run in it.",
)
@click.option("--no-control", is_flag=True, help="Run no repeat, untouched environment or solution for evidence.")
@click.option("--no-warm", is_flag=True, help="Start an interpreter anew for each Python verifier and submission.")
@click.option("--logs", type=Place(), metavar="DIR", help="Keep what the verifier left, per attempt.")
@grading_options
def command(
    task: Path,
    workspace: Path | None,
    response: Path | None,
    task_data: Path | None,
    mode: str,
    no_control: bool,
    no_warm: bool,
    logs: Path | None,
    sandbox: str,
    rootfs: str | None,
    network: bool,
    judges: tuple[tuple[str, str], ...],
    timeout: float | None,
    state: Path | None,
    as_json: bool,
) -> int:
    """Grade the workspace that an agent left for TASK, and print one verdict.

    Exit code: 0 graded, whatever the reward; 3 no verdict, and why; 2 wrong usage, or a task or workspace that cannot be
    used.
    """
    if timeout is not None and not 0 < timeout < float("inf"):
        raise click.BadParameter(f"must be a positive number of seconds, got {timeout:g}", param_hint="--timeout")
    if logs is not None and logs.exists() and (not logs.is_dir() or any(logs.iterdir())):
        raise click.BadParameter(f"{logs} is there already and not an empty folder", param_hint="--logs")
    if mode == "shared" and rootfs is None:
        raise click.UsageError("--mode shared needs the agent's own root filesystem: give its folder with --rootfs DIR")
    if mode == "separate" and workspace is None:
        raise click.UsageError("Missing option '--workspace'.")
    given = read_response(response, "--response") if response is not None else None
    data = read_json_object(task_data, "--task-data") if task_data is not None else None
    from assay.grading import failed_verdict, grade
    from assay.tasks import TaskInvalid, load_task

    async def work(tell: Tell) -> Verdict:
        return await grade(
            loaded,
            workspace,
            given,
            task_data=data,
            mode=mode,
            sandbox=sandbox,
            rootfs=rootfs,
            network=network,
            timeout_s=timeout,
            control=not no_control,
            warm=not no_warm,
            logs=logs,
            state=state,
            judge=judge_for(loaded, judges),
            progress=tell,
        )

    try:
        loaded = load_task(task)
    except TaskInvalid as invalid:
        verdict = failed_verdict(invalid, None, task_id=task.resolve().name)
    else:
        verdict = run(work)
    if as_json:
        print_json(verdict.to_dict())
    else:
        print_verdict(verdict)
    if verdict.graded:
        return 0
    return 2 if (verdict.failure or {}).get("kind") in _UNUSABLE else 3

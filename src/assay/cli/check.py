"""`assay check`: does a verifier work?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .inputs import Place, grading_options, judge_for
from .output import console, print_json, printable
from .running import Tell, run

if TYPE_CHECKING:
    from assay.grading import Check, Observation
    from assay.tasks import Task


@click.command(name="check")
@click.argument("task_or_dataset", type=Place())
@click.option("--repeats", type=click.IntRange(min=1), default=2, show_default=True, help="How often each is graded.")
@grading_options
def command(
    task_or_dataset: Path,
    repeats: int,
    sandbox: str,
    rootfs: str | None,
    network: bool,
    judges: tuple[tuple[str, str], ...],
    timeout: float | None,
    state: Path | None,
    as_json: bool,
) -> int:
    """Grade each task's own solution and its untouched environment, more than once.

    A verifier works when the solution is graded full, the untouched environment less, and the repeats agree. Exit code 3
    when one does not.
    """
    from assay.grading import check_task
    from assay.tasks import load_dataset

    dataset = load_dataset(task_or_dataset)
    wrong = bool(dataset.invalid)
    for invalid in dataset.invalid:
        _print_invalid(invalid.path, invalid.problems, as_json)
    for task in dataset.tasks:

        async def work(tell: Tell, task: Task = task) -> Check:
            return await check_task(
                task,
                repeats=repeats,
                sandbox=sandbox,
                rootfs=rootfs,
                network=network,
                timeout_s=timeout,
                state=state,
                judge=judge_for(task, judges),
                progress=tell,
            )

        found = run(work)
        wrong = wrong or not found.ok
        if as_json:
            print_json(_record(found))
        else:
            _print(found)
    if not dataset.tasks and not dataset.invalid:
        raise click.UsageError(f"{task_or_dataset}: no task in it (a task is a folder with task.toml)")
    return 3 if wrong else 0


def _print(found: Check) -> None:
    out = console()
    mark = "[green]ok   [/]" if found.ok else "[red]wrong[/]"
    out.print(f"{mark} ", end="")
    solution = ", ".join(map(_short, found.solution)) or "none"
    untouched = ", ".join(map(_short, found.untouched)) or "none"
    out.print(f"{printable(found.task_id)}: solution {solution}; untouched {untouched}", markup=False)
    for problem in found.problems:
        out.print(f"      {printable(problem)}", markup=False)


def _print_invalid(path: Path, problems: tuple[str, ...], as_json: bool) -> None:
    if as_json:
        print_json({"path": str(path), "ok": False, "problems": list(problems)})
        return
    console().print(f"[red]wrong[/] {printable(str(path))}: not a task that can be used")
    for problem in problems:
        console().print(f"      {printable(problem)}", markup=False)


def _short(look: Observation) -> str:
    return f"{look.reward.value:g}" if look.reward is not None else (look.failure.kind if look.failure else "?")


def _record(found: Check) -> dict[str, Any]:
    def outcome(look: Observation) -> dict[str, Any]:
        return {
            "reward": look.reward.value if look.reward is not None else None,
            "failure": look.failure.to_record() if look.failure is not None else None,
        }

    return {
        "task_id": found.task_id,
        "ok": found.ok,
        "full": found.full,
        "solution": [outcome(look) for look in found.solution],
        "untouched": [outcome(look) for look in found.untouched],
        "problems": list(found.problems),
    }

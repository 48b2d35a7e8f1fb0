"""`assay run`: an agent works on every task of a dataset, each answer is kept, then graded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from .inputs import Place
from .runplace import grading_from, json_option, told_plainly, work_options
from .working import absolute, work_on


@click.command(name="run")
@click.argument("dataset", type=Place())
@click.option(
    "--agent",
    required=True,
    metavar="NAME",
    help="oracle (the tasks' own solutions), nop (nobody), command, replay (kept answers) or model.",
)
@click.option(
    "--out", required=True, type=Place(), metavar="RUN", help="The run's folder; one that is there is gone on with."
)
@click.option(
    "--rollouts", type=click.IntRange(min=1), default=1, show_default=True, metavar="K", help="Answers to each task."
)
@click.option("--store", metavar="URL", help="Where rows are kept: postgresql://… (default: RUN/run.sqlite).")
@click.option("--snapshots", metavar="URL", help="Where workspaces are kept (default: RUN/snapshots).")
@click.option("--command", "shell", metavar="CMD", help="command: a shell command, run in each task's sandbox.")
@click.option(
    "--agent-env", "env", multiple=True, metavar="NAME", help="command: a variable of this machine to give it."
)
@click.option("--agent-network", is_flag=True, help="command: let it use the network.")
@click.option(
    "--agent-timeout",
    type=click.FloatRange(min=0, min_open=True),
    metavar="S",
    help="Seconds, in place of the tasks' own.",
)
@click.option("--from", "source", type=Place(), metavar="FILE_OR_RUN", help="replay: a JSONL, a run or a Harbor job.")
@click.option("--model", metavar="NAME", help="model: which.")
@click.option("--base-url", metavar="URL", help="model: an OpenAI-compatible endpoint, up to and with its version.")
@click.option("--api-key-env", metavar="NAME", help="model: the variable of this machine that holds the key.")
@click.option(
    "--attempts",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    metavar="N",
    help="For each kind of failure.",
)
@work_options
@json_option
def command(
    dataset: Path,
    agent: str,
    out: Path,
    rollouts: int,
    store: str | None,
    snapshots: str | None,
    shell: str | None,
    env: tuple[str, ...],
    agent_network: bool,
    agent_timeout: float | None,
    source: Path | None,
    model: str | None,
    base_url: str | None,
    api_key_env: str | None,
    attempts: int,
    **values: Any,
) -> int:
    """Let an agent work on every task of DATASET, keep each answer, then grade it.

    Ctrl-C leaves a run that `assay resume` goes on with. Exit code 3 when a row ended without a reward.
    """
    from assay.grading import state_dir
    from assay.runs import AgentSettings, GradingSettings, RunSettings, collect, load_catalogue, make_place

    with told_plainly():
        wanted = AgentSettings(
            agent,
            shell,
            absolute(source) if source is not None else None,
            model,
            base_url,
            api_key_env,
            env,
            agent_network,
            agent_timeout,
        )
        settings = RunSettings(absolute(dataset), wanted, grading_from(GradingSettings(), values), rollouts)
        # Before anything is made: a dataset or root filesystem that is none leaves no run behind.
        load_catalogue(settings.dataset).require_rootfs(settings.grading.rootfs, state_dir(values["state"]))
        place = make_place(out, store=store, snapshots=snapshots)
    return work_on(
        place,
        values,
        lambda run, setting: collect(run, setting, budget=attempts),
        who=f"assay run … --out {out}",
        settings=settings,
    )

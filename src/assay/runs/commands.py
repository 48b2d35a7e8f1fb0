"""What each command that writes to a run takes up: `run`, `resume`, `recover`, `regrade`."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from assay.answers import BUDGET, Choice, Need, identities, require_tasks
from assay.grading import WrongArgument
from assay.grading.arguments import provider_of
from assay.grading.state import state_dir
from assay.runs.catalogue import Catalogue, load_catalogue
from assay.runs.conducting import Conductor, Means, Order
from assay.runs.keeping import CannotKeep, Sleep, kept
from assay.runs.left import Agent
from assay.runs.performing import SandboxAgent, Stage
from assay.runs.place import OpenRun
from assay.runs.replaying import Replayed, replay
from assay.runs.settings import GradingSettings
from assay.runs.tally import Tally, Watch, unwatched
from assay.runs.verifying import Verifier
from assay.sandbox import Provider

_WITHOUT_END: Final = 2**31 - 1
"""More attempts than there ever are."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What a command works with beside the run itself."""

    grading: GradingSettings | None = None
    """None: as the run was begun."""
    dataset: str | None = None
    """None: where the run says that it is."""
    concurrency: int | None = None
    """Identities at once; None: one for each processor."""
    state: Path | str | None = None
    provider: Provider | None = None
    """In place of the one that the settings name."""
    agent: Agent | None = None
    """In place of the one that the run's settings name."""
    watch: Watch = unwatched
    tell: Callable[[str], None] = lambda _: None
    """Told in a sentence what is being prepared, and what is wrong with it."""
    sleep: Sleep = asyncio.sleep


@dataclass(frozen=True, slots=True)
class Done:
    """What a command did."""

    command_id: str
    """Empty when it ended before it had begun."""
    tally: Tally
    replayed: Replayed | None = None
    """Of a run of kept answers: what was found in their source."""
    problems: tuple[str, ...] = field(default=())
    """Tasks of the dataset that cannot be used."""


async def collect(run: OpenRun, setting: Setting | None = None, *, name: str = "run", budget: int = BUDGET) -> Done:
    """Do what a run was asked for: agents work where no answer is kept, answers without a verdict are verified.

    `run` and `resume` are the same: an agent never works again for an answer that is kept. Raises `WrongArgument`,
    `TaskInvalid` (no task at all), `FailureEvent` (`assay:image_missing`: no such root filesystem to grade on), and
    `CancelledError` as `Conductor.conduct` does.
    """
    setting = setting or Setting()
    catalogue = await asyncio.to_thread(load_catalogue, setting.dataset or run.settings.dataset)
    means = _means(run, setting, catalogue)
    replayed, needs = None, {Need.ANSWER, Need.VERDICT}
    try:
        if name == "run" or not await asyncio.to_thread(lambda: any(identities(run.store.database))):
            await _plan(run, catalogue, setting.sleep)
        if run.settings.agent.name == "replay":
            verifier = means.verifier
            stage = Stage(verifier.provider, verifier.state, verifier.settings.rootfs, verifier.settings.network)
            replayed = await replay(run, catalogue, stage, setting.tell, setting.sleep, concurrency=means.concurrency)
            # Who is not in the source has no answer, and nobody can make one.
            needs = {Need.VERDICT}
    except CannotKeep as error:
        return Done("", Tally(stopped=str(error)), replayed, _problems(catalogue))
    command_id, tally = await Conductor(Order(name, needs, budget=budget), means).conduct()
    await _count_exhausted(run, tally, {"resume": needs, "recover": {Need.RECOVERY}}, budget)
    return Done(command_id, tally, replayed, _problems(catalogue))


async def recover(
    run: OpenRun, setting: Setting | None = None, *, budget: int = BUDGET, session_lost: bool = False
) -> Done:
    """Verify kept answers that have no verdict, or one masked by something that may have passed. Never runs an agent.

    `session_lost`: those of lost sessions, too. Raises as `collect` does.
    """
    setting = setting or Setting()
    catalogue = await asyncio.to_thread(load_catalogue, setting.dataset or run.settings.dataset)
    order = Order("recover", {Need.VERDICT, Need.RECOVERY}, budget=budget, session_lost=session_lost)
    command_id, tally = await Conductor(order, _means(run, setting, catalogue)).conduct()
    await _count_exhausted(run, tally, {"recover": order.needs}, budget, session_lost=session_lost)
    return Done(command_id, tally, problems=_problems(catalogue))


async def regrade(
    run: OpenRun,
    setting: Setting | None = None,
    *,
    choice: Choice | None = None,
    verifier: Path | None = None,
    changed_tasks: bool = False,
) -> Done:
    """Verify kept answers again, all or those chosen, with today's verifiers, or with the Python file `verifier`.

    The workspace is restored from its snapshot. A verdict is added and none is touched; `assay.answers.changes` tells what
    changed. One that was interrupted goes on where it was when it is asked for again with the same verifiers, graded the same
    way.
    `changed_tasks`: answers to another version of their task, too. Raises as `collect` does.
    """
    setting, choice = setting or Setting(), choice or Choice()
    await asyncio.to_thread(require_tasks, choice, run.store.database)
    catalogue = await asyncio.to_thread(load_catalogue, setting.dataset or run.settings.dataset)
    if verifier is not None:
        chosen = await asyncio.to_thread(lambda: {one.task_id for one in identities(run.store.database, choice=choice)})
        catalogue = catalogue.chosen(chosen).with_verifier(verifier)
    settings = {
        "task": choice.task,
        "where": dict(choice.where),
        "verifiers": await asyncio.to_thread(lambda: catalogue.verifiers_digest),
        "changed_tasks": changed_tasks,
        "grading": (setting.grading or run.settings.grading).to_json(),
    }
    order = Order("regrade", {Need.REGRADE}, choice=choice, settings=settings, join=True, changed_tasks=changed_tasks)
    command_id, tally = await Conductor(order, _means(run, setting, catalogue)).conduct()
    return Done(command_id, tally, problems=_problems(catalogue))


async def _plan(run: OpenRun, catalogue: Catalogue, sleep: Sleep) -> None:
    wanted = catalogue.identities(run.settings.rollouts)
    if run.settings.agent.name == "replay":
        # How often each was answered is for the source to say; nobody's absence from it may go unnoticed.
        wanted = [one for one in wanted if one.rollout == 0]
    await kept(lambda: run.store.plan(wanted), sleep)


async def _count_exhausted(
    run: OpenRun, tally: Tally, takers: Mapping[str, Collection[Need]], budget: int, *, session_lost: bool = False
) -> None:
    """What each command would take up if it might try without end, and does not."""
    if tally.stopped is not None:
        # Of the store, perhaps: then it tells nothing.
        return

    def waiting(needs: Collection[Need], budget: int) -> int:
        return run.store.waiting_now(needs, budget=budget, session_lost=session_lost)

    for command, needs in takers.items():
        rows = await asyncio.to_thread(waiting, needs, _WITHOUT_END) - await asyncio.to_thread(waiting, needs, budget)
        if rows:
            tally.exhausted[command] = rows


def _means(run: OpenRun, setting: Setting, catalogue: Catalogue) -> Means:
    grading = setting.grading or run.settings.grading
    provider = setting.provider or provider_of(grading.sandbox)
    state = state_dir(setting.state)
    catalogue.require_rootfs(grading.rootfs, state)
    # Looking ends, too, what a killed command had left running, before anything is verified again.
    provider.capabilities()
    concurrency = setting.concurrency or os.cpu_count() or 1
    if concurrency < 1:
        raise WrongArgument(f"concurrency: must be 1 or more, got {concurrency}")
    agent = setting.agent or agent_of(run, Stage(provider, state, grading.rootfs, grading.network))
    verifier = Verifier(provider, run.snapshots, state, grading)
    return Means(run, catalogue, verifier, agent, concurrency, setting.watch, setting.sleep)


def agent_of(run: OpenRun, stage: Stage) -> Agent | None:
    """The agent that a run's settings name; None for kept answers."""
    wanted = run.settings.agent
    if wanted.name == "replay":
        return None
    if wanted.name == "model":
        # Loaded where it is needed: HTTP takes long to load.
        from assay.runs.modelling import ModelAgent

        return ModelAgent(wanted.model or "", wanted.base_url or "", wanted.api_key_env, wanted.timeout_s)
    return SandboxAgent(stage, wanted.name, wanted.command, wanted.env, wanted.network, wanted.timeout_s)


def _problems(catalogue: Catalogue) -> tuple[str, ...]:
    return tuple(f"{name}: {'; '.join(one.problems)}" for name, one in catalogue.invalid.items())

"""The whole way: an agent's verify call, a network that loses a third of the replies, and a server that keeps keys."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from assay.client import ServerClient
from assay.client.testing import AgentServer
from serving import ScriptedGrader, served
from spoiling import Spoiler

FULL = os.environ.get("ASSAY_SOAK") == "1"
COUNT = 2000 if FULL else 150
AT_ONCE = 40


async def no_wait(seconds: float) -> None:
    pass


@pytest.mark.slow
@pytest.mark.parametrize("gets_too", [False, True])
async def test_none_runs_twice_none_is_altered_and_no_answer_is_lost(
    counting: Path, tmp_path: Path, gets_too: bool
) -> None:
    grader = ScriptedGrader(lambda chosen, _: reward(chosen.row["answer"]))
    async with served(counting, grader, state=tmp_path / "state") as server:
        spoiler = Spoiler(int(server.server.url.rpartition(":")[2]), random.Random(4), gets_too=gets_too)
        async with (
            spoiler.listening() as url,
            ServerClient({"verifier": url}) as client,
            AgentServer(make_answer, client, "verifier", sleep=no_wait) as agent,
            ServerClient({"agent": agent.url}) as trainer,
        ):
            room = asyncio.Semaphore(AT_ONCE)

            async def run(number: int) -> dict[str, Any]:
                async with room:
                    return dict((await trainer.post("agent", "/run", json={"answer": f"a{number}"})).json())

            rows = await asyncio.gather(*(run(number) for number in range(COUNT)))
    graded = [row for row in rows if not row["mask_sample"]]
    masked = [row for row in rows if row["mask_sample"]]
    print(
        f"{COUNT} verifications, {sum(spoiler.spoiled.values())} replies spoiled, {len(graded)} graded "
        f"({len(graded) / COUNT:.1%}), {len(masked)} masked, {sum(grader.visits.values())} run"
    )
    assert max(grader.visits.values()) == 1
    assert all(row["reward"] == reward(row["answer"]) for row in graded)
    assert [row["response"]["output_text"] for row in rows] == [f"answer a{number}" for number in range(COUNT)]
    assert {row["_ng_failure_class"] for row in masked} <= {"agent_route_failed"}
    assert all(row["reward"] == 0.0 for row in masked)
    assert sum(spoiler.spoiled.values()) > COUNT / 4
    # Four attempts leave 1.2 % to lose; where so few are asked, chance may take some more.
    assert len(graded) >= (0.98 if FULL and not gets_too else 0.94) * COUNT


def make_answer(row: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"output_text": f"answer {row['answer']}"}


def reward(answer: str) -> float:
    """Another one for each answer: one that is given to the wrong answer is seen."""
    return 1.0 + int(answer[1:])

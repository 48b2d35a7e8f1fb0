"""Room for verifications: how many, who next, who not at all."""

from __future__ import annotations

import asyncio
import math

import pytest

from assay.server.admission import Admission, Deadline
from assay.server.refusal import NotAdmitted

FOREVER = Deadline(math.inf)


class Crowd:
    """Clients that enter and leave when the test says so."""

    def __init__(self, admission: Admission) -> None:
        self.admission = admission
        self.entered: list[str] = []
        self.leave: dict[str, asyncio.Event] = {}

    async def come(self, name: str, deadline: Deadline = FOREVER) -> asyncio.Task[None]:
        """A piece of work named after its client's first letter."""
        self.leave[name] = asyncio.Event()
        task = asyncio.create_task(self._stay(name, deadline))
        await asyncio.sleep(0)
        return task

    async def go(self, name: str) -> None:
        self.leave[name].set()
        for _ in range(5):
            await asyncio.sleep(0)

    async def _stay(self, name: str, deadline: Deadline) -> None:
        async with self.admission.room(name[0], deadline):
            self.entered.append(name)
            await self.leave[name].wait()


async def test_never_more_than_so_many_at_once() -> None:
    crowd = Crowd(Admission(2, 10))
    tasks = [await crowd.come(name) for name in ("a1", "a2", "a3")]
    assert (crowd.entered, crowd.admission.running, crowd.admission.waiting) == (["a1", "a2"], 2, 1)
    await crowd.go("a2")
    assert (crowd.entered, crowd.admission.running, crowd.admission.waiting) == (["a1", "a2", "a3"], 2, 0)
    await crowd.go("a1")
    await crowd.go("a3")
    await asyncio.gather(*tasks)
    assert crowd.admission.running == 0


async def test_the_queue_is_served_round_robin_over_clients() -> None:
    crowd = Crowd(Admission(1, 100))
    names = ["a0", "a1", "a2", "a3", "b1", "b2", "c1"]
    tasks = [await crowd.come(name) for name in names]
    for _ in names:
        await crowd.go(crowd.entered[-1])
    await asyncio.gather(*tasks)
    assert crowd.entered == ["a0", "a1", "b1", "c1", "a2", "b2", "a3"]


async def test_a_full_queue_refuses() -> None:
    crowd = Crowd(Admission(1, 2))
    tasks = [await crowd.come(name) for name in ("a1", "a2", "a3", "a4")]
    with pytest.raises(NotAdmitted, match="2 verifications wait already; nothing ran") as refused:
        await tasks.pop()
    assert refused.value.headers()["Retry-After"] == "2"
    for name in ("a1", "a2", "a3"):
        await crowd.go(name)
    await asyncio.gather(*tasks)


async def test_what_is_late_is_dropped_when_its_turn_comes() -> None:
    now = 0.0
    crowd = Crowd(Admission(1, 10, clock=lambda: now))
    first = await crowd.come("a1", Deadline(5))
    late = await crowd.come("a2", Deadline(5))
    joined = Deadline(5)
    extended = await crowd.come("a3", joined)
    joined.extend(50)
    now = 10.0
    await crowd.go("a1")
    with pytest.raises(NotAdmitted, match="deadline passed"):
        await late
    assert crowd.entered == ["a1", "a3"]
    await crowd.go("a3")
    await asyncio.gather(first, extended)
    with pytest.raises(NotAdmitted, match="deadline passed"):
        await (await crowd.come("a4", Deadline(9)))
    assert crowd.admission.running == 0


async def test_who_stops_waiting_takes_no_room() -> None:
    crowd = Crowd(Admission(1, 10))
    first, second, third = [await crowd.come(name) for name in ("a1", "a2", "b3")]
    second.cancel()
    await asyncio.sleep(0)
    assert crowd.admission.waiting == 1
    # Room is given to the third in the very moment in which it stops waiting.
    crowd.leave["a1"].set()
    await asyncio.sleep(0)
    assert crowd.admission.running == 1
    third.cancel()
    await asyncio.gather(first, second, third, return_exceptions=True)
    assert (crowd.admission.running, crowd.admission.waiting, crowd.entered) == (0, 0, ["a1"])


async def test_closed_it_admits_nobody_and_gives_no_room() -> None:
    crowd = Crowd(Admission(1, 10))
    first, second = await crowd.come("a1"), await crowd.come("a2")
    crowd.admission.close()
    with pytest.raises(NotAdmitted, match="stopping"):
        await (await crowd.come("a3"))
    await crowd.go("a1")
    assert (crowd.entered, first.done(), second.done()) == (["a1"], True, False)
    second.cancel()

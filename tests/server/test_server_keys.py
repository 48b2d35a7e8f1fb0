"""Each key once: the store of keys and the work that it keeps apart, in any order of requests, losses, restarts and crashes."""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from sqlalchemy import Connection, text

from assay.answers import Snapshots, StoreUnusable
from assay.failures import FailureEvent
from assay.server.admission import Admission
from assay.server.catalogue import load_catalogue
from assay.server.keys import KEPT_S, KEYS_KEPT_S, Key, KeyStore, open_keys
from assay.server.metrics import Metrics
from assay.server.refusal import NotAdmitted, Refused
from assay.server.request import read_verify
from assay.server.uploads import Uploads
from assay.server.verifications import Outcome, Running, Verifications
from serving import ScriptedGrader, make_dataset

KEYS = ("k1", "k2", "k3")
BODIES = ("a", "b")


class Broken:
    """A database that can be made to fail its writes, as a full disk does."""

    def __init__(self, database: Any) -> None:
        self._database = database
        self.fails = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    async def write(self, work: Callable[[Connection], Any]) -> Any:
        if self.fails:
            raise FailureEvent("persistence_failed", "the disk is full")
        return await self._database.write(work)


class Exactly(RuleBasedStateMachine):
    """Clients send requests under few keys; graders are held until a rule lets them go."""

    mode = "unsupported"

    @initialize()
    def begin(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.place = Path(tempfile.mkdtemp(prefix="keys-"))
        self.dataset = make_dataset(self.place / "dataset", self.mode)
        self.lives = 0
        self.at_grader: list[tuple[str, asyncio.Future[float]]] = []
        self.work: list[tuple[str, str, Running]] = []
        self.starts: Counter[str] = Counter()
        self.committed: dict[str, set[str]] = defaultdict(set)
        self.told: dict[tuple[str, str], set[str]] = defaultdict(set)
        self.rewards = 0
        self.loop.run_until_complete(self.live(self.place / "0"))

    def teardown(self) -> None:
        if hasattr(self, "loop"):
            self.loop.run_until_complete(self.die(leave=True))
            self.loop.run_until_complete(self.loop.shutdown_default_executor())
            self.loop.close()
            shutil.rmtree(self.place)

    async def live(self, folder: Path) -> None:
        self.folder = folder
        self.keys = open_keys(folder / "keys.sqlite")
        self.database = self.keys._database = Broken(self.keys._database)  # type: ignore[assignment] # stands in for it
        admission = Admission(2, 100)
        uploads = Uploads(Snapshots(self.place / "snapshots", unpacked=self.place / "un"), self.place / "up", 1000)
        self.verifications = Verifications(
            load_catalogue(self.dataset),
            ScriptedGrader(self.held),
            self.keys,
            uploads,
            admission,
            Metrics(admission),
        )

    def held(self, chosen: Any, workspace: object) -> asyncio.Future[float]:
        future: asyncio.Future[float] = self.loop.create_future()
        self.at_grader.append((chosen.row["key"], future))
        self.starts[chosen.row["key"]] += 1
        return future

    async def die(self, *, leave: bool) -> None:
        """All work ends where it is; with `leave` the store is closed as a server that drains closes it."""
        for task in self.verifications.under_way:
            task.cancel()
        while self.verifications.under_way:
            await asyncio.wait(self.verifications.under_way)
        self.at_grader.clear()
        self.hear()
        self.work.clear()
        self.database.fails = False
        await self.keys.aclose()

    def hear(self) -> None:
        """What the clients are told by work that is done."""
        for key, body, running in [one for one in self.work if one[2].task.done()]:
            self.work.remove((key, body, running))
            if not running.task.cancelled() and running.task.exception() is None:
                self.note(key, body, running.task.result())

    def note(self, key: str, body: str, outcome: Outcome) -> None:
        verdict = json.loads(outcome.verdict)
        if (verdict["failure"] or {}).get("kind") != "persistence_failed":
            self.told[key, body].add(verdict["verdict_id"])

    async def settle(self) -> None:
        """Until everything that is under way is held by a grader, waits for room, or is done."""
        while any(
            not task.done() and task not in self.verifications._begun for task in self.verifications.under_way
        ) and (self.verifications.admission.waiting + len(self.at_grader) < len(self.verifications.under_way)):
            await asyncio.sleep(0)
        while len(
            [1 for _, future in self.at_grader if not future.done()]
        ) + self.verifications.admission.waiting < len(self.verifications.under_way):
            await asyncio.sleep(0)
        self.hear()

    async def send(self, key: str, body: str) -> None:
        request = read_verify(json.dumps({"key": key, "body": body}).encode())
        try:
            running = self.verifications.begin(request, "client", key, None)
        except Refused:
            return
        self.work.append((key, body, running))

    @rule(key=st.sampled_from(KEYS), body=st.sampled_from(BODIES), steps=st.none() | st.integers(0, 30))
    def request(self, key: str, body: str, steps: int | None) -> None:
        """A request; with `steps` nothing waits until it has settled, so that what comes next comes in its middle."""

        async def go() -> None:
            await self.send(key, body)
            await self.after(steps)

        self.loop.run_until_complete(go())

    async def after(self, steps: int | None) -> None:
        if steps is None:
            await self.settle()
            return
        for _ in range(steps):
            await asyncio.sleep(0)

    @rule(which=st.integers(0, 9), steps=st.none() | st.integers(0, 30), bug=st.booleans())
    def graded(self, which: int, steps: int | None, bug: bool) -> None:
        """One of the graders is done, or fails as only a bug can."""
        if not self.at_grader:
            return

        async def go() -> None:
            _, future = self.at_grader.pop(which % len(self.at_grader))
            self.rewards += 1
            if not future.done():
                if bug:
                    future.set_exception(ZeroDivisionError("oops"))
                else:
                    future.set_result(float(self.rewards))
            await self.after(steps)

        self.loop.run_until_complete(go())

    @rule(fails=st.booleans())
    def disk(self, fails: bool) -> None:
        self.database.fails = fails

    @rule()
    def restart(self) -> None:
        async def go() -> None:
            await self.die(leave=True)
            await self.live(self.folder)

        self.loop.run_until_complete(go())

    @rule()
    def crash(self) -> None:
        """What is on the disk now is all there is: the process never gets to say goodbye."""

        async def go() -> None:
            self.lives += 1
            after = self.place / str(self.lives)
            after.mkdir()
            for name in ("keys.sqlite", "keys.sqlite-wal"):
                if (self.folder / name).exists():
                    shutil.copyfile(self.folder / name, after / name)
            # Nobody hears from the dead server any more: its clients' connections are gone with it.
            self.hear()
            self.work.clear()
            await self.die(leave=False)
            await self.live(after)

        self.loop.run_until_complete(go())

    @invariant()
    def at_most_one_verdict(self) -> None:
        if not hasattr(self, "loop"):
            return
        rows = self.keys._database.read_now(
            lambda connection: connection.execute(text("SELECT key, verdict_id FROM keys WHERE state = 'done'")).all()
        )
        for key, verdict_id in rows:
            self.committed[key].add(verdict_id)
        for key, verdicts in self.committed.items():
            assert len(verdicts) == 1, f"{key} has the verdicts {verdicts}"

    @invariant()
    def everybody_is_told_the_same(self) -> None:
        for (key, body), verdicts in getattr(self, "told", {}).items():
            assert len(verdicts) <= 1, f"{key} with {body} was told {verdicts}"
            other = {one for (k, b), told in self.told.items() if k == key and b != body for one in told}
            assert not (verdicts and other), f"{key} stands for two requests"

    @invariant()
    def what_was_told_is_kept(self) -> None:
        for (key, _), verdicts in getattr(self, "told", {}).items():
            assert verdicts <= self.committed[key]

    @invariant()
    def not_started_twice(self) -> None:
        if self.mode != "stateless":
            assert all(count == 1 for count in getattr(self, "starts", {}).values()), self.starts


class Stateless(Exactly):
    mode = "stateless"


TestExactlyOnce = Exactly.TestCase
TestExactlyOnce.settings = settings(
    max_examples=40, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
TestStateless = Stateless.TestCase
TestStateless.settings = settings(
    max_examples=15, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)


async def test_a_key_keeps_its_first_verdict(tmp_path: Path) -> None:
    keys = open_keys(tmp_path / "keys.sqlite")
    for verdict in ("1", "2"):
        await keys.finish(key_of("k"), verdict, verdict, b"")
    found = await keys.find("client", "k")
    assert found is not None
    assert found.verdict == "1"
    await keys.aclose()


def key_of(name: str) -> Key:
    return Key("client", name, "body", "task", "sha256:t", "sha256:v")


async def test_one_server_at_a_time(tmp_path: Path) -> None:
    first = open_keys(tmp_path / "keys.sqlite")
    with pytest.raises(StoreUnusable, match="another server has it"):
        open_keys(tmp_path / "keys.sqlite")
    await first.aclose()
    await open_keys(tmp_path / "keys.sqlite").aclose()


async def test_what_is_finished_together_is_kept_together(tmp_path: Path) -> None:
    keys = open_keys(tmp_path / "keys.sqlite")
    await asyncio.gather(*(keys.finish(key_of(str(n)), f"v{n}", "{}", b"") for n in range(100)))
    found = [await keys.find("client", str(n)) for n in range(100)]
    assert all(one is not None and one.verdict == "{}" for one in found)
    await keys.aclose()


@pytest.mark.parametrize(
    ("age_s", "kept_key", "kept_verdict"),
    [(0.0, True, True), (KEYS_KEPT_S - 1, True, True), (KEYS_KEPT_S + 1, False, False), (KEPT_S + 1, False, False)],
)
async def test_what_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, age_s: float, kept_key: bool, kept_verdict: bool
) -> None:
    """A key with a verdict that is not among the latest: kept a day. Without so many others: a week."""
    monkeypatch.setattr("assay.server.keys.VERDICTS_MAX", 3)
    now = 1e9
    keys = KeyStore(*_parts(open_keys(tmp_path / "keys.sqlite")), clock=lambda: now)
    await keys.finish(key_of("old"), "old", "{}", b"")
    await keys.start(key_of("cut"))
    now += age_s
    for n in range(3):
        await keys.finish(None, f"v{n}", "{}", b"")
    await keys.prune()
    assert (await keys.find("client", "old") is not None) == kept_key
    assert (await keys.verdict("old") is not None) == kept_verdict
    assert (await keys.find("client", "cut") is not None) == (age_s < KEPT_S)
    assert [await keys.verdict(f"v{n}") for n in range(3)] == ["{}"] * 3
    assert len(keys._there) == kept_key + (age_s < KEPT_S)
    await keys.aclose()


async def test_a_key_that_begins_anew_while_its_old_self_is_forgotten_is_known(tmp_path: Path) -> None:
    now = 1e9
    keys = KeyStore(*_parts(open_keys(tmp_path / "keys.sqlite")), clock=lambda: now)
    for name in ("again", "old"):
        await keys.finish(key_of(name), name, "{}", b"")
    now += KEPT_S + 1
    pruning = asyncio.ensure_future(keys.prune())
    # The write that forgets is handed over; the one that begins comes after it.
    await asyncio.sleep(0)
    await asyncio.gather(pruning, keys.start(key_of("again")))
    found = [await keys.find("client", name) for name in ("again", "old")]
    assert found[0] is not None
    assert (found[0].verdict, found[1], len(keys._there)) == (None, None, 1)
    await keys.aclose()


def _parts(keys: KeyStore) -> tuple[Any, int]:
    return keys._database, keys._lock


async def test_no_start_that_cannot_be_kept(tmp_path: Path) -> None:
    """A full disk before a run that may not be repeated: it does not run, and the key is not used up."""
    machine = Exactly()
    machine.loop = asyncio.get_running_loop()
    machine.place = tmp_path
    machine.dataset = make_dataset(tmp_path / "dataset", "unsupported")
    machine.at_grader, machine.work, machine.starts = [], [], Counter()
    machine.told, machine.rewards = defaultdict(set), 0
    await machine.live(tmp_path / "0")
    machine.database.fails = True
    await machine.send("k1", "a")
    with pytest.raises(NotAdmitted, match="nothing ran"):
        await machine.work[0][2].task
    machine.work.clear()
    machine.database.fails = False
    await machine.send("k1", "a")
    await machine.settle()
    assert machine.starts == {"k1": 1}
    machine.at_grader[0][1].set_result(1.0)
    machine.at_grader.clear()
    assert json.loads((await machine.work[0][2].task).verdict)["reward"] == 1.0
    await machine.die(leave=True)

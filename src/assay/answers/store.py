"""The store of a run: every write that a command makes, each acknowledged once it is on disk.

Reading it is in `summary` (counts and means), `streams` (rows) and `history` (one answer).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from sqlalchemy import Connection, text
from ulid import ULID

from assay.answers import attempts, claims, planning
from assay.answers.choice import Choice
from assay.answers.claims import Need
from assay.answers.database import Database, open_database
from assay.answers.holding import Hold
from assay.answers.place import place_of
from assay.answers.rows import Answer, Attempt, Claim, Command, Identity, Kept, Run, Waiting
from assay.answers.schema import RUNS
from assay.answers.states import BUDGET
from assay.answers.verdicts import Arrival, add_verdict, learn, settle, wanted
from assay.failures import FailureEvent
from assay.grading import Verdict

LEASE_S: Final = 120.0
"""How long a lease lasts that nobody renews."""

_EVERYTHING: Final = Choice()


class Store:
    """An open run. `open_store` makes it; `close` it, or use it as a context manager.

    Methods that write are awaited, and return once the write is on disk; whoever is cancelled meanwhile does not undo it. A
    fault of the database is a `FailureEvent` of kind `persistence_failed`. Methods that end in `_now` block.
    """

    def __init__(self, database: Database, hold: Hold | None, clock: Callable[[], float]) -> None:
        """`hold` is the right to write, for a store in a file."""
        self.database = database
        self.owner = str(ULID())
        """This process, as leases and attempts name it."""
        self._hold = hold
        self._clock = clock
        self._reached: dict[str, int] = {}
        """By command: the position of what was claimed last."""

    def create_run_now(self, settings: Mapping[str, Any]) -> Run:
        """Begin the run, unless it was begun: then the run as it was. `settings`: JSON values."""
        run_id = str(ULID())
        return self.database.write_now(lambda c: planning.create_run(c, run_id, settings, self._now(c)))

    def run_now(self) -> Run | None:
        """The run, or None before it was begun."""
        return self.database.read_now(planning.read_run)

    async def begin_command(self, name: str, settings: Mapping[str, Any], *, join: bool = False) -> str:
        """Note that a command begins, and return its id (a ULID).

        With `join`: the latest command of that name and those settings that has not ended, if there is one. That is how a
        `regrade` that was killed goes on instead of beginning anew, and how several machines share one.
        """
        command_id = str(ULID())
        return await self.database.write(
            lambda c: planning.begin_command(c, command_id, name, settings, self._now(c), join=join)
        )

    async def end_command(self, command_id: str) -> None:
        """Note that a command has done all it was for."""
        await self.database.write(lambda c: planning.end_command(c, command_id, self._now(c)))

    def commands_now(self) -> list[Command]:
        """Every command, in the order they began."""
        return self.database.read_now(planning.read_commands)

    async def plan(self, identities: Iterable[Identity]) -> int:
        """Make identities part of the run, in this order after those that are; how many were new."""
        listed = list(identities)
        return await self.database.write(lambda c: planning.plan(c, listed))

    async def claim(
        self,
        needs: Collection[Need],
        limit: int,
        *,
        command_id: str,
        choice: Choice = _EVERYTHING,
        budget: int = BUDGET,
        session_lost: bool = False,
        lease_s: float = LEASE_S,
    ) -> list[Claim]:
        """Take up to `limit` identities to work on, in the run's order; empty when there is nothing left to take.

        An identity is held by one process at a time, until it is finished, released, or its lease ends without a `renew`.
        This command does not get one again that it finished. `resume` needs `{ANSWER, VERDICT}`, `recover`
        `{VERDICT, RECOVERY}`, `regrade` `{REGRADE}`. `budget`: attempts for each answer and kind of failure; one that had
        them is left out. `session_lost`: whether lost sessions are recovered, too. Raises `WrongArgument` for a bad choice.
        """
        choice.conditions()
        after = self._reached.get(command_id, -1)
        taken: list[Claim] = []

        def work(connection: Connection) -> tuple[list[Claim], int]:
            # It may have been committed before, unknown to us: what it took then would be held and worked on by nobody.
            if taken and claims.are_held(connection, taken, self.owner):
                return taken, after
            taken[:], last = claims.claim(
                connection,
                needs,
                limit,
                owner=self.owner,
                command_id=command_id,
                now=self._now(connection),
                lease_s=lease_s,
                choice=choice,
                budget=budget,
                session_lost=session_lost,
                after=after,
            )
            return taken, last

        found, self._reached[command_id] = await self.database.write(work)
        return found

    def waiting_now(
        self,
        needs: Collection[Need],
        *,
        command_id: str | None = None,
        choice: Choice = _EVERYTHING,
        budget: int = BUDGET,
        session_lost: bool = False,
    ) -> int:
        """How many identities `claim` would give in the end, those included that somebody holds now."""
        return self.database.read_now(
            lambda c: claims.waiting(
                c, needs, command_id=command_id, choice=choice, budget=budget, session_lost=session_lost
            )
        )

    async def renew(self, lease_s: float = LEASE_S) -> None:
        """Make all leases of this process last so long from now: to be called several times within a lease."""
        await self.database.write(lambda c: claims.renew(c, self.owner, self._now(c) + lease_s))

    async def release(self, identity: Identity | None = None) -> None:
        """Give one identity back unfinished, or all that this process holds."""
        await self.database.write(lambda c: claims.release(c, self.owner, identity))

    async def begin_attempt(
        self,
        identity: Identity,
        *,
        stage: str,
        command_id: str,
        answer_id: str | None = None,
        repeatable: bool = True,
    ) -> str:
        """Note that an attempt begins, before anything of it does; its id. `stage`: `agent` or `verification`.

        `repeatable=False`: if this process dies, nobody may do the same again (a verifier that is not stateless).
        """
        attempt_id = str(ULID())
        await self.database.write(
            lambda c: attempts.begin(
                c,
                Attempt(
                    attempt_id, identity, answer_id, stage, command_id, self.owner, repeatable, self._now(c),
                    None, None, None, None,
                ),
            )
        )  # fmt: skip
        return attempt_id

    async def keep_answer(
        self, answer: Answer, *, trajectory: bytes | None = None, attempt_id: str | None = None
    ) -> str:
        """Keep an answer, and end the agent's attempt. Returns the id of the answer that is kept.

        There is one for each identity: when another one is there already (this process' lease had ended), that stays, its id
        is returned, and it is somebody else's to grade. Otherwise the identity stays this process' to grade. `trajectory`: a
        file's content. An identity that was not planned is planned.
        """
        return await self.database.write(
            lambda c: attempts.keep_answer(c, answer, trajectory, attempt_id, self._now(c))
        )

    async def fail_agent(
        self,
        attempt_id: str,
        failure: FailureEvent,
        *,
        terminal: bool = False,
    ) -> None:
        """End an agent's attempt that left no answer, and give the identity back. `terminal`: no other try would help."""
        record, events = failure.to_record(), _events(failure)
        await self.database.write(
            lambda c: attempts.fail_agent(c, attempt_id, record, events, self._now(c), terminal=terminal)
        )

    async def keep_verdict(
        self,
        answer_id: str,
        verdict: Verdict | Mapping[str, Any],
        *,
        attempt_id: str | None = None,
        command_id: str | None = None,
        terminal: bool = False,
        events: Sequence[Mapping[str, Any]] = (),
    ) -> Kept | None:
        """Add a verdict to an answer's, end its attempt, give the identity back; all of it or nothing.

        None, and nothing is added, when the attempt's lease had ended and somebody else holds the identity or has finished
        it: it is then graded by them. A verdict without an attempt (imported with its answer) needs no lease. `terminal`:
        verifying the saved answer alone cannot settle it. `events`: records of failures that were seen on the way, beside
        the verdict's own.
        """
        body = verdict.to_dict() if isinstance(verdict, Verdict) else dict(verdict)

        def work(connection: Connection) -> Kept | None:
            now = self._now(connection)
            arrival = Arrival(body, answer_id, now, command_id, attempt_id, terminal)
            if attempt_id is None:
                return add_verdict(connection, arrival)
            if not attempts.end_graded(connection, attempt_id, body, [*events, *_failures(body)], now, self.owner):
                return None
            return add_verdict(connection, arrival)

        return await self.database.write(work)

    def wanted_now(self) -> list[Waiting]:
        """The evidence that current provisional verdicts wait for: what to `learn`, where it is known by now."""
        return self.database.read_now(wanted)

    async def learn(
        self, key: str, *, task_id: str, verifier_digest: str | None, proven_by: str | None, floor: float | None
    ) -> tuple[Identity, ...]:
        """Keep evidence that did not come with a verdict, and settle what it settles; the identities settled.

        `key` is that of a verdict's `evidence`. Verdicts bring their own; this is for controls that were run since.
        """

        def work(connection: Connection) -> tuple[Identity, ...]:
            now = self._now(connection)
            learn(
                connection,
                key,
                task_id=task_id,
                verifier_digest=verifier_digest,
                proven_by=proven_by,
                floor=floor,
                now=now,
            )
            return tuple(settle(connection, key, now))

        return await self.database.write(work)

    async def take_over_interrupted(self) -> list[Attempt]:
        """End, as `interrupted`, the attempts whose process is gone, and return them. They count against no budget.

        Those that are not `repeatable` must not be made again: whoever asks adds their verdict (`session_lost`).
        """
        return await self.database.write(lambda c: attempts.take_over(c, self._now(c), self.owner))

    def close(self) -> None:
        """Make the writes that were handed over, give back what this process holds, close. Harmless when repeated."""
        try:
            if self._hold is not None or self.database.writes:
                self.database.write_now(lambda c: claims.release(c, self.owner))
        except (FailureEvent, RuntimeError):
            # Leases end by themselves; what brought this about was said to whoever wrote.
            pass
        finally:
            self.database.close()
            if self._hold is not None:
                self._hold.release()

    def __enter__(self) -> Store:
        """The store itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()

    def _now(self, connection: Connection) -> float:
        """One clock for all who share leases: the database server's, where there is one."""
        if connection.dialect.name == "postgresql" and self._clock is time.time:
            return float(connection.execute(text("SELECT extract(epoch FROM clock_timestamp())")).scalar_one())
        return self._clock()


def open_store(
    where: str | Path,
    *,
    namespace: str = "assay",
    writing: bool = True,
    who: str = "assay",
    clock: Callable[[], float] = time.time,
) -> Store:
    """Open the run in a file (`RUN/run.sqlite`) or at a `postgresql://` URL; with `writing` it is made or brought up to date.

    In a file, one command at a time writes: `who` is what a second one is told. In PostgreSQL many share it; `namespace` is
    the schema, one for each run. Blocks.

    Raises `StoreHeld` (a `StoreUnusable`) when another command writes to it; `StoreUnusable` when a newer Assay wrote it, it
    is something else, it cannot be reached, or (without `writing`) nothing is there.
    """
    place = place_of(where, namespace)
    with ExitStack() as undone:
        hold = Hold(place.path, who) if writing and place.path is not None else None
        if hold is not None:
            undone.callback(hold.release)
        database = open_database(where, RUNS, namespace=namespace, writing=writing)
        undone.callback(database.close)
        if hold is not None:
            # Nobody else is here: what a killed process held is free at once.
            database.write_now(lambda c: claims.release(c, None))
        undone.pop_all()
    return Store(database, hold, clock)


def _events(failure: FailureEvent) -> list[Mapping[str, Any]]:
    return [event.to_record() for event in (*failure.earlier, failure)]


def _failures(body: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [body["failure"]] if body.get("failure") else []

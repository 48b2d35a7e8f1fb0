"""One command, from its start to the proof that all of it is dead.

Providers differ in how a command is started (`Launched`); what happens after that is the same for all, and here: streams,
deadlines, limits, evidence, death.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from signal import SIGKILL

from assay.failures import FailureEvent
from assay.sandbox.base import Ended, ExecResult, Limits
from assay.sandbox.cgroups import Counters, Group
from assay.sandbox.launch import SETUP_S, End, Launched, Seen, SetupFailed, Stdio, local_failure
from assay.sandbox.procfs import cpu_of, run_delay_of
from assay.sandbox.streams import Feeder, Sink, make_pipe
from assay.sandbox.waiting import Insistence, readable

_CPU_POLL_S = 0.02
_EMPTY_POLL_S = 0.001
_NOT_SET_UP = "the sandbox could not be set up"


@dataclass(frozen=True, slots=True)
class Request:
    """A command to run, and what it may use."""

    timeout_s: float | None
    stdin: bytes
    merge_stderr: bool
    limits: Limits
    owner: int | None
    """The uid its pipes belong to; None for the supervisor's own."""
    group: Group | None


class _NotWanted(Exception):
    """The command was ended before it started."""


class Run:
    """One running command."""

    def __init__(self, request: Request) -> None:
        """Nothing is started yet."""
        self._request = request
        self._ending: asyncio.Future[Ended | None] = asyncio.get_running_loop().create_future()
        self.lost = False
        """Whether its processes could not be proven dead."""
        self._before = self._after = Counters()
        self._cpu_s: float | None = None
        self._run_delay_s: float | None = None

    def stop(self, how: Ended) -> None:
        """End the command for this reason, unless it has ended already."""
        if not self._ending.done():
            self._ending.set_result(how)

    async def execute(self, start: Callable[[Stdio], Launched]) -> ExecResult:
        """Start, watch, end and prove dead. A cancellation goes on when all that is done.

        Raises `FailureEvent` when the sandbox cannot be started, or cannot be proven dead.
        """
        patience = Insistence()
        with contextlib.ExitStack() as stack:
            try:
                launched, sinks = self._open(start, stack)
            except OSError as error:
                raise local_failure(error, "make the pipes of a sandbox") from error
            began = time.monotonic()
            try:
                fault = await self._up(launched, patience)
                began = time.monotonic()
                if fault is None and not patience.cancelled:
                    try:
                        await self._watch(launched)
                    except asyncio.CancelledError:
                        patience.cancelled = True
            finally:
                self._look_back(launched)
                await self._down(launched, patience)
            wall_s = time.monotonic() - began
            for sink in sinks:
                sink.finish()
            patience.release()
            return self._result(launched, sinks, fault, wall_s)

    def _open(self, start: Callable[[Stdio], Launched], stack: contextlib.ExitStack) -> tuple[Launched, list[Sink]]:
        request = self._request
        with contextlib.ExitStack() as given:
            sinks = []
            write_ends = []
            for _ in range(1 if request.merge_stderr else 2):
                read_end, write_end = make_pipe(request.owner)
                given.callback(os.close, write_end)
                write_ends.append(write_end)
                keep, most = request.limits.output_keep_bytes, request.limits.output_max_bytes
                sink = Sink(read_end, keep, most, lambda: self.stop(Ended.OUTPUT_LIMIT))
                stack.callback(sink.close)
                sinks.append(sink)
            feeder = None
            if request.stdin:
                stdin, feed = make_pipe(request.owner)
                feeder = Feeder(feed, request.stdin)
                stack.callback(feeder.close)
            else:
                stdin = os.open(os.devnull, os.O_RDONLY)
            given.callback(os.close, stdin)
            launched = start(Stdio(stdin, write_ends[0], write_ends[-1]))
            stack.callback(launched.close)
        for stream in (*sinks, feeder):
            if stream is not None:
                stream.start()
        return launched, sinks

    async def _up(self, launched: Launched, patience: Insistence) -> str | None:
        """Bring the sandbox to the point where the command starts, and start it; what went wrong instead."""

        def bound(joining: int | None) -> None:
            group = self._request.group
            if group is not None:
                self._before = group.begin()
                if joining is not None:
                    group.join(joining)
            if self._ending.done() or patience.cancelled:
                raise _NotWanted

        try:
            await launched.begin(bound, patience)
        except _NotWanted:
            return None
        except SetupFailed as error:
            return str(error) or _NOT_SET_UP
        except OSError as error:
            return f"the sandbox could not be limited: {error}"
        return None

    async def _watch(self, launched: Launched) -> None:
        loop = asyncio.get_running_loop()
        request = self._request
        timers: dict[str, asyncio.TimerHandle] = {}

        def over(_: asyncio.Future[None]) -> None:
            if not self._ending.done():
                self._ending.set_result(None)

        def look_at_cpu() -> None:
            used = self._cpu_used(launched)
            if request.limits.cpu_s is not None and used is not None and used >= request.limits.cpu_s:
                self.stop(Ended.CPU_LIMIT)
            else:
                timers["cpu"] = loop.call_later(_CPU_POLL_S, look_at_cpu)

        with contextlib.ExitStack() as stack:
            for fd in launched.exit_fds:
                stack.enter_context(readable(fd)).add_done_callback(over)
            if request.timeout_s is not None:
                timers["wall"] = loop.call_later(request.timeout_s, self.stop, Ended.WALL_LIMIT)
            if request.limits.cpu_s is not None:
                look_at_cpu()
            try:
                await self._ending
            finally:
                for timer in timers.values():
                    timer.cancel()

    def _cpu_used(self, launched: Launched) -> float | None:
        group = self._request.group
        if group is not None and (used := group.counters().cpu_s) is not None:
            return used - (self._before.cpu_s or 0.0)
        return sum(map(cpu_of, launched.processes()))

    def _living(self, launched: Launched) -> list[int]:
        return launched.processes() if self._request.group is None else self._request.group.pids()

    def _look_back(self, launched: Launched) -> None:
        """See what can only be seen while the processes live."""
        if self._ending.done() and not self._ending.cancelled() and self._ending.result() is Ended.WALL_LIMIT:
            # Not pid 1, which is no part of the command and may have waited long before it.
            living = [pid for pid in self._living(launched) if pid != launched.pid1]
            self._run_delay_s = max(map(run_delay_of, living), default=0.0)

    async def _down(self, launched: Launched, patience: Insistence) -> None:
        group = self._request.group
        deadline = time.monotonic() + SETUP_S
        launched.kill()
        dead = await launched.prove_dead(patience, SETUP_S)
        while dead and group is not None and not group.is_empty():
            group.kill()
            dead = time.monotonic() < deadline
            await patience.wait(timeout_s=_EMPTY_POLL_S)
        if not dead:
            self.lost = True
            raise FailureEvent(
                "provider_unavailable",
                f"the processes of a sandbox (pid {launched.pid1}) did not die within {SETUP_S:g} s of SIGKILL; "
                "they may be stuck in the kernel (a dead network file system?)",
            )
        if group is not None:
            self._after = group.counters()
            if self._after.cpu_s is not None:
                self._cpu_s = self._after.cpu_s - (self._before.cpu_s or 0.0)

    def _result(self, launched: Launched, sinks: list[Sink], fault: str | None, wall_s: float) -> ExecResult:
        stdout = sinks[0].kept
        stderr = sinks[1].kept if len(sinks) > 1 else b""
        how = self._ending.result() if self._ending.done() else None
        after = self._after
        killed_for_memory = after.oom_kills > self._before.oom_kills
        own_limit = after.limit_hits > self._before.limit_hits
        limits_hit = [
            *(["memory_limit"] if killed_for_memory and own_limit else []),
            *(["process_limit"] if after.fork_refusals > self._before.fork_refusals else []),
        ]
        end = End()
        if fault is not None:
            said = (stderr or stdout).decode("utf-8", "replace").strip()[-2000:]
            end = End(fault=f"{fault}: {said}" if said else fault)
        elif how is None:
            end = launched.read_end(Seen(stdout, stderr))
        if how is None:
            how = _how(end)
            if killed_for_memory and _killed(end):
                # Of a machine that ran out of memory it may be the cause: then it is no fault of the machine's.
                own = own_limit or after.used_much
                how = Ended.MEMORY_LIMIT if own else Ended.FAULT
                end = End(fault=None if own else "the machine ran out of memory and its kernel killed the command")
        elif how is Ended.SIGNALED:
            end = End(signal=SIGKILL)
        return ExecResult(
            how,
            code=end.code if how is Ended.EXITED else None,
            signal=end.signal if how is Ended.SIGNALED else None,
            stdout=stdout,
            stderr=stderr,
            stdout_bytes=sinks[0].total,
            stderr_bytes=sinks[1].total if len(sinks) > 1 else 0,
            limits_hit=tuple(limits_hit),
            fault=end.fault,
            wall_s=wall_s,
            cpu_s=self._cpu_s,
            run_delay_s=self._run_delay_s,
        )


def _how(end: End) -> Ended:
    if end.fault is not None:
        return Ended.FAULT
    return Ended.SIGNALED if end.signal is not None else Ended.EXITED


def _killed(end: End) -> bool:
    """Whether an ending may be that of a command which the kernel killed, or whose sandbox it killed."""
    return end.signal == SIGKILL or end.code == 128 + SIGKILL or (end.code is None and end.signal is None)

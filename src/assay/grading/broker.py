"""The broker: the verifier asks, and the supervisor runs a program of the submission's in a sibling sandbox, or asks a model.

A submission that ran inside the grader's own process or sandbox would own the grader. So a verification has one listening
path socket, bound into the grader's sandbox and no other: which listener accepted is the identity, and nothing in a message
is. One request per connection (`asks.py` has its form); whoever hangs up ends the program. Everything that comes over the
socket is untrusted: it is answered with a typed error, or with nothing, and never costs more than its limits.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import secrets
import socket
import struct
import time
from collections.abc import Coroutine, Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from assay.failures import FailureEvent, is_infrastructure
from assay.sandbox import Capability, Ended, Socket
from assay.sandbox.waiting import Insistence
from assay.workspaces import process_folder, scratch_folder

from .asks import HEADER_MAX, PROTOCOL, JudgeAsk, Refused, RunAsk, read_header, split_argv
from .channel import refuse_descriptors
from .judging import AskJudge, Judging
from .observation import Observation, Standing, not_graded
from .siblings import Ran, Setting, Siblings
from .starvation import starved

SOCKET_AT = "/run/assay/s"
VARIABLE = "ASSAY_BROKER"
"""The environment variable that tells a verifier where the socket is."""
IN_FLIGHT = 4
REQUESTS_MAX = 10_000
REQUEST_S = 30.0
"""How long a request may take to arrive, and an answer to be taken."""
_BACKLOG = 128
_CHUNK = 1 << 18
_ACCEPT_AGAIN_S = 0.05
_CREDENTIALS = struct.Struct("iII")
_OF_THE_PROMPT = frozenset({400, 413, 422})
"""How an endpoint refuses a prompt that is too long or that it will not answer: the submission's text is in there."""
_log = logging.getLogger(__name__)

Result = TypeVar("Result")


_places: dict[int, Path] = {}


def _folder() -> Path:
    """Where this process' sockets lie, under names that nobody can guess."""
    # A forked child has a folder of its own, and a cleaner of temporary files may have been here.
    here = os.getpid()
    if here not in _places or not _places[here].is_dir():
        _places[here] = process_folder("brokers", memory=True)
    return _places[here]


class Broker:
    """One verification's broker. An async context manager: it listens inside the block, and at its end nothing of it is left."""

    def __init__(self, setting: Setting, judge: AskJudge | None = None, *, request_s: float = REQUEST_S) -> None:
        """Nothing is made yet. `judge` makes the calls to models; without it there are none."""
        self._setting = setting
        self.judging = Judging(judge)
        self._request_s = request_s
        self._siblings = Siblings(setting)
        self._stack = contextlib.ExitStack()
        self._deadline = float("inf")
        self._requests = 0
        self._free = asyncio.Semaphore(IN_FLIGHT)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._accepting: asyncio.Task[None] | None = None
        self._place = Path()
        self._listener: socket.socket | None = None
        self.fault: FailureEvent | None = None
        """The first infrastructure fault that a run met: seen here, not told by the verifier."""
        self._going: dict[_Wire, float] = {}
        self._gone: list[tuple[float, float]] = []
        self.runs = 0
        self.run_s = 0.0
        self.unlimited_memory = False
        """Whether a run asked for a memory limit that this machine cannot enforce."""

    async def __aenter__(self) -> Broker:
        """Listen. Raises `OSError`, and `FailureEvent` without scratch space."""
        try:
            listener = self._stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            folder = _folder()
            self._place = folder / secrets.token_hex(12)
            descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                # By the descriptor: the path of a scratch folder may be longer than a socket's address may be.
                listener.bind(f"/proc/self/fd/{descriptor}/{self._place.name}")
            finally:
                os.close(descriptor)
            self._stack.callback(self._place.unlink)
            self._place.chmod(0o600)
            refuse_descriptors(listener)
            listener.listen(_BACKLOG)
            listener.setblocking(False)
        except BaseException:
            self._stack.close()
            raise
        # Most verifiers ask nothing: who accepts is there from the first request on.
        asyncio.get_running_loop().add_reader(listener, self._first, listener)
        self._listener = listener
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop listening, end every run, close the siblings: all of it, also when cancelled meanwhile."""
        if self._accepting is None:
            if self._listener is not None:
                asyncio.get_running_loop().remove_reader(self._listener)
            self._stack.close()
            return
        patience = Insistence()
        closing = asyncio.ensure_future(self._close(self._accepting))
        while not await patience.wait(closing, timeout_s=60):
            pass
        closing.result()
        patience.release()

    def _first(self, listener: socket.socket) -> None:
        asyncio.get_running_loop().remove_reader(listener)
        self._accepting = asyncio.create_task(self._accept(listener))

    @property
    def mount(self) -> Socket:
        """What the grader's sandbox needs."""
        return Socket(self._place, SOCKET_AT)

    def begin(self, timeout_s: float) -> None:
        """The verification's clock starts now: no run goes on past its end."""
        self._deadline = asyncio.get_running_loop().time() + timeout_s
        self.judging.begin(timeout_s)

    async def _close(self, accepting: asyncio.Task[None]) -> None:
        self._tasks.add(accepting)
        accepting.add_done_callback(self._tasks.discard)
        # A run that was to be ended goes on until its processes are proven dead, whatever became of who waited for it.
        while self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(set(self._tasks))
        try:
            await self._siblings.close()
        finally:
            self._stack.close()

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            # Who comes when enough are served waits in the kernel's queue, where waiting costs nothing.
            await self._free.acquire()
            try:
                peer, _ = await loop.sock_accept(listener)
            except OSError as error:
                self._free.release()
                self._saw(FailureEvent("transport_local_resource", f"the broker could not accept: {error}"))
                await asyncio.sleep(_ACCEPT_AGAIN_S)
                continue
            task = asyncio.create_task(self._serve(peer))
            self._tasks.add(task)
            task.add_done_callback(self._served)

    def _served(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._free.release()
        if not task.cancelled() and (error := task.exception()) is not None:
            self._saw(FailureEvent("provider_unavailable", f"the broker failed: {type(error).__name__}: {error}"))
            _log.error("the broker failed on a request", exc_info=error)

    async def _serve(self, peer: socket.socket) -> None:
        with peer:
            if not self._is_of_the_sandbox(peer):
                return
            wire = _Wire(peer)
            try:
                with contextlib.ExitStack() as stack:
                    answer, blobs = await self._answer(wire, stack)
            except _HungUp:
                return
            except Refused as refused:
                answer, blobs = {"error": refused.error, "reason": refused.reason}, []
            except (FailureEvent, OSError) as error:
                answer, blobs = {"error": "fault", "reason": self._faulted(error).reason}, []
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(self._request_s):
                    await wire.send(answer, blobs)

    def _is_of_the_sandbox(self, peer: socket.socket) -> bool:
        """Whether the peer has the uid that the provider gave the socket to."""
        _, uid, _ = _CREDENTIALS.unpack(peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
        return bool(uid == self._place.stat().st_uid)

    async def _answer(self, wire: _Wire, stack: contextlib.ExitStack) -> tuple[dict[str, Any], list[bytes]]:
        self._requests += 1
        if self._requests > REQUESTS_MAX:
            raise Refused("limit", f"a verification may ask {REQUESTS_MAX} times; ask for more at a time")
        try:
            async with asyncio.timeout(self._request_s):
                ask = read_header(await wire.header(), self._setting.workdir)
                if isinstance(ask, JudgeAsk):
                    prompt, schema = await wire.blob(ask.prompt_length), await wire.blob(ask.schema_length)
                    judged = self.judging.ask(ask.judge, prompt, schema)
                else:
                    argv = split_argv(await wire.blob(ask.argv_length))
                    stdin = await wire.blob(ask.stdin_length)
                    folder = None
                    if ask.files:
                        folder = stack.enter_context(scratch_folder("ask"))
                        await self._take_files(wire, ask, folder)
        except TimeoutError:
            raise Refused("limit", f"a request must arrive within {self._request_s:g} s") from None
        if isinstance(ask, JudgeAsk):
            text = await self._unless_hung_up(wire, judged)
            return {"text_len": len(text)}, [text]
        if ask.memory_bytes is not None and Capability.MEMORY_LIMIT not in self._setting.provider.capabilities():
            self.unlimited_memory = True
        began = self._going[wire] = time.monotonic()
        used_s = None
        try:
            ran = await self._unless_hung_up(wire, self._siblings.run(ask, argv, stdin, folder, self._deadline))
            used_s = ran.result.cpu_s
        finally:
            del self._going[wire]
            beside_s = self.used_since(began)
            ended = time.monotonic()
            self._gone.append((ended, used_s if used_s is not None else ended - began))
        self.runs += 1
        self.run_s += ran.result.wall_s
        return self._report(ran, beside_s)

    def used_since(self, when: float) -> float:
        """Processor seconds, at most, of the runs that ended after `when` (monotonic) or are going on."""
        now = time.monotonic()
        going = sum(now - max(began, when) for began in self._going.values())
        return going + sum(used_s for ended, used_s in self._gone if ended > when)

    async def _unless_hung_up(self, wire: _Wire, work: Coroutine[Any, Any, Result]) -> Result:
        """What `work` comes to. Raises `_HungUp`, and ends it, when the peer goes away before."""
        running = asyncio.ensure_future(work)
        self._tasks.add(running)
        running.add_done_callback(self._tasks.discard)
        hanging_up = asyncio.ensure_future(wire.until_hung_up())
        try:
            await asyncio.wait({running, hanging_up}, return_when=asyncio.FIRST_COMPLETED)
            if not running.done():
                raise _HungUp
            return running.result()
        finally:
            for task in (running, hanging_up):
                task.cancel()
            await asyncio.gather(running, hanging_up, return_exceptions=True)

    async def _take_files(self, wire: _Wire, ask: RunAsk, folder: Path) -> None:
        """Write the files that come over the wire into `folder`, by their paths below the workdir."""
        within = Path(ask.cwd).relative_to(self._setting.workdir)
        for file in ask.files:
            path = folder / within / file.path
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("xb") as target:
                left = file.length
                while left:
                    left -= target.write(await wire.blob(min(left, _CHUNK)))
            path.chmod(0o644)

    def _report(self, ran: Ran, beside_s: float) -> tuple[dict[str, Any], list[bytes]]:
        result = ran.result
        if result.how is Ended.FAULT:
            raise FailureEvent("provider_unavailable", f"the submission's sandbox was lost: {result.fault}")
        if starved(result, self._setting.limits.cpus, beside_s):
            waited = f"it waited {result.run_delay_s or 0:.1f} s of {result.wall_s:.1f} s for a processor"
            raise FailureEvent("provider_unavailable", f"the submission's program hit its time limit, but {waited}")
        outputs = [
            {"path": path, "len": len(content) if content is not None else None}
            for path, content in ran.outputs.items()
        ]
        header = {
            "ended": result.how.value,
            "code": result.code,
            "signal": result.signal,
            "stdout_len": len(result.stdout),
            "stderr_len": len(result.stderr),
            "truncated": result.truncated,
            "outputs": outputs,
            "wall_ms": round(result.wall_s * 1000, 3),
            "cpu_ms": round(result.cpu_s * 1000, 3) if result.cpu_s is not None else None,
            "isolation": self._isolation(),
        }
        return header, [result.stdout, result.stderr, *(content for content in ran.outputs.values() if content)]

    def _isolation(self) -> str:
        if self._setting.provider.isolated:
            return "sandbox"
        return "uid" if Capability.UID_SEPARATION in self._setting.provider.capabilities() else "process"

    def _faulted(self, error: FailureEvent | OSError) -> FailureEvent:
        event = error if isinstance(error, FailureEvent) else None
        if event is None or not is_infrastructure(event.kind):
            # The grader's own sandbox came from the same provider: what was good for it is not the task's fault here.
            event = FailureEvent("provider_unavailable", f"the submission's program could not be run: {error}")
        self._saw(event)
        return event

    def _saw(self, fault: FailureEvent) -> None:
        if self.fault is None:
            self.fault = fault


def with_broker(seen: Observation, broker: Broker) -> Observation:
    """What was observed of a verifier that was started, with what its broker did and saw.

    A verifier may take a fault of ours for the submission's, and give it 0: what rests on a run that we failed, or on a judge
    that did not reply, is no reward.
    """
    assert seen.run is not None  # noqa: S101 - it was started
    run = replace(
        seen.run,
        usage={
            **({"runs": broker.runs, "run_s": round(broker.run_s, 6)} if broker.runs else {}),
            **broker.judging.usage(),
        },
        unmet=("memory_mb",) if broker.unlimited_memory else (),
    )
    failure = broker.fault or broker.judging.failure
    if failure is None or seen.standing is Standing.INFRASTRUCTURE:
        return replace(seen, run=run)
    if seen.reward is not None:
        run = replace(run, discarded_reward=seen.reward.value)
    blamed_on_the_prompt = broker.fault is None and failure.http_status in _OF_THE_PROMPT
    return not_graded(Standing.AMBIGUOUS if blamed_on_the_prompt else Standing.INFRASTRUCTURE, failure, run)


class _HungUp(Exception):
    """The peer is gone, or says more than one request."""


class _Wire:
    """One connection: lengths, headers and blobs."""

    def __init__(self, peer: socket.socket) -> None:
        peer.setblocking(False)
        self._peer = peer
        self._loop = asyncio.get_running_loop()

    async def header(self) -> bytes:
        """The header's bytes. Raises `Refused` for one that is too long, `_HungUp` at the end of the stream."""
        (length,) = struct.unpack(">I", await self.blob(4))
        if length > HEADER_MAX:
            raise Refused("too_large", f"a header may have {HEADER_MAX} bytes, got {length}")
        return await self.blob(length)

    async def blob(self, length: int) -> bytes:
        """So many bytes. Raises `_HungUp` when the stream ends before."""
        content = bytearray()
        while len(content) < length:
            try:
                chunk = await self._loop.sock_recv(self._peer, min(length - len(content), _CHUNK))
            except OSError:
                raise _HungUp from None
            if not chunk:
                raise _HungUp
            content += chunk
        return bytes(content)

    async def until_hung_up(self) -> None:
        """Return when the peer has closed its end, or sends what it should not."""
        with contextlib.suppress(OSError):
            await self._loop.sock_recv(self._peer, 1)

    async def send(self, header: Mapping[str, Any], blobs: list[bytes]) -> None:
        """Send an answer. Raises `OSError`."""
        text = json.dumps({"assay": PROTOCOL, **header}).encode("ascii")
        await self._loop.sock_sendall(self._peer, struct.pack(">I", len(text)) + text)
        for blob in blobs:
            await self._loop.sock_sendall(self._peer, blob)

"""One server, from its start to an end that leaves nobody with a false answer."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import ipaddress
import logging
import os
import resource
import signal
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import assay
from assay.answers import Snapshots
from assay.grading import WrongArgument, state_dir

from .admission import Admission
from .app import Application
from .bodies import Held
from .catalogue import Catalogue, load_catalogue
from .grader import Grader, SandboxGrader
from .keys import open_keys
from .limits import Limits
from .metrics import Metrics
from .service import Service
from .serving import Listener
from .tokens import Tokens
from .uploads import Uploads
from .verifications import Verifications

_PRUNE_S: Final = 600.0
_LAST_REPLIES_S: Final = 2.0
_log = logging.getLogger("assay.server")


@dataclass(frozen=True, slots=True)
class Settings:
    """How a dataset is served."""

    dataset: Path
    host: str = "127.0.0.1"
    port: int = 8089
    """0: any that is free."""
    concurrency: int = field(default_factory=lambda: len(os.sched_getaffinity(0)))
    """Verifications at once."""
    grace_s: float = 30.0
    """Seconds that running verifications get to finish after SIGTERM."""
    tokens: Sequence[str] = ()
    grader: Grader = field(default_factory=SandboxGrader)
    network: bool = False
    """Whether verifiers may use the network, as the grader lets them."""
    state: Path | None = None
    keys: Path | None = None
    """Where keys and verdicts are kept; None: in `STATE_DIR/server`, one file for each dataset."""
    limits: Limits = field(default_factory=Limits)


async def serve(settings: Settings, *, ready: Callable[[str, Catalogue], None] = lambda url, catalogue: None) -> None:
    """Serve until SIGTERM or SIGINT, then drain. `ready` is told the server's URL once it accepts requests.

    While it drains it takes no new work. Verifications that run get `grace_s` to finish and be answered; whatever is left
    then, and what was still waiting, is cut off without a reply: a client whose connection was cut asks again, where a
    status would be taken for the verifier's answer. A second signal ends the grace.

    Raises `WrongArgument` for settings that cannot be served, `FailureEvent` (`assay:image_missing`) for a root filesystem to
    grade on that is not there, and `TaskInvalid` for a dataset without a usable task.
    """
    refuse_open_address(settings.host, settings.tokens)
    stopping = asyncio.Event()
    hurried = asyncio.Event()

    def stop() -> None:
        (hurried if stopping.is_set() else stopping).set()

    loop = asyncio.get_running_loop()
    # Each verification spends much of its time in threads, and their usual number knows nothing of `concurrency`.
    loop.set_default_executor(ThreadPoolExecutor(2 * settings.concurrency + 8, thread_name_prefix="assay-server"))
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    try:
        async with started(settings) as server:
            ready(server.url, server.service.catalogue)
            await stopping.wait()
            await drain(server, settings.grace_s, hurried)
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


@dataclass(frozen=True, slots=True)
class Server:
    """A server that accepts requests."""

    service: Service
    listener: Listener
    url: str


@asynccontextmanager
async def started(settings: Settings) -> AsyncIterator[Server]:
    """A server on its socket; at the end of the block what is left of its work is cut off. Raises as `serve` does."""
    async with opened_service(settings) as service:
        sock = _bound(settings.host, settings.port)
        _allow_descriptors(settings.limits.connections)
        listener = Listener(Application(service), service.version, settings.limits)
        server = Server(service, listener, _url_of(settings.host, sock))
        listener.start(sock)
        try:
            yield server
        finally:
            await drain(server, 0.0)


@asynccontextmanager
async def opened_service(settings: Settings) -> AsyncIterator[Service]:
    """A server's parts, closed at the end of the block."""
    catalogue = await asyncio.to_thread(load_catalogue, settings.dataset, network=settings.network)
    state = state_dir(settings.state)
    if isinstance(settings.grader, SandboxGrader):
        await settings.grader.require_rootfs(catalogue)
    uploads = Uploads(
        Snapshots(state / "server" / "snapshots", unpacked=state / "unpacked"),
        state / "server" / "uploads",
        settings.limits.snapshot_bytes,
    )
    keys = await asyncio.to_thread(open_keys, settings.keys or keys_of(settings.dataset, state))
    admission = Admission(settings.concurrency, settings.limits.queue)
    metrics = Metrics(admission)
    verifications = Verifications(catalogue, settings.grader, keys, uploads, admission, metrics)
    service = Service(
        catalogue,
        verifications,
        keys,
        uploads,
        metrics,
        settings.limits,
        Tokens(settings.tokens),
        Held(settings.limits.held_bytes),
        assay.__version__,
    )
    pruning = asyncio.create_task(_prune(service))
    try:
        yield service
    finally:
        pruning.cancel()
        await asyncio.gather(pruning, return_exceptions=True)
        await keys.aclose()


def keys_of(dataset: Path, state: Path) -> Path:
    """Where the keys and verdicts of a dataset are kept, when nothing else is said."""
    place = dataset.resolve()
    return state / "server" / f"{place.name}-{hashlib.sha256(os.fsencode(place)).hexdigest()[:8]}.sqlite"


async def drain(server: Server, grace_s: float, hurried: asyncio.Event | None = None) -> None:
    """End a server: no new work, what runs finishes within `grace_s` or until `hurried`, the rest is cut off without a reply.

    Harmless when repeated.
    """
    work = server.service.verifications
    work.admission.close()
    # What only waits has not begun, and will not: its client does better to ask another server at once.
    for task in work.waiting:
        task.cancel()
    hurry = asyncio.create_task((hurried or asyncio.Event()).wait())
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(grace_s):
            while work.under_way and not hurry.done():
                await asyncio.wait((*work.under_way, hurry), return_when=asyncio.FIRST_COMPLETED)
    hurry.cancel()
    await server.listener.stop()
    for task in work.under_way:
        # Whoever waits for it is cut off.
        task.cancel()
    while work.under_way:
        await asyncio.wait(work.under_way)
    await server.listener.finish(_LAST_REPLIES_S)


def refuse_open_address(host: str, tokens: Sequence[str]) -> None:
    """Raises `WrongArgument` for an address that others reach, when there is no token to keep them out."""
    if tokens:
        return
    try:
        addresses = {found[4][0] for found in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    except OSError as error:
        raise WrongArgument(f"--host {host}: no such address: {error.strerror}") from None
    if not all(ipaddress.ip_address(str(address).partition("%")[0]).is_loopback for address in addresses):
        raise WrongArgument(
            f"--host {host}: others can reach that address, so a token is needed: set ASSAY_TOKEN, or give --token-file"
        )


async def _prune(service: Service) -> None:
    while True:
        try:
            await service.keys.prune()
        except Exception:
            _log.exception("what is too old could not be forgotten")
        await asyncio.sleep(_PRUNE_S)


def _bound(host: str, port: int) -> socket.socket:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, kind, protocol, _, address = found[0]
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
    except OSError as error:
        sock.close()
        raise WrongArgument(f"{host} port {port}: {error.strerror}; choose another with --port (0: any)") from None
    return sock


def _url_of(host: str, sock: socket.socket) -> str:
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{sock.getsockname()[1]}"


def _allow_descriptors(connections: int) -> None:
    """Each connection is a descriptor, and each sandbox needs some."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * connections + 2048
    wanted = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))

"""Addresses at which no request is ever delivered."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

_LOOPBACK = "127.0.0.1"


@contextlib.contextmanager
def refusing() -> Iterator[str]:
    """The address of a port where nobody listens, held so that nobody will: connections are refused."""
    with socket.socket() as held:
        held.bind((_LOOPBACK, 0))
        yield _address(held)


@contextlib.contextmanager
def silent() -> Iterator[str]:
    """The address of a port that takes connections and never says anything: a TLS handshake hangs there."""
    with socket.socket() as listening:
        listening.bind((_LOOPBACK, 0))
        listening.listen()
        yield _address(listening)


@contextlib.contextmanager
def dropping() -> Iterator[str]:
    """The address of a port whose queue is full: attempts to connect are not answered at all (on Linux)."""
    with contextlib.ExitStack() as stack:
        listening = stack.enter_context(socket.socket())
        listening.bind((_LOOPBACK, 0))
        listening.listen(0)
        for _ in range(2):
            filling = stack.enter_context(socket.socket())
            filling.setblocking(False)
            filling.connect_ex(listening.getsockname())
        yield _address(listening)


def _address(bound: socket.socket) -> str:
    host, port = bound.getsockname()
    return f"{host}:{port}"

"""The verdict channel: one message from the runner, over a socket that cannot be reopened and forged.

A pipe can be opened again through `/proc/PID/fd` and written by anyone of the same uid; a socket pair cannot. The end of
the stream is never waited for: what has arrived when the sandbox is dead is all there is.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from assay.failures import FailureEvent
from assay.tasks import strict_json

from .checks import read_checks
from .rewards import InvalidReward, Reward, RewardRule, reward_from_value

MAX_MESSAGE_BYTES = 1024 * 1024
_SO_PASSRIGHTS = 83
_TEXTS = ("contract", "raised", "cannot_grade")


@dataclass(frozen=True, slots=True)
class Message:
    """What the runner said: `result`, `contract`, `raised` or `cannot_grade`."""

    what: str
    value: Any
    checks: tuple[Mapping[str, Any], ...] = ()


def refuse_descriptors(ours: socket.socket) -> None:
    """Have the kernel refuse descriptors that are sent to this socket, in the sender's face.

    What lies in a queue that nobody reads is charged to its sender's control group, which somebody else may have by then. A
    kernel before 6.16 does not know how: there closing the socket first does it.
    """
    with contextlib.suppress(OSError):
        ours.setsockopt(socket.SOL_SOCKET, _SO_PASSRIGHTS, 0)


class Channel:
    """Both ends of one verification's channel. Use as a context manager; both ends are closed at its end."""

    def __init__(self) -> None:
        """Open the pair."""
        self._ours, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._ours.setblocking(False)
        refuse_descriptors(self._ours)
        for end in (self._ours, self._theirs):
            # The kernel may cap it; the runner cuts or refuses what does not fit.
            with contextlib.suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MAX_MESSAGE_BYTES)

    def __enter__(self) -> Channel:
        """Itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close both ends."""
        self.close()

    def close(self) -> None:
        """Close both ends. Harmless when repeated."""
        self._ours.close()
        self._theirs.close()

    @property
    def theirs(self) -> int:
        """The descriptor that the runner is given (`--verdict-fd`)."""
        return self._theirs.fileno()

    def read(self) -> Message | None:
        """The one message, or None when none came. Call it when the sandbox is dead.

        Raises `FailureEvent`: `assay:verdict_conflict` for two messages, `InvalidReward` for one that is not the
        runner's.
        """
        first = self._receive()
        if first is None:
            return None
        if self._receive() is not None:
            raise conflict("two messages came over the verdict channel; the runner sends one")
        return _parse(first)

    def _receive(self) -> bytes | None:
        try:
            content, _, flags, _ = self._ours.recvmsg(MAX_MESSAGE_BYTES)
        except (BlockingIOError, ConnectionResetError):
            return None
        if flags & socket.MSG_TRUNC:
            raise InvalidReward(f"the verifier's message is larger than {MAX_MESSAGE_BYTES} bytes")
        return content or None


def conflict(reason: str) -> FailureEvent:
    """Two verdicts that disagree: somebody else than the runner spoke."""
    return FailureEvent("assay:verdict_conflict", reason)


def message_reward(message: Message, rule: RewardRule) -> Reward:
    """The reward of a `result` message. Raises `FailureEvent` for any other message and for what is no reward."""
    if message.what == "result":
        return reward_from_value("the verifier's result", message.value, rule)
    kinds = {"contract": "assay:verifier_contract", "raised": "verifier_error", "cannot_grade": "assay:cannot_grade"}
    raise FailureEvent(kinds[message.what], str(message.value))


def _parse(content: bytes) -> Message:
    try:
        record = strict_json(content)
    except ValueError as error:
        raise InvalidReward(f"the message on the verdict channel is not the runner's: it {error}") from None
    if isinstance(record, dict):
        said = [key for key in ("result", *_TEXTS) if key in record]
        if len(said) == 1 and (said[0] == "result" or isinstance(record[said[0]], str)):
            return Message(said[0], record[said[0]], read_checks(record.get("checks", [])))
    raise InvalidReward("the message on the verdict channel is not the runner's: it must hold one outcome")

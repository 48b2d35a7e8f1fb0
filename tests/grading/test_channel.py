"""The verdict channel: one message counts, and nothing that was not the runner's."""

import errno
import json
import os
import socket

import pytest

from assay.failures import FailureEvent
from assay.grading.channel import MAX_MESSAGE_BYTES, Channel, Message, message_reward
from assay.grading.rewards import Reward, RewardRule

SO_SNDBUFFORCE = 32
"""From the kernel's headers: the standard library has no name for it."""


def _send(channel: Channel, *contents: bytes) -> None:
    with socket.socket(fileno=os.dup(channel.theirs)) as end:
        for content in contents:
            end.send(content)


def _said(**record: object) -> bytes:
    return json.dumps(record).encode()


def test_no_message() -> None:
    with Channel() as channel:
        assert channel.read() is None


def test_the_end_is_not_waited_for() -> None:
    with Channel() as channel:
        _send(channel, _said(result=0.5))
        assert channel.read() == Message("result", 0.5)


CHECK = {"name": "rows", "score": 1.0, "weight": 2.0, "note": "all there"}
MESSAGES = [
    (_said(result=1), Message("result", 1)),
    (_said(result={"reward": 0.5, "speed": 2}), Message("result", {"reward": 0.5, "speed": 2})),
    (_said(contract="verify wants 'x'"), Message("contract", "verify wants 'x'")),
    (_said(raised="ValueError: no"), Message("raised", "ValueError: no")),
    (_said(cannot_grade="the service is away"), Message("cannot_grade", "the service is away")),
    (_said(result=1, checks=[CHECK]), Message("result", 1, (CHECK,))),
    (_said(result=1, checks=[CHECK, {"name": 3}, "x", {"name": "a", "score": "1"}]), Message("result", 1, (CHECK,))),
    (_said(result=1, checks="x"), Message("result", 1)),
]


@pytest.mark.parametrize(("content", "message"), MESSAGES)
def test_messages(content: bytes, message: Message) -> None:
    with Channel() as channel:
        _send(channel, content)
        assert channel.read() == message


NO_MESSAGES = [
    b"1",
    b"{}",
    b"null",
    b"\xff",
    b"{",
    b"[" * 100_000,
    _said(result=1, raised="both"),
    _said(raised=1),
    _said(reward=1),
    b'{"result": NaN}',
    b'{"result": 1, "result": 0}',
]


@pytest.mark.parametrize("content", NO_MESSAGES, ids=lambda c: c[:20].decode(errors="replace"))
def test_what_is_not_the_runners_is_refused(content: bytes) -> None:
    with Channel() as channel:
        _send(channel, content)
        with pytest.raises(FailureEvent) as refusal:
            channel.read()
    assert refusal.value.kind == "assay:invalid_reward"


def test_two_messages_are_a_conflict_even_when_they_agree() -> None:
    with Channel() as channel:
        _send(channel, _said(result=1), _said(result=1))
        with pytest.raises(FailureEvent) as refusal:
            channel.read()
    assert refusal.value.kind == "assay:verdict_conflict"


def test_a_large_message_arrives_whole() -> None:
    with Channel() as channel:
        metrics = {f"metric {n}": 1.0 for n in range(4_000)}
        _send(channel, _said(result={"reward": 1.0, **metrics}))
        assert channel.read() == Message("result", {"reward": 1.0, **metrics})


def test_a_message_over_the_cap_is_refused() -> None:
    with Channel() as channel, socket.socket(fileno=os.dup(channel.theirs)) as end:
        end.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE if os.getuid() == 0 else socket.SO_SNDBUF, 4 * 1024 * 1024)
        try:
            end.send(b" " * (MAX_MESSAGE_BYTES + 1))
        except OSError:
            assert os.getuid() != 0, "root may send it"
            return
        with pytest.raises(FailureEvent, match="larger than"):
            channel.read()


def test_the_socket_cannot_be_opened_again_through_proc() -> None:
    with Channel() as channel, pytest.raises(OSError, match="No such device or address"):
        os.open(f"/proc/self/fd/{channel.theirs}", os.O_WRONLY)


KINDS = [
    (Message("contract", "no verify"), "assay:verifier_contract"),
    (Message("raised", "ValueError"), "verifier_error"),
    (Message("cannot_grade", "away"), "assay:cannot_grade"),
    (Message("result", "text"), "assay:invalid_reward"),
    (Message("result", {}), "assay:invalid_reward"),
    (Message("result", {"a": 1, "b": 2}), "assay:reward_key_missing"),
]


@pytest.mark.parametrize(("message", "kind"), KINDS)
def test_what_is_no_reward_becomes_its_failure(message: Message, kind: str) -> None:
    with pytest.raises(FailureEvent) as refusal:
        message_reward(message, RewardRule())
    assert refusal.value.kind == kind


def test_a_result_is_a_reward() -> None:
    assert message_reward(Message("result", {"reward": 0.5, "speed": 2}), RewardRule()) == Reward(0.5, {"speed": 2.0})


def test_descriptors_are_refused_or_gone_with_it() -> None:
    """What lies unread in a queue is charged to its sender's control group, which somebody else may have by then."""
    with Channel() as channel, socket.socket(fileno=os.dup(channel.theirs)) as end:
        read, write = os.pipe()
        try:
            socket.send_fds(end, [b"x"], [write])
        except OSError as error:
            assert error.errno in (errno.EPERM, errno.EOPNOTSUPP)  # noqa: PT017 - either way out is right
        os.close(write)
        channel.close()
        end.close()
        assert os.read(read, 1) == b"", "the descriptor that was sent is still open"
        os.close(read)

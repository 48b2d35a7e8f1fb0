"""Asking the supervisor for something: one connection, one request, one answer.

The form is that of the supervisor's broker: a `u32` length, a JSON header, raw blobs.
"""

from __future__ import annotations

from .errors import CannotGrade, JudgeUnparseable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any, Optional

    from .submission import Program

VARIABLE = "ASSAY_BROKER"
"""The environment variable that names the socket. The supervisor sets it; without it there is nobody to ask."""

PROTOCOL = 1
_ANSWER_MAX = 1 << 20
_CHUNK = 1 << 18


def run(place: str, program: Program) -> tuple[Any, ...]:
    """The fields of a `Completed`, in order.

    Raises `CannotGrade` for a fault that is not the program's, `ValueError` and `RuntimeError` for a request that is
    refused, `OSError` when the supervisor does not answer.
    """
    argv = b"".join(argument + b"\0" for argument in program.argv)
    header = {
        "ask": "run",
        "argv_len": len(argv),
        "env": program.env,
        "cwd": program.workspace,
        "timeout_ms": max(1, round(program.timeout_s * 1000)),
        "memory_mb": program.memory_mb,
        "stdin_len": len(program.stdin),
        "files": [{"path": path, "len": len(content)} for path, content in program.files.items()],
        "outputs": program.outputs,
        "session": program.session,
    }

    def read(answer: dict[str, Any], receive: Callable[[int], bytes]) -> tuple[Any, ...]:
        stdout = receive(answer["stdout_len"])
        stderr = receive(answer["stderr_len"])
        outputs: dict[str, Optional[bytes]] = {}
        for one in answer["outputs"]:
            outputs[one["path"]] = None if one["len"] is None else receive(one["len"])
        cpu_s = answer["cpu_ms"] / 1000 if answer["cpu_ms"] is not None else None
        return (
            *(stdout, stderr, answer["ended"], answer["code"], answer["signal"], answer["truncated"], outputs),
            *(answer["wall_ms"] / 1000, cpu_s, answer["isolation"]),
        )

    result: tuple[Any, ...] = _ask(
        "run_submission", place, header, [argv, program.stdin, *program.files.values()], read
    )
    return result


def judge(place: str, name: str, prompt: bytes, schema: bytes) -> str:
    """What the judge of this name replied.

    Raises what `run` raises (`CannotGrade` when the judge failed), and `JudgeUnparseable`.
    """
    header = {"ask": "judge", "judge": name, "prompt_len": len(prompt), "schema_len": len(schema)}

    def read(answer: dict[str, Any], receive: Callable[[int], bytes]) -> str:
        return receive(answer["text_len"]).decode("utf-8")

    text: str = _ask("ask_judge", place, header, [prompt, schema], read)
    return text


def _ask(
    helper: str,
    place: str,
    header: dict[str, Any],
    blobs: Sequence[bytes],
    read: Callable[[dict[str, Any], Callable[[int], bytes]], Any],
) -> Any:
    """What `read` makes of the answer's header and of what follows it. `helper` is who asks, for what goes wrong."""
    import json
    import socket
    import struct

    text = json.dumps({"assay": PROTOCOL, **header}).encode("ascii")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
        peer.connect(place)
        try:
            # To send nothing at the end would fail when the answer to all of it is there already.
            for part in filter(None, (struct.pack(">I", len(text)), text, *blobs)):
                peer.sendall(part)
        except OSError:
            # Refused before all of it was taken: the answer says why, if there is one.
            _refuse(helper, _answer(peer))
            raise
        answer = _answer(peer)
        _refuse(helper, answer)
        return read(answer, lambda length: _receive(peer, length))


def _refuse(helper: str, answer: dict[str, Any]) -> None:
    error = answer.get("error")
    if error is None:
        return
    reason = f"{helper}: {answer.get('reason')}"
    if error == "fault":
        raise CannotGrade(reason)
    if error == "unparseable":
        raise JudgeUnparseable(reason)
    if error in ("malformed", "too_large"):
        raise ValueError(reason)
    raise RuntimeError(reason)


def _answer(peer: Any) -> dict[str, Any]:
    import json
    import struct

    (length,) = struct.unpack(">I", _receive(peer, 4))
    if length > _ANSWER_MAX:
        raise OSError(f"its answer has a header of {length} bytes")
    answer = json.loads(_receive(peer, length).decode("utf-8"))
    if not isinstance(answer, dict) or answer.get("assay") != PROTOCOL:
        raise OSError("its answer is of another protocol")
    return answer


def _receive(peer: Any, length: int) -> bytes:
    content = bytearray()
    while len(content) < length:
        chunk = peer.recv(min(length - len(content), _CHUNK))
        if not chunk:
            raise OSError("it ended the connection before its answer was whole")
        content += chunk
    return bytes(content)

"""What a verifier's side of an ask sends."""

from __future__ import annotations

import json
import socket
import struct
import threading
from pathlib import Path

import pytest

from assay.verifiers import asking


def answering(listener: socket.socket) -> None:
    """Answers as soon as all of a request is there, and goes."""
    peer, _ = listener.accept()
    with peer:
        (length,) = struct.unpack(">I", peer.recv(4, socket.MSG_WAITALL))
        header = json.loads(peer.recv(length, socket.MSG_WAITALL))
        rest = header["prompt_len"] + header["schema_len"]
        if rest:
            peer.recv(rest, socket.MSG_WAITALL)
        answer = json.dumps({"assay": 1, "text_len": 3}).encode()
        peer.sendall(struct.pack(">I", len(answer)) + answer + b"yes")


@pytest.mark.parametrize(("prompt", "schema"), [(b"well?", b""), (b"", b""), (b"well?", b"{}")])
def test_a_request_that_is_whole_is_answered_however_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prompt: bytes, schema: bytes
) -> None:
    """The supervisor may be gone before an empty last part would be sent: a slow sandbox must not take that for a fault."""
    place = str(tmp_path / "s")
    sent: list[bytes] = []
    send = socket.socket.sendall
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(place)
        listener.listen()
        supervisor = threading.Thread(target=answering, args=(listener,))
        supervisor.start()

        def slowly(self: socket.socket, data: bytes) -> None:
            if threading.current_thread() is not supervisor:
                if len(sent) > 1 and not data:
                    supervisor.join(5)
                sent.append(data)
            send(self, data)

        monkeypatch.setattr(socket.socket, "sendall", slowly)
        assert asking.judge(place, "default", prompt, schema) == "yes"
        supervisor.join()
    assert all(sent)

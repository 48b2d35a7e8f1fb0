"""How an outcome leaves the runner: one message on a socket, a last line, the end of the process.

Nothing here waits without a limit. The runner executes this file, like `imports.py`, before anything may be searched for
on `sys.path`, so it imports only the standard library, and no name from `__future__` or `typing`.
"""

import _thread
import errno
import json
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any, NoReturn, Optional, TextIO

LONGEST_TEXT = 2_000
"""Characters of a sentence that are kept, in the message and on the last line."""

LAST_WORDS_SECONDS = 2.0
"""How long the streams may take to be flushed: whoever should read them may have stopped."""

_PR_SET_DUMPABLE = 4
_F_GETPIPE_SZ = 1032
_FIONREAD = 0x541B
_ROOM = 1 << 17
"""Bytes: several times what a text stream and its buffer hold back."""
LARGEST_MESSAGE = 1024 * 1024
"""Bytes of a verdict message; whoever reads the channel need not take more."""

_TOO_LARGE = (errno.EMSGSIZE, errno.ENOBUFS)


class TooLarge(Exception):
    """The outcome itself does not fit one message."""


def one_line(text: str) -> str:
    """The text as one printable line of at most `LONGEST_TEXT` characters."""
    shown = "".join(char if char.isprintable() else " " for char in text[: 2 * LONGEST_TEXT])
    shown = " ".join(shown.split()).encode("utf-8", "backslashreplace").decode("utf-8")
    return shown if len(shown) <= LONGEST_TEXT else shown[: LONGEST_TEXT - 1] + "…"


def close_memory() -> None:
    """Keep other processes of this uid out of this one's memory, descriptors and environment in `/proc`.

    A program that the verifier starts has the verifier's uid: it could write to `/proc/PPID/mem` and change what it is
    compared with. What the verifier starts by `exec` can be looked into as ever. Where there is no `ctypes` nothing changes.
    """
    try:
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    except (ImportError, OSError, AttributeError):
        return


def send(descriptor: int, outcome: "dict[str, Any]", checks: "list[dict[str, Any]]") -> str:
    """Send the one message: `outcome`, and `checks` if there are any.

    Returns a sentence about what had to be left out, else an empty text. Raises `TooLarge` when `outcome` alone does not
    fit, and `OSError` when nobody takes it; never waits.
    """
    os.set_blocking(descriptor, False)
    if not checks:
        forms = [(outcome, "")]
    else:
        bare = [{**check, "note": ""} for check in checks]
        forms = [
            (dict(outcome, checks=checks), ""),
            (dict(outcome, checks=bare), f"the notes of the {len(checks)} checks do not fit the verdict message"),
            (outcome, f"the {len(checks)} checks do not fit the verdict message"),
        ]
    for form, left_out in forms:
        if _send(descriptor, json.dumps(form).encode("ascii") + b"\n"):
            return left_out
    raise TooLarge


def last_words(
    stream: "Optional[TextIO]", error: "Optional[BaseException]", own: "set[str]", lines: "list[str]"
) -> None:
    """Flush what the verifier printed, then write the traceback of `error` and `lines` to `stream`.

    Frames of the files in `own` are left out at the traceback's start. A stream that is closed, broken or blocked changes
    nothing: it has `LAST_WORDS_SECONDS`.
    """
    if error is None and not lines and _has_room(sys.stdout) and _has_room(sys.stderr):
        # As nearly always: to start a thread takes longer than everything here.
        for used in (sys.stdout, sys.stderr):
            _flush(used)
        return
    done = _thread.allocate_lock()
    done.acquire()

    def speak() -> None:
        try:
            for used in {id(used): used for used in (sys.stdout, sys.stderr, sys.__stdout__, stream)}.values():
                _flush(used)
            _write(stream, _traceback(error, own) + "".join(line + "\n" for line in lines))
        finally:
            done.release()

    try:
        _thread.start_new_thread(speak, ())
    except RuntimeError:
        # No thread to be had: the verifier used them all.
        speak()
    done.acquire(True, LAST_WORDS_SECONDS)


def _has_room(stream: "Any") -> bool:
    """Whether a stream is the interpreter's own and leads to a pipe with room for all that can wait in it to be flushed."""
    if stream is None or stream not in (sys.__stdout__, sys.__stderr__):
        return False
    try:
        import fcntl

        descriptor: int = stream.fileno()
        waiting = int.from_bytes(fcntl.ioctl(descriptor, _FIONREAD, b"\0\0\0\0"), sys.byteorder)
        return bool(fcntl.fcntl(descriptor, _F_GETPIPE_SZ) - waiting >= _ROOM)
    except (ImportError, OSError, ValueError, AttributeError):
        return False


def leave(code: int) -> "NoReturn":
    """End the process now, whatever threads, tasks, children and exit handlers it has left."""
    os._exit(code)


def _send(descriptor: int, message: bytes) -> bool:
    if len(message) > LARGEST_MESSAGE:
        return False
    for larger_buffer in (False, True):
        if larger_buffer:
            import socket

            with socket.socket(fileno=os.dup(descriptor)) as channel:
                channel.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, LARGEST_MESSAGE)
        try:
            if os.write(descriptor, message) != len(message):
                raise OSError(errno.EPROTO, "the verdict descriptor took only a part of the message")
        except OSError as error:
            if error.errno not in _TOO_LARGE:
                raise
        else:
            return True
    return False


def _traceback(error: "Optional[BaseException]", own: "set[str]") -> str:
    if error is None:
        return ""
    place: "Optional[TracebackType]" = error.__traceback__
    while place is not None and place.tb_frame.f_code.co_filename in own:
        place = place.tb_next
    try:
        import traceback

        return "".join(traceback.format_exception(type(error), error, place))
    except BaseException as second:  # the text of an exception is the verifier's code, and may fail in any way
        return f"(the traceback cannot be shown: {type(second).__name__})\n"


def _flush(stream: "Any") -> None:
    try:
        stream.flush()
    except BaseException:  # None, closed, broken, or an object of the verifier's own
        return


def _write(stream: "Optional[TextIO]", text: str) -> None:
    try:
        stream.write(text)  # type: ignore[union-attr] # None is answered below, like any stream that fails
        stream.flush()  # type: ignore[union-attr]
    except BaseException:
        content = text.encode("utf-8", "backslashreplace")
        while content:
            try:
                content = content[os.write(2, content) :]
            except OSError:
                return

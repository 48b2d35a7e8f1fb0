"""What may come over the broker's socket: one request, checked before anything is done about it.

A request is a `u32` (big-endian) length, a JSON header of that many bytes, and raw blobs, as long as the header says: of a
`run` the arguments (each one ended by a NUL), the standard input, the files; of a `judge` the prompt and the schema. The
answer has the same form. Whoever
sends is the verifier, or whatever got hold of its process: every field is checked for its type and its limit, and a field
that is not known is refused, since what it asks for would not be done.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from assay.sandbox import MIB
from assay.tasks import strict_json

PROTOCOL = 1
HEADER_MAX = 64 * 1024
ARGV_MAX = 128 * 1024
STDIN_MAX = 16 * MIB
FILES_MAX = 64
FILES_BYTES_MAX = 64 * MIB
_PATH_MAX = 1_024
_PARTS_MAX = 64
_NAME_MAX = 255
_WORD_MAX = 100
_LEAST_MEMORY_MB = 16
_MOST_MEMORY_MB = 1 << 30
_LONGEST_MS = 1 << 40
PROMPT_MAX = 4 * MIB
SCHEMA_MAX = 64 * 1024
_RUN_FIELDS = frozenset(
    {
        *("assay", "ask", "argv_len", "env", "cwd", "timeout_ms", "memory_mb"),
        *("stdin_len", "files", "outputs", "session"),
    }
)
_JUDGE_FIELDS = frozenset({"assay", "ask", "judge", "prompt_len", "schema_len"})


class Refused(Exception):
    """A request that is not carried out. `error` says why to a program, the message to a person."""

    def __init__(self, error: str, reason: str) -> None:
        """`error` is `malformed`, `too_large`, `limit`, `unsupported`, `unparseable` or `fault`."""
        super().__init__(reason)
        self.error = error
        self.reason = reason


@dataclass(frozen=True, slots=True)
class FileAsk:
    """A file that is to be laid over the workspace before the program starts."""

    path: str
    """Relative to `RunAsk.cwd`."""
    length: int


@dataclass(frozen=True, slots=True)
class RunAsk:
    """A program of the submission's to be run; its arguments and its input follow as blobs."""

    argv_length: int
    stdin_length: int
    cwd: str
    """Absolute: the workdir, or a folder in it."""
    timeout_s: float
    env: Mapping[str, str]
    memory_bytes: int | None
    files: tuple[FileAsk, ...]
    outputs: tuple[str, ...]
    """Files that are read afterwards, relative to `cwd`."""
    session: str | None


@dataclass(frozen=True, slots=True)
class JudgeAsk:
    """A model to be asked; the prompt and the schema follow as blobs."""

    judge: str
    prompt_length: int
    schema_length: int
    """0: none."""


def read_header(content: bytes, workdir: str) -> RunAsk | JudgeAsk:
    """The request in a header. Raises `Refused`."""
    try:
        header = strict_json(content)
    except ValueError as error:
        raise Refused("malformed", f"the header {error}") from None
    if not isinstance(header, dict):
        raise Refused("malformed", "the header must be a JSON object")
    if type(version := header.get("assay")) is not int or version != PROTOCOL:
        raise Refused("unsupported", f"this broker speaks version {PROTOCOL} of the protocol, got {version!r:.40}")
    if (ask := header.get("ask")) not in ("run", "judge"):
        raise Refused("unsupported", f"this broker answers the asks 'run' and 'judge', got {ask!r:.40}")
    if unknown := sorted(set(header) - (_RUN_FIELDS if ask == "run" else _JUDGE_FIELDS)):
        raise Refused("malformed", f"{unknown[0]!r:.100} is no field of a {ask}")
    if ask == "judge":
        return JudgeAsk(
            judge=_name("judge", header.get("judge")),
            prompt_length=_number(header, "prompt_len", 1, PROMPT_MAX),
            schema_length=_number(header, "schema_len", 0, SCHEMA_MAX),
        )
    memory_mb = _optional(header, "memory_mb", _LEAST_MEMORY_MB, _MOST_MEMORY_MB)
    return RunAsk(
        argv_length=_number(header, "argv_len", 2, ARGV_MAX),
        stdin_length=_number(header, "stdin_len", 0, STDIN_MAX),
        cwd=_cwd(header.get("cwd"), workdir),
        timeout_s=_number(header, "timeout_ms", 1, _LONGEST_MS) / 1000,
        env=_env(header.get("env", {})),
        memory_bytes=memory_mb * MIB if memory_mb is not None else None,
        files=_files(header.get("files", [])),
        outputs=_paths("outputs", header.get("outputs", [])),
        session=_session(header.get("session")),
    )


def split_argv(blob: bytes) -> list[str]:
    """The arguments in their blob. Raises `Refused`."""
    *arguments, rest = blob.split(b"\0")
    if rest or not arguments[0]:
        raise Refused("malformed", "argv must name a program, and each argument must end with a NUL")
    return [os.fsdecode(argument) for argument in arguments]


def _number(header: Mapping[str, Any], name: str, least: int, most: int) -> int:
    value = header.get(name)
    # A bool is an int to Python, and no length.
    if type(value) is not int or value < least:
        raise Refused("malformed", f"{name} must be a whole number from {least} to {most}, got {value!r:.40}")
    if value > most:
        raise Refused("too_large", f"{name} must be at most {most}, got {value!r:.40}")
    return value


def _optional(header: Mapping[str, Any], name: str, least: int, most: int) -> int | None:
    return None if header.get(name) is None else _number(header, name, least, most)


def _cwd(value: Any, workdir: str) -> str:
    if value is None:
        return workdir
    if not isinstance(value, str) or not value.startswith("/"):
        raise Refused("malformed", f"cwd must be an absolute path, got {value!r:.200}")
    path = posixpath.normpath("/" + value.lstrip("/"))
    if path == workdir:
        return path
    if not path.startswith(workdir.rstrip("/") + "/"):
        raise Refused(
            "malformed",
            f"the submission's program runs in a copy of the answer's workspace, {workdir}, and {path!r:.200} is not in it: "
            "give the workspace that `verify` was given; what else the program needs goes into files",
        )
    return posixpath.join(workdir, _path("cwd", posixpath.relpath(path, workdir)))


def _env(value: Any) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise Refused("malformed", "env must be an object of texts")
    for name, text in value.items():
        if not name or "=" in name or "\0" in name + text or _size(name + text) is None:
            raise Refused("malformed", f"env: {name!r:.100} cannot be a variable with the value {text!r:.100}")
    return value


def _files(value: Any) -> tuple[FileAsk, ...]:
    if not isinstance(value, list) or not all(isinstance(one, dict) and set(one) == {"path", "len"} for one in value):
        raise Refused("malformed", "files must be a list of objects with path and len")
    paths = _paths("files", [one["path"] for one in value])
    lengths = [_number(one, "len", 0, FILES_BYTES_MAX) for one in value]
    if sum(lengths) > FILES_BYTES_MAX:
        raise Refused("too_large", f"files may have {FILES_BYTES_MAX} bytes together, got {sum(lengths)}")
    folders = {parent for path in paths for parent in _parents(path)}
    if clash := sorted(folders & set(paths)):
        raise Refused("malformed", f"files: {clash[0]!r:.200} is both a file and a folder")
    return tuple(FileAsk(path, length) for path, length in zip(paths, lengths, strict=True))


def _paths(what: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise Refused("malformed", f"{what} must be a list")
    if len(value) > FILES_MAX:
        raise Refused("too_large", f"{what} may name {FILES_MAX} files, got {len(value)}")
    paths = tuple(_path(what, one) for one in value)
    if len(set(paths)) != len(paths):
        raise Refused("malformed", f"{what} names a file twice")
    return paths


def _path(what: str, value: Any) -> str:
    if not isinstance(value, str):
        raise Refused("malformed", f"{what}: a path must be text, got {value!r:.200}")
    parts = [part for part in value.split("/") if part not in ("", ".")]
    sizes = [_size(part) for part in parts]
    if value.startswith("/") or value.endswith("/") or ".." in parts or not parts or "\0" in value:
        raise Refused("malformed", f"{what}: a path must be relative and stay in the workspace, got {value!r:.200}")
    if any(size is None for size in sizes):
        raise Refused("malformed", f"{what}: {value!r:.200} cannot be a file's name")
    longest = max(size or 0 for size in sizes)
    if len(parts) > _PARTS_MAX or longest > _NAME_MAX or (_size(value) or 0) > _PATH_MAX:
        raise Refused("too_large", f"{what}: the path {value!r:.60}… is too long")
    return "/".join(parts)


def _size(text: str) -> int | None:
    """Bytes of a text as the system takes it; None for one that it cannot take."""
    try:
        return len(os.fsencode(text))
    except UnicodeEncodeError:
        return None


def _parents(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:count]) for count in range(1, len(parts))]


def _session(value: Any) -> str | None:
    return None if value is None else _name("session", value)


def _name(field: str, value: Any) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= _WORD_MAX:
        raise Refused("malformed", f"{field} must be a name of 1 to {_WORD_MAX} characters, got {value!r:.200}")
    return value

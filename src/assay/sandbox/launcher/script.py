"""A program run by a fork of an interpreter that is there already: as if `python3 file.py` or `python3 -c` had started it anew.

The interpreter itself runs it, by the functions that its own start comes to, and ends after it as ever. It calls them while
no function of Python's is running: a fork leaves all that the server was doing (`command.Left`), and what the server's own
program raises at last takes `functools.reduce` for what shows exceptions, which goes through a chain of the interpreter's
functions. So no frame is below the program's, and its errors, its exit code and its end are the interpreter's doing.

Nothing is loaded ahead but what an interpreter loads at its start. Whatever this is no good for is started anew.
"""

from __future__ import annotations

import ctypes
import functools
import io
import itertools
import os
import site
import stat
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

from . import command, kernel, ready

_TRIED = (3, 10), (3, 13)
"""The first and the last version with which programs were compared: what they rely on is the interpreter's own affair."""
_IGNORE_COOKIE = 0x0800
"""A text on the command line is UTF-8 whatever it says."""


class _Flags(ctypes.Structure):
    """How the compiler is told of it."""

    _fields_ = (("flags", ctypes.c_int), ("minor_version", ctypes.c_int))


class Before(NamedTuple):
    """What an interpreter has when it starts, kept since this one did."""

    main: dict[str, Any]
    """The content of its `__main__`."""
    modules: frozenset[str]
    places: frozenset[str]
    """The keys of `sys.path_importer_cache`."""
    writes: bool
    """Whether byte-code is written beside modules."""


def noted(main: Mapping[str, Any], modules: frozenset[str], places: frozenset[str]) -> Before:
    """What it is for any program, by what it was for the server's own."""
    common = {name: value for name, value in main.items() if name not in ("__cached__", "__file__")}
    # Of a text; that of a file comes with it.
    common["__loader__"] = sys.__spec__.loader
    return Before(common, modules, places - {sys.argv[0]}, not sys.dont_write_bytecode)


def check() -> None:
    """Raise `NotImplementedError` or `AttributeError` where `Program` was not tried, or an interpreter has not all it needs.

    Programs are started anew then.
    """
    if not _TRIED[0] <= sys.version_info[:2] <= _TRIED[1]:
        raise NotImplementedError(
            f"programs are not run by a fork of Python {sys.version_info[0]}.{sys.version_info[1]}"
        )
    for name in (
        "PyImport_GetImporter",
        "PyRun_AnyFileExFlags",
        "PyRun_SimpleStringFlags",
        "Py_LeaveRecursiveCall",
        "Py_Exit",
    ):
        getattr(ctypes.pythonapi, name)


def run(argv: list[str], env: Mapping[bytes, bytes]) -> None:
    """Raise `command.Left` in a fresh fork with its descriptors, folder and rights in place, to have it run a program.

    `argv` is the interpreter, a file or `-c` and a text, and arguments. Back for what has to be started.
    """
    if _is_found(os.fsencode(argv[0]), env) and not os.path.isdir(site.USER_SITE or "") and _can_run(argv[1:]):
        raise command.Left(argv, env)


def run_here(before: Before, argv: list[str], env: Mapping[bytes, bytes]) -> None:
    """Run a program of the server's own in a fork, without leaving anything, and end with it."""
    try:
        for _ in Program(command.Left(argv, env), before):
            continue
    finally:
        ctypes.pythonapi.Py_Exit(0)


def _is_found(program: bytes, env: Mapping[bytes, bytes]) -> bool:
    """Whether this interpreter is what would be started."""
    found = next((place for place in command.places(program, env) if os.path.lexists(place)), None)
    return found is not None and os.fsdecode(found) == sys.executable


def _can_run(words: list[str]) -> bool:
    try:
        if words[0] == "-c":
            words[1].encode()
            # Later ones keep the text for tracebacks, by a function of their own.
            return sys.version_info < (3, 13)
        place = _absolute(words[0])
        file = os.open(place, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            regular = stat.S_ISREG(os.fstat(file).st_mode)
        finally:
            os.close(file)
        # An archive may be a program, whatever else the file is.
        return regular and _importer(place) is None
    except Exception:
        # The interpreter says it in its own words.
        return False


def _absolute(path: str) -> str:
    """As the interpreter makes it, with which nothing is resolved."""
    return path if path.startswith("/") or sys.version_info < (3, 9) else f"{os.getcwd()}/{path}"


def _importer(path: str) -> object:
    function = ctypes.pythonapi.PyImport_GetImporter
    function.argtypes, function.restype = [ctypes.py_object], ctypes.py_object
    return function(path)


class Program(Exception):
    """What the server's program raises to become another, and to end with that."""

    def __init__(self, left: command.Left, before: Before) -> None:
        """`left`, where all frames of the server are left."""
        self._argv, self._env, self._before = left.argv, left.env, before
        # Called with this, as the iterable between two others, when nothing runs any more.
        self._hook = sys.excepthook
        hook: Any = functools.reduce
        sys.excepthook = hook

    def __iter__(self) -> Any:
        """Make this process what an interpreter is at its start; the chain of calls that runs the program."""
        sys.excepthook = self._hook
        for name in ("last_exc", "last_type", "last_value", "last_traceback"):
            sys.__dict__.pop(name, None)
        words = self._argv[1:]
        sys.orig_argv = self._argv
        sys.argv = ["-c", *words[2:]] if words[0] == "-c" else words
        sys.path.insert(0, "" if words[0] == "-c" else os.path.dirname(os.path.realpath(words[0])))
        ready.be_as_started(self._env)
        sys.dont_write_bytecode = not self._before.writes
        _open_streams()
        # Without rights it is nobody's but its own any more.
        kernel.be_dumpable()
        self._forget()
        calls = _text(words[1]) if words[0] == "-c" else _file(_absolute(words[0]))
        # After 0 the interpreter exits by itself. After anything else it has shown why, and comes to the end of its own program
        # that raised this.
        return map(sys.exit, itertools.filterfalse(None, calls))

    def _forget(self) -> None:
        before = self._before
        for place in sys.path_importer_cache.keys() - before.places:
            del sys.path_importer_cache[place]
        main = type(sys)("__main__")
        main.__dict__.clear()
        main.__dict__.update(before.main)
        sys.modules["__main__"] = main
        self._kept = [sys.modules.pop(name) for name in list(sys.modules) if name not in before.modules]
        # For ever: to take them apart at the end would write to the pages of all that is in them.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self))
        if sys.version_info < (3, 12):
            # Those two below the program that count as calls there.
            for _ in ("reduce", "a function of C's"):
                ctypes.pythonapi.Py_LeaveRecursiveCall()


def _file(path: str) -> map[Any]:
    function = ctypes.pythonapi.PyRun_AnyFileExFlags
    function.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_void_p]
    libc = ctypes.CDLL(None)
    libc.fopen.restype = ctypes.c_void_p
    name = os.fsencode(path)
    _importer(path)
    opened = libc.fopen(name, b"rbe")
    if opened is None:
        raise MemoryError(f"{path} was there to be opened, and is not")
    closed_when_read = 1
    return map(function, [opened], [name], [closed_when_read], [None])


def _text(text: str) -> map[Any]:
    function = ctypes.pythonapi.PyRun_SimpleStringFlags
    function.argtypes = [ctypes.c_char_p, ctypes.c_void_p]
    flags = _Flags(_IGNORE_COOKIE, sys.version_info.minor)
    return map(function, [text.encode()], [ctypes.pointer(flags)])


def _open_streams() -> None:
    """Anew, as the interpreter opens them: what they stand for may be sought in, or may not, which is looked at then."""
    for number, mode, name in ((0, "r", "stdin"), (1, "w", "stdout"), (2, "w", "stderr")):
        was = getattr(sys, name)
        buffer: Any = io.open(number, f"{mode}b", closefd=False)  # noqa: SIM115, UP020 - they stay open
        buffer.raw.name = f"<{name}>"
        stream: Any = io.TextIOWrapper(buffer, was.encoding, was.errors, "\n", line_buffering=name == "stderr")
        stream.mode = mode
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)

"""A program run by a fork of an interpreter that is there already: as if `python -I -c` had started it anew.

What an interpreter takes from its environment before its first line (its library's place, its encoding, what the dynamic
linker loads) is as the server was started with: whoever asks for this has made sure that the program's is the same.
"""

from __future__ import annotations

import atexit
import builtins
import gc
import marshal
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, NoReturn

_LOADED = (
    "collections.abc",
    "dataclasses",
    "datetime",
    "functools",
    "itertools",
    "json",
    "math",
    "pathlib",
    "re",
    "socket",
    "string",
    "struct",
    "subprocess",
    "typing",
)
"""Modules of the standard library that are imported once for all, none of which starts a thread or keeps a state of its own."""


class _Ahead:
    """The one program that is known before it is asked for: the runner of Python verifiers."""

    def __init__(self) -> None:
        self.program = ""
        """What an interpreter is given (`-c`) to run it, …"""
        self.home = ""
        """… and its folder in the sandbox, the first argument."""
        self.main: ModuleType | None = None
        """It, executed but for what it does as a script: functions and classes, which keep nothing. None: it is not known."""
        self.modules: frozenset[str] = frozenset()
        """Those that are loaded, and would not be in an interpreter that was just started."""
        self.launcher: list[ModuleType] = []
        """Kept till the end: to take them apart would write to the pages of all that is in them."""


_ahead = _Ahead()


def load(ahead: Mapping[str, Any], usual: frozenset[str]) -> None:
    """Import what programs are likely to import. What is not there is left to them.

    `ahead`: the program that will be asked for, its `home`, and the files in it `compiled` (in hex, as the runner has them).
    `usual`: the modules that an interpreter has loaded when it starts.
    """
    sys.dont_write_bytecode = True
    for name in _LOADED:
        try:
            __import__(name)
        except ImportError:
            continue
    data = bytes.fromhex(ahead["compiled"])
    magic: bytes = sys.modules["_frozen_importlib_external"].MAGIC_NUMBER
    if data.startswith(magic):
        compiled = marshal.loads(data[len(magic) :])  # noqa: S302 - the supervisor's
        _ahead.program, _ahead.home = ahead["program"], ahead["home"]
        runner = f"{_ahead.home}/run_verifier.py"
        _ahead.main = main = _new_main()
        main.__dict__.update(__file__=runner, ASSAY_COMPILED=compiled, ASSAY_AHEAD=True)
        exec(marshal.loads(compiled[runner]), main.__dict__)  # noqa: S102, S302 - a file of the runner's own
        main.__dict__["imports"].compiled.update((path, marshal.loads(code)) for path, code in compiled.items())  # noqa: S302 - as above
        # It looks for a module that not every version has.
        main.__dict__["imports"].sha256()
    _ahead.launcher = [sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] == "launcher"]
    _ahead.modules = frozenset(sys.modules) - usual


def sha256() -> Callable[[bytes], Any] | None:
    """The runner's way to make a digest; None where the runner is not known."""
    return _ahead.main.__dict__["imports"].sha256() if _ahead.main is not None else None


def run(argv: list[str], env: Mapping[bytes, bytes]) -> NoReturn:
    """Run a program in this process, a fresh fork with its descriptors, folder and rights in place, and end with it.

    `argv` is an interpreter, `-I`, `-c`, the program and its arguments.
    """
    be_as_started(env)
    sys.dont_write_bytecode = False
    sys.argv = ["-c", *argv[4:]]
    sys.orig_argv = argv
    known = _ahead.main is not None and argv[3] == _ahead.program and argv[4:5] == [_ahead.home]
    sys.modules["__main__"] = main = _ahead.main if _ahead.main is not None and known else _new_main()
    try:
        if known:
            # What the program itself would come to.
            del sys.argv[1]
            main.__dict__["run_ahead"](_ahead.modules)
        else:
            exec(compile(argv[3], "<string>", "exec", dont_inherit=True), main.__dict__)  # noqa: S102 - what was asked for
    except BaseException as error:
        _finish(_code_of(error))
    _finish(0)


def _new_main() -> ModuleType:
    main = ModuleType("__main__")
    main.__dict__.update(__builtins__=builtins, __spec__=None, __loader__=sys.__spec__.loader, __annotations__={})
    return main


def be_as_started(env: Mapping[bytes, bytes]) -> None:
    """Be what an interpreter is that was started with this environment: collection, variables, time zone, signals."""
    gc.enable()
    # Taken out and put in again: a program sees their order.
    for name in list(os.environb):
        del os.environb[name]
    for name, value in env.items():
        os.environb[name] = value
    # The copy that was made when the interpreter started, which `os.environ` itself was made from.
    first: dict[bytes, bytes] = sys.modules["posix"].environ
    first.clear()
    first.update(env)
    # The server had neither.
    if b"TZ" in env or b"TZDIR" in env:
        time.tzset()
    # As the interpreter has them; the server had none.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_IGN)


def _code_of(error: BaseException) -> int:
    """The exit code for what a program ended with, told on stderr as the interpreter tells it."""
    if isinstance(error, SystemExit):
        if error.code is None:
            return 0
        if isinstance(error.code, int):
            return error.code & 0xFF
        print(error.code, file=sys.stderr)
        return 1
    own = error.__traceback__
    # Without the frame of this file.
    error.__traceback__ = own.tb_next if own is not None else None
    try:
        sys.excepthook(type(error), error, error.__traceback__)
    except BaseException:
        traceback.print_exc()
    if isinstance(error, KeyboardInterrupt):
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    return 1


def _finish(code: int) -> NoReturn:
    """What an interpreter does at its end: wait for threads, call what was registered, flush."""
    try:
        threading._shutdown()  # type: ignore[attr-defined] # what the interpreter calls, and nothing else does the same
        atexit._run_exitfuncs()
    finally:
        for stream in (sys.stdout, sys.stderr):
            if stream is None or stream.closed:
                continue
            try:
                stream.flush()
            except (OSError, ValueError) as error:
                code = 120
                print(f"Exception ignored in: {stream!r}\n{type(error).__name__}: {error}", file=sys.__stderr__)
        os._exit(code)

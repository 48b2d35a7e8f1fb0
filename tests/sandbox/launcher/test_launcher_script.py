"""A submission's program run by a fork of an interpreter that waits: as `python3 file.py` and `python3 -c` would have run it."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from assay.sandbox import ExecResult, Overlay, Sandbox, SandboxSpec, Writable
from assay.sandbox.namespaces import NamespacesProvider
from assay.workspaces import scratch_folder
from test_launcher_ready import STATE
from warm import WarmProvider, is_warm

FORKED = "import gc; print(gc.get_freeze_count() > 0)"
"""Says whether it is a fork: the only thing by which it does."""


@dataclass(frozen=True)
class Case:
    """A command, run in a folder with these files: what is seen of it must be the same both ways."""

    program: str | bytes = ""
    """The content of `main.py`."""
    argv: tuple[str, ...] = ("main.py",)
    files: Mapping[str, str | bytes] = field(default_factory=dict)
    stdin: bytes = b""
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str = "/app"


MORE_STATE = """
import sys
before, places = list(sys.modules), sorted(sys.path_importer_cache)
import builtins, _thread, faulthandler, json, os, site, stat, time, traceback, types
def depth(n=0):
    try: return depth(n + 1)
    except RecursionError: return n
def line(f):
    return [repr(getattr(f, n, None)) for n in ("name", "mode", "encoding", "errors", "newlines", "line_buffering", "write_through")] + [
        f.seekable(), f.buffer.seekable(), type(f.buffer).__name__, f.buffer.raw.mode, f.buffer.raw.closefd, f.isatty()]
try: sys._getframe(1); frames = True
except ValueError: frames = False
main = sys.modules["__main__"]
print(json.dumps({
    "modules": before, "places": places, "frames": frames, "main": list(vars(main)), "file": globals().get("__file__"),
    "name": [__name__, __doc__, __package__, repr(__spec__), type(__loader__).__name__, repr(__annotations__)],
    "loader": getattr(__loader__, "path", None), "builtins": [__builtins__ is builtins, len(dir(builtins))],
    "cached": globals().get("__cached__", "none"), "same": main.__dict__ is globals(), "module": type(main) is types.ModuleType,
    "argv": sys.argv, "orig": sys.orig_argv, "path": sys.path, "flags": repr(sys.flags), "executable": sys.executable,
    "warnoptions": sys.warnoptions, "xoptions": sys._xoptions, "bytecode": [sys.dont_write_bytecode, sys.pycache_prefix],
    "site": [site.ENABLE_USER_SITE, site.getusersitepackages(), site.getsitepackages()],
    "sys": [n for n in sorted(vars(sys)) if n not in ("last_exc",)], "hooks": [sys.excepthook is sys.__excepthook__,
        sys.displayhook is sys.__displayhook__, sys.unraisablehook is sys.__unraisablehook__, sys.gettrace(), sys.getprofile()],
    "finders": [repr(f).partition(" at 0x")[0] for f in (*sys.meta_path, *sys.path_hooks)], "streams": [line(f) for f in (sys.stdin, sys.stdout, sys.stderr)],
    "originals": [sys.stdin is sys.__stdin__, sys.stdout is sys.__stdout__, sys.stderr is sys.__stderr__],
    "limit": [sys.getrecursionlimit(), sys.getswitchinterval(), _thread.stack_size(), _thread._count()],
    "environ": list(os.environ.items()), "posix": [repr(i) for i in sys.modules["posix"].environ.items()],
    "inherited": os.popen("env | od -c").read(), "time": [time.tzname, time.timezone, time.daylight],
    "exe": os.readlink("/proc/self/exe"), "stack": [repr(f) for f in traceback.extract_stack()], "handler": faulthandler.is_enabled(),
    "interned": [n for n in sys.modules if "launcher" in n], "encodings": [sys.getfilesystemencoding(), sys.getfilesystemencodeerrors()],
    "own": [(n, oct(os.stat("/proc/self/" + n).st_mode), os.stat("/proc/self/" + n).st_uid) for n in ("fd", "mem", "environ", "maps")],
    "fds": sorted(os.listdir("/proc/self/fd")), "first": open("/proc/self/comm").read(), "cwd": os.getcwd(),
    "threads": os.listdir("/proc/self/task") == [str(os.getpid())],
}))
"""

STATES = {
    "script": Case(MORE_STATE, ("main.py", "one", "", "ü\udcff", "-x")),
    "isolated's script": Case(STATE),
    "text": Case(argv=("-c", MORE_STATE, "one", "-c")),
    "absolute": Case(MORE_STATE, ("/app/main.py",)),
    "from elsewhere": Case(MORE_STATE, ("../app/main.py",), cwd="/tmp"),
    "dots": Case(MORE_STATE, ("./x/.././main.py",), {"x/y": ""}),
    "in a folder": Case(argv=("x/main.py",), files={"x/main.py": MORE_STATE}),
    "no ending": Case(argv=("main",), files={"main": MORE_STATE}),
    "odd name": Case(argv=("ü \n.py",), files={"ü \n.py": MORE_STATE}),
    "environment": Case(
        MORE_STATE, env={"Z": "1", "TZ": "Asia/Tokyo", "A": "ü\udcff", "PATH": "/usr/bin:/bin", "TERM": ""}
    ),
    "input": Case(MORE_STATE, stdin=b"some"),
}

PROGRAMS = {
    "nothing": "",
    "said": "print('x', end='')",
    "exit codes": "import sys; sys.exit(3)",
    "exit none": "raise SystemExit",
    "exit true": "import sys; sys.exit(True)",
    "exit negative": "import sys; sys.exit(-1)",
    "exit large": "import sys; sys.exit(2**40)",
    "exit text": "import sys; print('out'); sys.exit('said ü')",
    "exit object": "raise SystemExit({'a': 1})",
    "exit odd": "class E(SystemExit): code = 5\nraise E(1, 2)",
    "exit in a function": "def f():\n  try: exit(4)\n  finally: print('finally')\nf()",
    "os._exit": "import os; print('lost', end=''); os._exit(9)",
    "abort": "import os; os.abort()",
    "signals": "import os; os.kill(os.getpid(), 15)",
    "killed": "import os; os.kill(os.getpid(), 9)",
    "crash": "import ctypes; ctypes.string_at(0)",
    "error": "def f(x):\n    return 1 / x\n\nf(\n  0)",
    "error chain": "try:\n  {}['a']\nexcept KeyError as e:\n  raise ValueError('b') from e",
    "error context": "try:\n  {}['a']\nexcept KeyError:\n  int('x')",
    "error group": "raise ExceptionGroup('g', [ValueError(1), ExceptionGroup('h', [TypeError(2)])])",
    "error notes": "e = ValueError('x'); e.add_note('note'); raise e",
    "error of own": "class E(Exception):\n  def __str__(self): raise RuntimeError\nraise E",
    "error name": "prinr('x')",
    "error in a module": "import other",
    "error in exec": "exec('1/0')",
    "error deep": "def f(): f()\nf()",
    "error base": "raise BaseException('b')",
    "syntax": "def f(:\n  pass",
    "syntax later": "print('never')\nx = = 1",
    "indentation": "def f():\npass",
    "tabs": "if 1:\n        a = 1\n\tb = 2",
    "unclosed": "x = (1,\n",
    "warning of syntax": "print(1 is 1, '\\d')",
    "keyboard": "def f(): raise KeyboardInterrupt\nf()",
    "interrupted": "import os, signal; os.kill(os.getpid(), signal.SIGINT)",
    "interrupt handled": "import os\ntry: os.kill(os.getpid(), 2)\nexcept KeyboardInterrupt: print('handled')",
    "interrupt of own": "raise type('K', (KeyboardInterrupt,), {})",
    "hook": "import sys; sys.excepthook = lambda *a: print('mine', a[0], a[2].tb_lineno, a[2].tb_next); raise ValueError",
    "hook fails": "import sys\ndef h(*a): raise KeyError('h')\nsys.excepthook = h; raise ValueError",
    "hook frames": "import sys, traceback\nsys.excepthook = lambda *a: traceback.print_stack(); raise ValueError",
    "hook exits": "import sys; sys.excepthook = lambda *a: sys.exit(7); raise ValueError",
    "hook none": "import sys; del sys.excepthook; raise ValueError('x')",
    "unraisable": "class D:\n  def __del__(self): 1/0\nD(); print('on')",
    "no stderr": "import sys; sys.stderr = None; raise ValueError",
    "no stdout": "import sys; sys.stdout = None; print('x')",
    "replaced": "import builtins; builtins.SystemExit = builtins.Exception = int; builtins.print('x')",
    "broken": "import sys, builtins; sys.modules.clear(); builtins.__dict__.clear()",
    "no main": "import sys; del sys.modules['__main__']; print(__name__)",
    "other exit": "import sys; sys.exit = None; print('x')",
    "traced": "import sys\ndef t(f, e, a): sys.__stdout__.write(f'{e} {f.f_code.co_name}\\n'); return t\n"
    "sys.settrace(t); sys.setprofile(t)\ndef f(): return len('x')\nf()",
    "stack": "import traceback, inspect; traceback.print_stack(); print(len(inspect.stack()))",
    "warned": "import warnings; warnings.warn('a'); warnings.warn('b', stacklevel=2); warnings.warn('c', DeprecationWarning)",
    "logged": "import logging; logging.basicConfig(format='%(module)s %(lineno)d %(funcName)s %(message)s');"
    "logging.warning('x', stack_info=True)",
    "dumped": "import faulthandler; faulthandler.dump_traceback(all_threads=False)",
    "argument words": "import argparse; p = argparse.ArgumentParser(); p.add_argument('a'); p.parse_args()",
    "names": "print([n for n in globals()], __doc__)",
    "documented": "'''doc'''\nprint(__doc__, __annotations__)",
    "annotated": "x: int = 1\nprint(__annotations__)",
    "future": "from __future__ import annotations\nx: no = 1\nprint(__annotations__)",
    "compiled": "exec(compile('x: int = 1; print(__annotations__)', 'f', 'exec'))",
    "at exit": "import atexit\natexit.register(print, 1); atexit.register(lambda: 1/0); atexit.register(print, 3); print(atexit._ncallbacks())",
    "at exit exits": "import atexit, sys; atexit.register(sys.exit, 5)",
    "threads": "import threading, time\nthreading.Thread(target=lambda: (time.sleep(.05), print('late'))).start(); print('first')",
    "thread fails": "import threading; t = threading.Thread(target=lambda: 1/0); t.start(); t.join()",
    "daemon": "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start(); print('on')",
    "main thread": "import threading as t; print(t.main_thread() is t.current_thread(), t.current_thread().name, t.enumerate().__len__())",
    "pools": "from concurrent.futures import ThreadPoolExecutor as P\nwith P(3) as p: print(list(p.map(abs, [-1, 2])))",
    "asyncio": "import asyncio\nasync def m(): await asyncio.sleep(0); return (await asyncio.create_subprocess_exec('true')).pid > 0\nprint(asyncio.run(m()))",
    "asyncio interrupted": "import asyncio, os\nasync def m(): os.kill(os.getpid(), 2); await asyncio.sleep(9)\nasyncio.run(m())",
    "fork": "import os; p = os.fork(); print('child' if not p else os.wait()[1], flush=True)",
    "fork ends": "import os, sys, atexit; atexit.register(print, 'end', flush=True)\nif not os.fork(): sys.exit(3)\nprint(os.wait()[1])",
    "processes": "import multiprocessing as m\nif __name__ == '__main__': print(m.get_context('fork').Pool(2).map(abs, [-1, 2]))",
    "spawned": "import multiprocessing as m\ndef f(x): return x, __name__\nif __name__ == '__main__':\n"
    "  with m.get_context('spawn').Pool(1) as p: print(p.map(f, [3]))",
    "subprocess": "import subprocess as s, sys; print(s.run([sys.executable, '-c', 'import sys; print(sys.argv); sys.exit(4)'], capture_output=True))",
    "own options": "import subprocess as s; print(s._args_from_interpreter_flags())",
    "system": "import os; print(os.system('echo $0; exit 4'), os.getenv('HOME'), os.path.expanduser('~'))",
    "replaces itself": "import os; print('x', flush=True); os.execvp('sh', ['sh', '-c', 'echo $0 $$; exit 6'])",
    "itself again": "import os, sys\nif len(sys.argv) < 2: sys.stdout.flush(); os.execv(sys.executable, sys.orig_argv + ['x'])\nprint(sys.orig_argv)",
    "pipes": "import signal, os; print([signal.getsignal(s) for s in (2, 13, 15, 25)], signal.pthread_sigmask(0, []))",
    "pipe broken": "import os\nr, w = os.pipe(); os.dup2(w, 1); os.close(r); os.close(w); print('x')",
    "pipe broken early": "import os\nr, w = os.pipe(); os.dup2(w, 1); os.close(r); os.close(w); print('x', flush=True)",
    "pipe default": "import os, signal\nsignal.signal(13, signal.SIG_DFL); r, w = os.pipe(); os.close(r); os.write(w, b'x')",
    "alarm": "import signal; signal.alarm(1); signal.pause()",
    "out closed": "import sys; sys.stdout.close()",
    "out closed below": "import os; os.close(1); print('x')",
    "err closed below": "import os; os.close(2); 1/0",
    "all closed": "import os; os.closerange(0, 3); print('x')",
    "full": "import os, sys; os.dup2(os.open('/dev/full', 1), 1); print('x')",
    "buffered": "import os, sys; sys.stdout.write('a\\n'); os.write(1, b'b\\n'); sys.stderr.write('c'); os.write(2, b'd')",
    "much": "for n in range(20000): print(n)",
    "odd text": "import sys; print('\\udcff', file=sys.stderr); print('\\udcff\\xfc'); print('\\ud800')",
    "line ends": "print('a\\r\\nb', sep=''); print(repr(open('/app/main.py', newline='').read()[-3:]))",
    "finalised": "import weakref\nclass D:\n  def __init__(s, n): s.n = n\n  def __del__(s): print('del', s.n)\n"
    "a = D('a'); b = D('b'); c = D('c'); c.self = c; weakref.finalize(a, print, 'final')\nimport atexit; atexit.register(print, 'exit')\n"
    "import json; json.left = D('json'); import sys; sys.left = D('sys'); import builtins; builtins.left = D('builtins')\n"
    "def f(x=D('default')): pass\n_under = D('under')",
    "finalised modules": "import sys\nclass D:\n  def __del__(s, sys=sys): print(sys.modules is not None, sys.is_finalizing(), sys.stdout is not None)\nd = D(); e = [d]; e.append(e)",
    "file left open": "f = open('/tmp/x', 'w'); f.write('x'); g = open('/tmp/x'); import warnings; warnings.simplefilter('always')",
    "generator left": "def g():\n  try: yield 1\n  finally: print('closed')\ni = g(); next(i)",
    "garbage": "import gc; print(gc.isenabled(), gc.get_threshold(), gc.garbage, gc.get_debug(), gc.callbacks)",
    "collected": "import gc\nclass D:\n  def __del__(s): print('gone')\nd = D(); d.d = d; del d; print(gc.collect() > 0)",
    "recursion": "import sys\nsys.setrecursionlimit(10**6); import resource\ndef f(n): return n and 1 + f(n - 1)\nprint(f(50000))",
    "locale": "import locale; print(locale.getlocale(), locale.setlocale(locale.LC_ALL), locale.getpreferredencoding())",
    "help": "print(copyright, exit, quit); print([n for n in dir(__builtins__)])",
    "pickled": "import pickle, io\nclass A: pass\nprint(pickle.loads(pickle.dumps(A())).__class__, pickle.dumps(A))",
    "inspected": "import inspect\nclass A:\n  x = 1\ndef f(): pass\nprint(inspect.getsource(f), inspect.getsource(A), inspect.getsourcefile(f))",
    "runpy": "import runpy; print(runpy.run_path('/app/other.py', run_name='__main__') is not None)",
    "imports itself": "import main\nprint(main.__name__, main.__file__, main.__spec__.name)",
    "tested": "import unittest\nclass T(unittest.TestCase):\n  def test(self): self.assertEqual(1, 2)\nunittest.main(verbosity=0, testRunner=lambda **k: unittest.TextTestRunner(resultclass=None, verbosity=0))".replace(
        "resultclass=None, ", ""
    ),
    "doctested": "'''\n>>> 1\n2\n'''\nimport doctest; print(doctest.testmod())",
    "named": "from collections import namedtuple; from enum import Enum; import typing, dataclasses\nP = namedtuple('P', 'a'); E = Enum('E', 'A'); T = typing.TypeVar('T')\nprint(P.__module__, E.__module__, T.__module__, dataclasses.make_dataclass('C', 'x').__module__)",
    "many modules": "import array, base64, bisect, calendar, cmath, collections, contextlib, copy, csv, ctypes, datetime, decimal, difflib, "
    "email, fcntl, fractions, functools, glob, hashlib, heapq, html, http.client, itertools, json, math, mmap, operator, pathlib, "
    "pickle, platform, queue, random, re, resource, select, selectors, shutil, socket, sqlite3, ssl, statistics, string, struct, "
    "subprocess, sys, tempfile, textwrap, threading, time, traceback, types, typing, unicodedata, urllib.request, uuid, weakref, "
    "xml.etree.ElementTree, zipfile, zlib\nprint(list(sys.modules))\n"
    "print(datetime.date(2020, 1, 1), ctypes.sizeof(ctypes.c_long), struct.pack('i', 1), array.array('i', [1]), select.select([], [], [], 0))",
    "readable": "import os\nprint(len(open('/proc/self/maps').read()) > 0, open('/proc/self/environ', 'rb').read() != b'')",
    "limits": "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (9, 9)); open('/etc/hostname'); print(resource.getrlimit(resource.RLIMIT_STACK))",
    "first descriptor": "print(open('/app/main.py').fileno())",
}

OTHERS = {
    "text ends": Case(argv=("-c", "print('a'); raise SystemExit(3)")),
    "text empty": Case(argv=("-c", "")),
    "text fails": Case(argv=("-c", "def f():\n  1/0\nf()")),
    "text wrong": Case(argv=("-c", "x = = 1")),
    "text cookie": Case(argv=("-c", "# coding: latin-1\nprint(ascii('ü'))")),
    "text cannot be": Case(argv=("-c", "print('\udcff')")),
    "text interrupted": Case(argv=("-c", "raise KeyboardInterrupt")),
    "text with modules": Case(argv=("-c", "import json; print(json.mine)"), files={"json.py": "mine = 1"}),
    "text alone": Case(argv=("-c",)),
    "input": Case("print(input('? ')); print(input()); input()", stdin=b"a\r\n\xc3\xbc"),
    "input as bytes": Case("import sys; print(sys.stdin.buffer.read(), sys.stdin.read())", stdin=b"a\r\n\xff\0"),
    "input by line": Case("import sys\nfor line in sys.stdin: print(repr(line))", stdin=b"a\r\nb\rc\n\nd\xff"),
    "input sought": Case("import sys; sys.stdin.readline(); print(sys.stdin.tell()); sys.stdin.seek(0)", stdin=b"a\nb"),
    "input by others": Case("import os; os.system('cat')", stdin=b"abc"),
    "input large": Case("import sys; print(len(sys.stdin.read()))", stdin=b"x" * 300_000),
    "shadow": Case("import json, re; print(json.mine, re.__file__)", files={"json.py": "mine = 1"}),
    "shadow below": Case(
        "import json; print(json.decoder.re.mine)", files={"re.py": "mine = compile = VERBOSE = MULTILINE = DOTALL = 1"}
    ),
    "shadow package": Case(
        "import ctypes, socket; print(ctypes.mine, socket.x)",
        files={"ctypes/__init__.py": "mine = 1", "socket.py": "x=2"},
    ),
    "shadow later": Case(
        "open('/tmp/typing.py', 'w').write('x=1'); import sys; sys.path.insert(0, '/tmp'); import typing; print(typing.x)"
    ),
    "no shadow": Case("import os, io; print(os.__file__, io.__file__)", files={"os.py": "x=1", "io.py": "1/0"}),
    "other modules": Case(
        "import a, b.c; print(a.__file__, b.c.x)", files={"a.py": "import b", "b/__init__.py": "", "b/c.py": "x = 1"}
    ),
    "bytecode": Case("import a, os; print(os.listdir('/app/__pycache__'))", files={"a.py": ""}),
    "launcher": Case("import launcher"),
    "in a folder": Case("", ("x/y.py",), {"x/y.py": "import z", "x/z.py": "print(__file__)", "z.py": "1/0"}),
    "absent": Case(argv=("nothere.py",)),
    "absent folder": Case(argv=("no/there.py",)),
    "folder": Case(argv=("x",), files={"x/y": ""}),
    "folder with main": Case(
        argv=("x",), files={"x/__main__.py": "import sys; print(sys.path[0], __file__, __name__)"}
    ),
    "device": Case(argv=("/dev/null",)),
    "cookie": Case("# -*- coding: latin-1 -*-\nprint(ascii('ü'))".encode("latin-1")),
    "cookie unknown": Case("# coding: nothing\nprint(1)"),
    "cookie wrong": Case("# coding: ascii\nprint('ü')"),
    "latin": Case("print('ü')".encode("latin-1")),
    "mark": Case(b"\xef\xbb\xbfprint(1)\n1/0"),
    "mark and cookie": Case(b"\xef\xbb\xbf# coding: latin-1\nprint(1)"),
    "null": Case(b"print(1)\nprint(2)\0\n"),
    "null first": Case(b"\0"),
    "returns": Case(b"print(1)\r\nprint(__file__)\rprint(3)"),
    "no end": Case(b"if 1:\n  print(1)"),
    "hash bang": Case("#!/bin/sh\nprint(1)"),
    "binary": Case(bytes(range(256))),
    "large": Case("x = 1\n" * 200_000 + "print(x)\n1/0\n"),
    "long line": Case("x = [" + "1," * 100_000 + "]\nprint(len(x))"),
    "deep": Case("(" * 300 + ")" * 300),
    "wide": Case("print('" + "ü" * 50_000 + "'[:3])"),
    "site": Case("import usual", files={"usercustomize.py": "print('ran')", "sitecustomize.py": "print('ran')"}),
    "options": Case(argv=("-O", "main.py")),
    "module": Case(argv=("-m", "this_is_not")),
    "from input": Case(argv=("-",), stdin=b"print(__name__)"),
    "version": Case(argv=("-V",)),
    "no arguments": Case(argv=(), stdin=b"print(1)"),
    "python path": Case("import a; print(a.__file__)", files={"x/a.py": ""}, env={"PYTHONPATH": "/app/x"}),
    "hash seed": Case("print(hash('a'))", env={"PYTHONHASHSEED": "1"}),
    "unbuffered": Case("import os, sys; print(1); os._exit(0)", env={"PYTHONUNBUFFERED": "1"}),
    "other home": Case(
        "import a; print(a.__file__)", files={".local/lib/python{}.{}/site-packages/a.py": ""}, env={"HOME": "/app"}
    ),
    "no path": Case("print(1)", env={"PATH": ""}),
    "other path": Case("print(1)", env={"PATH": "/app"}, files={"python3": "#!/bin/sh\necho mine"}),
    "other language": Case(
        "import sys; print(sys.stdout.encoding, ascii(input()))", stdin="ü".encode(), env={"LANG": "C"}
    ),
}


def zipped() -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("__main__.py", "import sys; print(sys.path[0], __file__)")
    return content.getvalue()


CASES = {
    **{f"state, {name}": case for name, case in STATES.items()},
    **{
        name: Case(text, files={"other.py": "def f():\n    1/0\nif __name__ == 'other': f()"})
        for name, text in PROGRAMS.items()
    },
    **OTHERS,
    "archive": Case(zipped()),
    "archive below text": Case(b"print('text')\n" + zipped()),
}


@pytest.fixture
async def both() -> AsyncIterator[tuple[Path, Sandbox, Sandbox]]:
    """A folder that is `/app` in a sandbox whose programs are started, and in one where they are forked."""
    with scratch_folder("app") as app:
        app.chmod(0o755)
        spec = SandboxSpec(mounts=(Overlay(app, "/app"),))
        cold, warm = await NamespacesProvider().create(spec), await WarmProvider(scripts=True).create(spec)
        assert (is_warm(cold), is_warm(warm)) == (False, True)
        yield app, cold, warm
        await cold.close()
        await warm.close()


def lay(app: Path, case: Case) -> None:
    for path, content in {"main.py": case.program, **case.files}.items():
        file = app / path.format(*__import__("sys").version_info)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content.encode() if isinstance(content, str) else content)
        file.chmod(0o755)


async def run(sandbox: Sandbox, case: Case) -> ExecResult:
    argv = ["python3", *case.argv]
    return await sandbox.exec(argv, cwd=case.cwd, env=case.env, stdin=case.stdin, timeout_s=30)


def seen(result: ExecResult) -> Any:
    """What a grader sees of a run, but for places in memory."""
    said = [
        re.sub(rb"0x[0-9a-f]+", b"0x", text).decode("utf-8", "backslashreplace")
        for text in (result.stdout, result.stderr)
    ]
    return (result.how, result.code, result.signal, *said)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
async def test_it_is_seen_to_run_as_a_started_one_does(both: tuple[Path, Sandbox, Sandbox], case: Case) -> None:
    app, cold, warm = both
    lay(app, case)
    assert seen(await run(warm, case)) == seen(await run(cold, case))

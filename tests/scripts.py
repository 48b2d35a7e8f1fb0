"""Programs as a submission may have them, each a command in a folder: what tests run in more than one way, and compare."""

from __future__ import annotations

import io
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

VERSION = f"python{sys.version_info[0]}.{sys.version_info[1]}"


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
    mode: int = 0o755
    """Of `main.py`."""
    links: Mapping[str, str] = field(default_factory=dict)


STATE = """
import sys
before, places = list(sys.modules), sorted(sys.path_importer_cache)
import builtins, _thread, faulthandler, json, os, site, time, traceback, types
def depth(n=0):
    try: return depth(n + 1)
    except RecursionError: return n
def words(stream):
    names = ("name", "mode", "encoding", "errors", "newlines", "line_buffering", "write_through")
    raw = stream.buffer.raw
    found = [repr(getattr(stream, name, None)) for name in names] + [stream.seekable(), stream.buffer.seekable()]
    return found + [type(stream.buffer).__name__, raw.name, raw.mode, raw.closefd, stream.isatty()]
def owned(name):
    status = os.stat("/proc/self/" + name)
    return [name, oct(status.st_mode), status.st_uid]
try: sys._getframe(1); frames = True
except ValueError: frames = False
with os.popen("env | od -c") as pipe: inherited = pipe.read()
main = sys.modules["__main__"]
streams = (sys.stdin, sys.stdout, sys.stderr)
print(json.dumps({
    "modules": before, "places": places, "frames": frames, "depth": depth(),
    "main": list(vars(main)), "file": globals().get("__file__"), "cached": globals().get("__cached__", "none"),
    "name": [__name__, __doc__, __package__, repr(__spec__), type(__loader__).__name__, globals().get("__annotations__")],
    "loader": getattr(__loader__, "path", None), "builtins": [__builtins__ is builtins, len(dir(builtins))],
    "same": main.__dict__ is globals(), "module": type(main) is types.ModuleType,
    "argv": sys.argv, "orig": sys.orig_argv, "path": sys.path, "flags": repr(sys.flags), "executable": sys.executable,
    "options": [sys.warnoptions, sys._xoptions], "bytecode": [sys.dont_write_bytecode, sys.pycache_prefix],
    "site": [site.ENABLE_USER_SITE, site.getusersitepackages(), site.getsitepackages()],
    "sys": sorted(vars(sys)), "tracing": [sys.gettrace(), sys.getprofile()],
    "hooks": [getattr(sys, name) is getattr(sys, f"__{name}__") for name in ("excepthook", "displayhook", "unraisablehook")],
    "finders": [repr(f).partition(" at 0x")[0] for f in (*sys.meta_path, *sys.path_hooks)],
    "streams": [words(stream) for stream in streams],
    "originals": [sys.stdin is sys.__stdin__, sys.stdout is sys.__stdout__, sys.stderr is sys.__stderr__],
    "limits": [sys.getrecursionlimit(), sys.getswitchinterval(), _thread.stack_size(), _thread._count()],
    "environ": list(os.environ.items()), "posix": [repr(i) for i in sys.modules["posix"].environ.items()],
    "inherited": inherited, "time": [time.tzname, time.timezone, time.daylight],
    "exe": os.readlink("/proc/self/exe"), "stack": [repr(f) for f in traceback.extract_stack()],
    "launcher": [name for name in sys.modules if "launcher" in name], "faults": faulthandler.is_enabled(),
    "encodings": [sys.getfilesystemencoding(), sys.getfilesystemencodeerrors()],
    "own": [owned(name) for name in ("fd", "mem", "environ", "maps")], "cwd": os.getcwd(),
    "fds": sorted(os.listdir("/proc/self/fd")), "called": open("/proc/self/comm").read(),
    "threads": os.listdir("/proc/self/task") == [str(os.getpid())],
}))
"""
"""What a program can see of how it came to be."""

STATES = {
    "script": Case(STATE, ("main.py", "one", "", "ü\udcff", "-x")),
    "text": Case(argv=("-c", STATE, "one", "-c")),
    "absolute": Case(STATE, ("/app/main.py",)),
    "from elsewhere": Case(STATE, ("../app/main.py",), cwd="/tmp"),
    "dots": Case(STATE, ("./x/.././main.py",), {"x/y": ""}),
    "in a folder": Case(argv=("x/main.py",), files={"x/main.py": STATE}),
    "no ending": Case(argv=("main",), files={"main": STATE}),
    "odd name": Case(argv=("ü \n.py",), files={"ü \n.py": STATE}),
    "environment": Case(STATE, env={"Z": "1", "TZ": "Asia/Tokyo", "A": "ü\udcff", "PATH": "/usr/bin:/bin", "TERM": ""}),
    "input": Case(STATE, stdin=b"some"),
    "link": Case(argv=("l/link.py",), files={"x/real.py": STATE}, links={"l/link.py": "../x/real.py"}),
    "folder that is a link": Case(argv=("l/real.py",), files={"x/real.py": STATE}, links={"l": "x"}),
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
    "error chain": """\
try:
  {}['a']
except KeyError as e:
  raise ValueError('b') from e
""",
    "error context": "try:\n  {}['a']\nexcept KeyError:\n  int('x')",
    "error group": "raise ExceptionGroup('g', [ValueError(1), ExceptionGroup('h', [TypeError(2)])])",
    "error notes": "e = ValueError('x'); e.add_note('note'); raise e",
    "error of own": """\
class E(Exception):
  def __str__(self): raise RuntimeError
raise E
""",
    "error name": "prinr('x')",
    "error in a module": "import other",
    "error in exec": "exec('1/0')",
    "error deep": "def f(): f()\nf()",
    "error base": "raise BaseException('b')",
    "syntax": "def f(:\n  pass",
    "syntax later": "print('never')\nx = = 1",
    "indentation": "def f():\npass",
    "tabs": "if 1:\n        a = 1\n	b = 2",
    "unclosed": "x = (1,\n",
    "warning of syntax": "print(1 is 1, '\\d')",
    "keyboard": "def f(): raise KeyboardInterrupt\nf()",
    "interrupted": "import os, signal; os.kill(os.getpid(), signal.SIGINT)",
    "interrupt handled": """\
import os
try: os.kill(os.getpid(), 2)
except KeyboardInterrupt: print('handled')
""",
    "interrupt of own": "raise type('K', (KeyboardInterrupt,), {})",
    "hook": """\
import sys; sys.excepthook = lambda *a: print('mine', a[0], a[2].tb_lineno, a[2].tb_next); raise ValueError
""",
    "hook fails": """\
import sys
def h(*a): raise KeyError('h')
sys.excepthook = h; raise ValueError
""",
    "hook frames": """\
import sys, traceback
sys.excepthook = lambda *a: traceback.print_stack(); raise ValueError
""",
    "hook exits": "import sys; sys.excepthook = lambda *a: sys.exit(7); raise ValueError",
    "hook none": "import sys; del sys.excepthook; raise ValueError('x')",
    "unraisable": "class D:\n  def __del__(self): 1/0\nD(); print('on')",
    "no stderr": "import sys; sys.stderr = None; raise ValueError",
    "no stdout": "import sys; sys.stdout = None; print('x')",
    "replaced": "import builtins; builtins.SystemExit = builtins.Exception = int; builtins.print('x')",
    "broken": "import sys, builtins; sys.modules.clear(); builtins.__dict__.clear()",
    "no main": "import sys; del sys.modules['__main__']; print(__name__)",
    "other exit": "import sys; sys.exit = None; print('x')",
    "traced": """\
import sys
def t(f, e, a): sys.__stdout__.write(f'{e} {f.f_code.co_name}\\n'); return t
sys.settrace(t); sys.setprofile(t)
def f(): return len('x')
f()
""",
    "stack": "import traceback, inspect; traceback.print_stack(); print(len(inspect.stack()))",
    "warned": """\
import warnings; warnings.warn('a'); warnings.warn('b', stacklevel=2); warnings.warn('c', DeprecationWarning)
""",
    "logged": """\
import logging
logging.basicConfig(format='%(module)s %(lineno)d %(funcName)s %(message)s')
logging.warning('x', stack_info=True)
""",
    "dumped": "import faulthandler; faulthandler.dump_traceback(all_threads=False)",
    "argument words": "import argparse; p = argparse.ArgumentParser(); p.add_argument('a'); p.parse_args()",
    "names": "print([n for n in globals()], __doc__)",
    "documented": "'''doc'''\nprint(__doc__, __annotations__)",
    "annotated": "x: int = 1\nprint(__annotations__)",
    "future": """\
from __future__ import annotations
x: no = 1
print(__annotations__)
""",
    "compiled": "exec(compile('x: int = 1; print(__annotations__)', 'f', 'exec'))",
    "at exit": """\
import atexit
atexit.register(print, 1); atexit.register(lambda: 1/0); atexit.register(print, 3); print(atexit._ncallbacks())
""",
    "at exit exits": "import atexit, sys; atexit.register(sys.exit, 5)",
    "threads": """\
import threading, time
threading.Thread(target=lambda: (time.sleep(.05), print('late'))).start(); print('first')
""",
    "thread fails": "import threading; t = threading.Thread(target=lambda: 1/0); t.start(); t.join()",
    "daemon": """\
import threading, time
threading.Thread(target=time.sleep, args=(60,), daemon=True).start(); print('on')
""",
    "main thread": """\
import threading as t; print(t.main_thread() is t.current_thread(), t.current_thread().name, t.enumerate().__len__())
""",
    "pools": """\
from concurrent.futures import ThreadPoolExecutor as P
with P(3) as p: print(list(p.map(abs, [-1, 2])))
""",
    "asyncio": """\
import asyncio
async def m(): await asyncio.sleep(0); return await (await asyncio.create_subprocess_exec('false')).wait()
print(asyncio.run(m()))
""",
    "asyncio interrupted": """\
import asyncio, os
async def m(): os.kill(os.getpid(), 2); await asyncio.sleep(9)
asyncio.run(m())
""",
    "fork": "import os; p = os.fork(); print('child' if not p else os.wait()[1], flush=True)",
    "fork ends": """\
import os, sys, atexit; atexit.register(print, 'end', flush=True)
if not os.fork(): sys.exit(3)
print(os.wait()[1])
""",
    "processes": """\
import multiprocessing as m
if __name__ == '__main__': print(m.get_context('fork').Pool(2).map(abs, [-1, 2]))
""",
    "spawned": """\
import multiprocessing as m
def f(x): return x, __name__
if __name__ == '__main__':
  with m.get_context('spawn').Pool(1) as p: print(p.map(f, [3]))
""",
    "subprocess": """\
import subprocess as s, sys
print(s.run([sys.executable, '-c', 'import sys; print(sys.argv); sys.exit(4)'], capture_output=True))
""",
    "own options": "import subprocess as s; print(s._args_from_interpreter_flags())",
    "system": "import os; print(os.system('echo $0; exit 4'), os.getenv('HOME'), os.path.expanduser('~'))",
    "replaces itself": "import os; print('x', flush=True); os.execvp('sh', ['sh', '-c', 'echo $0 $$; exit 6'])",
    "itself again": """\
import os, sys
if len(sys.argv) < 2: sys.stdout.flush(); os.execv(sys.executable, sys.orig_argv + ['x'])
print(sys.orig_argv)
""",
    "pipes": """\
import signal, os; print([signal.getsignal(s) for s in (2, 13, 15, 25)], signal.pthread_sigmask(0, []))
""",
    "pipe broken": """\
import os
r, w = os.pipe(); os.dup2(w, 1); os.close(r); os.close(w); print('x')
""",
    "pipe broken early": """\
import os
r, w = os.pipe(); os.dup2(w, 1); os.close(r); os.close(w); print('x', flush=True)
""",
    "pipe default": """\
import os, signal
signal.signal(13, signal.SIG_DFL); r, w = os.pipe(); os.close(r); os.write(w, b'x')
""",
    "alarm": "import signal; signal.alarm(1); signal.pause()",
    "out closed": "import sys; sys.stdout.close()",
    "out closed below": "import os; os.close(1); print('x')",
    "err closed below": "import os; os.close(2); 1/0",
    "all closed": "import os; os.closerange(0, 3); print('x')",
    "full": "import os, sys; os.dup2(os.open('/dev/full', 1), 1); print('x')",
    "buffered": """\
import os, sys; sys.stdout.write('a\\n'); os.write(1, b'b\\n'); sys.stderr.write('c'); os.write(2, b'd')
""",
    "much": "for n in range(20000): print(n)",
    "odd text": "import sys; print('\\udcff', file=sys.stderr); print('\\udcff\\xfc'); print('\\ud800')",
    "line ends": "print('a\\r\\nb', sep=''); print(repr(open('/app/main.py', newline='').read()[-3:]))",
    "finalised": """\
import weakref
class D:
  def __init__(s, n): s.n = n
  def __del__(s): print('del', s.n)
a = D('a'); b = D('b'); c = D('c'); c.self = c; weakref.finalize(a, print, 'final')
import atexit; atexit.register(print, 'exit')
import json; json.left = D('json'); import sys; sys.left = D('sys'); import builtins; builtins.left = D('builtins')
def f(x=D('default')): pass
_under = D('under')
""",
    "finalised modules": """\
import sys
class D:
  def __del__(s, sys=sys): print(sys.modules is not None, sys.is_finalizing(), sys.stdout is not None)
d = D(); e = [d]; e.append(e)
""",
    "file left open": """\
f = open('/tmp/x', 'w'); f.write('x'); g = open('/tmp/x'); import warnings; warnings.simplefilter('always')
""",
    "generator left": """\
def g():
  try: yield 1
  finally: print('closed')
i = g(); next(i)
""",
    "garbage": "import gc; print(gc.isenabled(), gc.get_threshold(), gc.garbage, gc.get_debug(), gc.callbacks)",
    "collected": """\
import gc
class D:
  def __del__(s): print('gone')
d = D(); d.d = d; del d; print(gc.collect() > 0)
""",
    "recursion": """\
import sys
sys.setrecursionlimit(10**6); import resource
def f(n): return n and 1 + f(n - 1)
print(f(50000))
""",
    "locale": """\
import locale; print(locale.getlocale(), locale.setlocale(locale.LC_ALL), locale.getpreferredencoding())
""",
    "help": "print(copyright, exit, quit); print([n for n in dir(__builtins__)])",
    "pickled": """\
import pickle, io
class A: pass
print(pickle.loads(pickle.dumps(A())).__class__, pickle.dumps(A))
""",
    "inspected": """\
import inspect
class A:
  x = 1
def f(): pass
print(inspect.getsource(f), inspect.getsource(A), inspect.getsourcefile(f))
""",
    "runpy": "import runpy; print(runpy.run_path('/app/other.py', run_name='__main__') is not None)",
    "imports itself": """\
import main
print(main.__name__, main.__file__, main.__spec__.name)
""",
    "tested": """\
import unittest
class T(unittest.TestCase):
  def test(self): self.assertEqual(1, 2)
unittest.main(verbosity=0, testRunner=lambda **k: unittest.TextTestRunner(verbosity=0))
""",
    "doctested": "'''\n>>> 1\n2\n'''\nimport doctest; print(doctest.testmod())",
    "named": """\
from collections import namedtuple; from enum import Enum; import typing, dataclasses
P = namedtuple('P', 'a'); E = Enum('E', 'A'); T = typing.TypeVar('T')
print(P.__module__, E.__module__, T.__module__, dataclasses.make_dataclass('C', 'x').__module__)
""",
    "many modules": """\
import array, base64, bisect, calendar, cmath, collections, contextlib, copy, csv, ctypes, datetime, decimal, difflib, email
import fcntl, fractions, functools, glob, hashlib, heapq, html, http.client, itertools, json, math, mmap, operator, pathlib
import pickle, platform, queue, random, re, resource, select, selectors, shutil, socket, sqlite3, ssl, statistics, string, struct
import subprocess, sys, tempfile, textwrap, threading, time, traceback, types, typing, unicodedata, urllib.request
import uuid, weakref, xml.etree.ElementTree, zipfile, zlib
print(list(sys.modules))
print(datetime.date(2020, 1, 1), ctypes.sizeof(ctypes.c_long), struct.pack('i', 1))
print(array.array('i', [1]), select.select([], [], [], 0))
""",
    "readable": """\
import os
print(len(open('/proc/self/maps').read()) > 0, open('/proc/self/environ', 'rb').read() != b'')
""",
    "limits": """\
import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (9, 9))
open('/etc/hostname'); print(resource.getrlimit(resource.RLIMIT_STACK))
""",
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
    "unreadable": Case("print(1)", mode=0),
    "link to nothing": Case(argv=("l",), links={"l": "nothere"}),
    "link to itself": Case(argv=("l",), links={"l": "l"}),
    "link out": Case(argv=("l",), links={"l": "/etc/passwd"}),
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
        "import a; print(a.__file__)", files={f".local/lib/{VERSION}/site-packages/a.py": ""}, env={"HOME": "/app"}
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


def lay(folder: Path, case: Case) -> None:
    """Write the case's files."""
    for path, content in {"main.py": case.program, **case.files}.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content.encode() if isinstance(content, str) else content)
        file.chmod(0o755 if path != "main.py" else case.mode)
    for path, target in case.links.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).symlink_to(target)

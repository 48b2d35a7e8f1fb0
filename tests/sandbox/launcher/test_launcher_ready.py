"""A program run by a fork of an interpreter that waits: as if it had been started, and nothing of one is there for the next."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from typing import Any

import pytest

from assay.sandbox import MIB, Capability, Ended, Limits, Overlay, Sandbox, SandboxSpec, Writable
from assay.sandbox import slotrun as slotrun_module
from assay.sandbox.namespaces import NamespacesProvider, close_idle
from assay.sandbox.procfs import children
from assay.workspaces import scratch_folder
from warm import PYTHON, WarmProvider, is_warm

# What a program can see of how it came to be. Not: pids, inodes, the modules that are loaded, the command line in /proc.
STATE = """
import gc, json, locale, os, resource, signal, sys, threading, time
def number(name):
    try: return repr(signal.getsignal(name))
    except ValueError: return None
print(json.dumps({
    "flags": repr(sys.flags), "argv": sys.argv, "orig": sys.orig_argv, "path": sys.path, "executable": sys.executable,
    "prefix": [sys.prefix, sys.base_prefix, sys.exec_prefix], "version": sys.version, "platlibdir": sys.platlibdir,
    "env": sorted(os.environ.items()), "first_env": sorted(map(repr, __import__("posix").environ.items())),
    "streams": [(s.encoding, s.errors, s.line_buffering, s.fileno()) for s in (sys.stdin, sys.stdout, sys.stderr)],
    "handlers": {int(s): number(s) for s in signal.valid_signals()}, "blocked": sorted(signal.pthread_sigmask(0, [])),
    "limits": {n: resource.getrlimit(getattr(resource, n)) for n in dir(resource) if n.startswith("RLIMIT")},
    "ids": [os.getresuid(), os.getresgid(), os.getgroups()], "pids": [os.getpid(), os.getppid(), os.getpgid(0), os.getsid(0)],
    "umask": os.umask(0), "cwd": os.getcwd(),
    "fds": sorted(os.listdir("/proc/self/fd")) if os.access("/proc/self/fd", 4) else None,
    "main": sorted(globals()), "name": __name__, "spec": repr(__spec__),
    "gc": [gc.isenabled(), gc.get_threshold()],
    "bytecode": sys.dont_write_bytecode, "threads": threading.active_count(), "recursion": sys.getrecursionlimit(),
    "locale": locale.setlocale(locale.LC_ALL), "time": [time.tzname, time.timezone],
    "hooks": [repr(sys.excepthook), [getattr(f, '__name__', type(f).__name__) for f in sys.meta_path]],
    "launcher": [n for n in sys.modules if "launcher" in n], "roots": sorted(os.listdir("/")),
    "comm": open("/proc/self/comm").read(),
    "nice": os.getpriority(os.PRIO_PROCESS, 0), "warnings": repr(__import__("warnings").filters),
    "terminal": os.path.exists("/dev/tty") and os.isatty(0),
    "score": open("/proc/self/oom_score_adj").read(),
    "files": [m.__file__ for m in sys.modules.values() if "/assay" in str(getattr(m, "__file__", ""))],
}))
"""


@pytest.fixture
async def both() -> AsyncIterator[tuple[Sandbox, Sandbox]]:
    """A sandbox whose programs are started, and one where they are forked."""
    spec = SandboxSpec(mounts=(Writable("/out"),))
    cold, warm = await NamespacesProvider().create(spec), await WarmProvider().create(spec)
    assert (is_warm(cold), is_warm(warm)) == (False, True)
    yield cold, warm
    await cold.close()
    await warm.close()


async def run(sandbox: Sandbox, source: str, *arguments: str, scripts: bool = False, **options: Any) -> Any:
    options.setdefault("timeout_s", 30)
    isolated = [] if scripts else ["-I"]
    return await sandbox.exec([PYTHON, *isolated, "-c", source, *arguments], **options)


@pytest.mark.parametrize("env", [{}, {"TZ": "Asia/Tokyo", "HOME": "/out", "A": "ü\udcff"}], ids=["none", "some"])
async def test_a_program_finds_itself_as_it_would_have_been_started(
    both: tuple[Sandbox, Sandbox], env: dict[str, str]
) -> None:
    seen = []
    for sandbox in both:
        result = await run(sandbox, STATE, "one", "ü", cwd="/out", env=env)
        assert (result.code, result.stderr) == (0, b""), result.stderr.decode()
        seen.append(json.loads(result.stdout))
    cold, warm = seen
    # The init and the slot's own fork come before it in its pid namespace, in both.
    assert {key: (cold[key], warm[key]) for key in cold if cold[key] != warm[key]} == {}
    assert warm["launcher"] == warm["files"] == []


ENDS = [
    ("print('x', end='')", 0),
    ("import sys; sys.exit(3)", 3),
    ("import sys; sys.exit()", 0),
    ("import sys; sys.exit(True)", 1),
    ("import sys; sys.exit(-1)", 255),
    ("import sys; sys.exit('said')", 1),
    ("1 / 0", 1),
    ("def f(): raise KeyError('x')\nf()", 1),
    ("def (", 1),
    ("raise SystemExit({'a': 1})", 1),
    ("import os; os._exit(9)", 9),
    ("import os; os.abort()", -signal.SIGABRT),
    ("import os; os.kill(os.getpid(), 15)", -signal.SIGTERM),
    ("import os; os.kill(os.getpid(), 9)", -signal.SIGKILL),
    ("raise KeyboardInterrupt", -signal.SIGINT),
    ("import os, signal; os.kill(os.getpid(), signal.SIGINT)", -signal.SIGINT),
    ("import atexit; atexit.register(print, 'last'); print('first')", 0),
    ("import threading, time\nthreading.Thread(target=lambda: (time.sleep(.05), print('late'))).start()", 0),
    ("import sys; sys.excepthook = lambda *a: print('mine'); raise ValueError", 1),
    ("import sys; sys.stdout.write('unflushed'); sys.stderr.write('said')", 0),
    ("import sys; sys.stdout.close()", 0),
    ("import os; os.close(1); print('x')", 120),
    ("import os; print(os.fork() and os.wait()[1])", 0),
    ("import ctypes; ctypes.string_at(0)", -signal.SIGSEGV),
    ("import multiprocessing as m; print(m.get_context('fork').Pool(2).map(abs, [-1]))", 0),
    ("import subprocess as s; print(s.run(['sh', '-c', 'echo $0; exit 4'], capture_output=True))", 0),
    ("import warnings; warnings.warn('w')", 0),
    ("import asyncio; print(asyncio.run(asyncio.sleep(0, 5)))", 0),
]


@pytest.mark.parametrize(("source", "code"), ENDS)
async def test_it_ends_as_a_started_one_does(both: tuple[Sandbox, Sandbox], source: str, code: int) -> None:
    ends = []
    for sandbox in both:
        result = await run(sandbox, source)
        # What is said of a stream that cannot be flushed differs between versions.
        said = result.stderr if code != 120 else b"errno 9" in result.stderr.lower()
        ends.append((result.how, result.code, result.signal, result.stdout, said))
    assert ends[0] == ends[1]
    found = -ends[1][2] if ends[1][2] is not None else ends[1][1]
    assert found == code


@pytest.mark.parametrize(
    ("argv", "env", "forked"),
    [
        ([PYTHON, "-I", "-c"], {}, True),
        ([PYTHON, "-I", "-c"], {"PYTHONPATH": "/out", "ANY": "1"}, True),
        ([PYTHON, "-I", "-c"], {"LD_LIBRARY_PATH": "/out"}, False),
        ([PYTHON, "-I", "-c"], {"LANG": "C"}, False),
        ([PYTHON, "-I", "-c"], {"LC_ALL": "C.UTF-8"}, False),
        ([PYTHON, "-I", "-c"], {"GLIBC_TUNABLES": "x"}, False),
        ([PYTHON, "-c"], {}, False),
        ([PYTHON, "-I", "-S", "-c"], {}, False),
        (["python3", "-I", "-c"], {}, False),
    ],
)
async def test_what_acts_before_the_first_line_is_started(
    both: tuple[Sandbox, Sandbox], argv: list[str], env: dict[str, str], forked: bool
) -> None:
    result = await both[1].exec([*argv, "import gc; print(gc.get_freeze_count() > 0)"], env=env, timeout_s=30)
    assert (result.code, result.stdout.decode()) == (0, f"{forked}\n")


async def test_other_commands_run_there_as_well(both: tuple[Sandbox, Sandbox]) -> None:
    for argv in (["sh", "-c", "echo $0 >&2; exit 3"], ["nothere"], ["/etc/hostname"], ["/nothere"], ["env"], ["id"]):
        results = [await sandbox.exec(argv, timeout_s=30) for sandbox in both]
        one, other = [(r.how, r.code, r.signal, r.stdout, r.stderr) for r in results]
        assert one == other


SPOILS = """
import builtins, ctypes, json, os, random, resource, signal, socket, subprocess, sys, threading
open("/tmp/left", "w").close(); open("/dev/shm/left", "w").close(); open("/app/left", "w").close()
json.dumps = lambda *a: "spoiled"; builtins.left = 1; sys.modules["left"] = json
sys.path.insert(0, "/tmp"); os.environ["LEFT"] = "1"; os.umask(0o77)
random.seed(1); signal.signal(signal.SIGTERM, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
s = socket.socket(socket.AF_UNIX); s.bind(chr(0) + "left"); s.listen()
t = socket.create_server(("127.0.0.1", 45454))
libc = ctypes.CDLL(None); libc.syscall(248, b"user", b"left", b"x", 1, -3)
q = libc.msgget(77, 0o1600); libc.shmget(78, 4096, 0o1600)
subprocess.Popen(["sh", "-c", "trap '' TERM HUP; sleep 300"], start_new_session=True)
sys.setrecursionlimit(90)
threading.Thread(target=lambda: __import__("time").sleep(300), daemon=True).start()
print("spoiled")
"""

LOOKS = """
import ctypes, json, os, random, resource, signal, socket, sys
found = [p for p in ("/tmp/left", "/dev/shm/left", "/app/left") if os.path.exists(p)]
found += [n for n in ("left",) if n in sys.modules or hasattr(__builtins__, n)]
found += ["json"] if json.dumps([1]) != "[1]" else []
found += ["path"] if "/tmp" in sys.path else []
found += ["env"] if "LEFT" in os.environ or os.getenv("LEFT") else []
found += ["signal"] if signal.getsignal(signal.SIGTERM) != signal.SIG_DFL else []
found += ["limit"] if resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 64 else []
found += ["umask"] if os.umask(0) != 0o22 else []
for at in (chr(0) + "left",):
    try: socket.socket(socket.AF_UNIX).connect(at); found.append("abstract")
    except OSError: pass
try: socket.create_connection(("127.0.0.1", 45454), 1); found.append("port")
except OSError: pass
libc = ctypes.CDLL(None)
found += ["key"] if libc.syscall(249, b"user", b"left", None, 0) > 0 else []
found += ["queue"] if libc.msgget(77, 0) >= 0 or libc.shmget(78, 0, 0) >= 0 else []
found += ["process"] if len([p for p in os.listdir("/proc") if p.isdigit()]) > 2 else []
found += ["recursion"] if sys.getrecursionlimit() == 90 else []
print(json.dumps([found, random.random(), os.urandom(4).hex()]))
"""


@pytest.mark.parametrize("scripts", [False, True], ids=["isolated", "scripts"])
async def test_nothing_of_one_is_there_for_the_next(scripts: bool) -> None:
    if scripts and os.geteuid() != 0:
        pytest.skip("an ordinary user's server is told paths of the host")
    provider = WarmProvider(scripts=scripts)
    with scratch_folder("app") as app:
        spec = SandboxSpec(mounts=(Overlay(app, "/app"),))
        drawn = set()
        for turn in range(3):
            sandbox = await provider.create(spec)
            assert is_warm(sandbox)
            spoiled = await run(sandbox, SPOILS, scripts=scripts)
            assert (spoiled.code, spoiled.stdout) == (0, b"spoiled\n"), spoiled.stderr.decode()
            # The next command of the same sandbox, and the first of the next that has the slot.
            for _ in range(1 if turn else 2):
                looked = await run(sandbox, LOOKS, scripts=scripts)
                assert looked.code == 0, looked.stderr.decode()
                found, number, _ = json.loads(looked.stdout)
                assert found == []
                drawn.add(number)
            await sandbox.close()
        assert len(drawn) == 4, "random numbers come again"


@pytest.mark.parametrize("what", ["init", "server", "stop"])
async def test_a_lost_one_is_replaced(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slotrun_module, "_ANSWERS_S", 0.5)
    sandbox: Any = await WarmProvider().create(SandboxSpec(mounts=(Writable("/out"),)))
    inner = sandbox.inner
    keeper = inner._maker.slot._server._popen.pid
    (server,) = children(keeper)
    waits = "import time; open('/out/on', 'w').close(); time.sleep(60)"
    running = asyncio.ensure_future(run(sandbox, waits, timeout_s=60 if what != "stop" else 2))
    async with asyncio.timeout(30):
        while not (inner._parts.room.writables["/out"] / "on").exists():
            await asyncio.sleep(0.002)
    init, _ = children(server)
    os.kill(
        {"init": init, "server": server, "stop": server}[what], signal.SIGSTOP if what == "stop" else signal.SIGKILL
    )
    result = await running
    assert result.how is {"init": Ended.SIGNALED, "server": Ended.FAULT, "stop": Ended.WALL_LIMIT}[what]
    again = await run(sandbox, "print(2)")
    assert (again.code, again.stdout) == (0, b"2\n")
    await sandbox.close()


async def test_one_that_fills_its_memory_says_so_and_harms_no_other() -> None:
    provider = WarmProvider()
    if Capability.MEMORY_LIMIT not in provider.capabilities():
        pytest.skip("this user may make no memory group")
    sandbox = await provider.create(SandboxSpec(limits=Limits(memory_bytes=64 * MIB)))
    other = await provider.create(SandboxSpec())
    beside = asyncio.ensure_future(run(other, "import time; time.sleep(.3); print(1)"))
    result = await run(sandbox, "x = [bytearray(1 << 20) for _ in range(512)]")
    assert result.how is Ended.MEMORY_LIMIT
    assert (await beside).stdout == b"1\n"
    assert (await run(sandbox, "print(2)")).stdout == b"2\n"
    await sandbox.close()
    await other.close()
    close_idle()

"""`run_submission` from end to end: what a verifier gets back, what a submission cannot do, and what is never its fault."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from assay.grading import Verdict, grade
from assay.sandbox import Ended, ExecResult, Provider, Sandbox, SandboxSpec, Socket, get_provider
from commands import assay, make_task
from ordinary_user import REPOSITORY, run_as_ordinary_user

HEAD = (
    "from assay.verifiers import *\nimport os, threading, time\nSECRET = 'the expected answer'\n"
    "def run(workspace, **options):\n    return run_submission(['python3', 'main.py'], workspace=workspace, **options)\n"
)


@dataclass(frozen=True)
class Case:
    """A program of the submission's, and what the verifier must see of it: its asserts are the expectation."""

    name: str
    verify: str
    """The body of `verify`, after which it returns 1."""
    program: str = ""
    files: tuple[tuple[str, str], ...] = ()


HONEST = [
    Case(
        "honest program",
        "r = run(workspace, stdin='4 5')\nassert r.ok and r.stdout == b'9\\n' and r.stderr == b'', r\n"
        "assert (r.ended, r.code, r.signal, r.truncated, r.outputs, r.isolation)"
        " == ('exited', 0, None, False, {}, 'sandbox')\n"
        "assert 0 < r.wall_s < 30 and r.cpu_s > 0",
        "print(sum(map(int, input().split())))",
    ),
    Case(
        "bytes both ways",
        "data = bytes(range(256)) * 40_000\nr = run(workspace, stdin=data)\n"
        "assert r.stdout == data[::-1] and r.stderr == data[:9], r",
        "import sys\nd = sys.stdin.buffer.read()\nsys.stdout.buffer.write(d[::-1])\nsys.stderr.buffer.write(d[:9])",
    ),
    Case(
        "exit code",
        "r = run(workspace)\nassert (r.ended, r.code, r.ok) == ('exited', 3, False), r",
        "import sys\nsys.exit(3)",
    ),
    Case(
        "crash",
        "r = run(workspace)\nassert r.signal == 11 or r.code == 139, r",
        "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)",
    ),
    Case(
        "no such program",
        "r = run_submission(['/no/such'], workspace=workspace)\nassert r.code == 127 and b'/no/such' in r.stderr, r",
    ),
    Case(
        "arguments and environment",
        "r = run_submission(['python3', 'main.py', b'\\xff', 'ü', ''], workspace=workspace, env={'A': 'b c'})\n"
        "assert r.stdout == b\"[b'\\\\xff', b'\\\\xc3\\\\xbc', b''] b c /app\\n\", r",
        "import os, sys\nprint([os.fsencode(a) for a in sys.argv[1:]], os.environ['A'], os.getcwd())",
    ),
    Case(
        "a folder in the workspace",
        "r = run_submission(['cat', 'f', 'g'], workspace=workspace / 'sub', files={'g': '2'}, outputs=['f', 'g'])\n"
        "assert r.stdout == b'12' and r.outputs == {'f': b'1', 'g': b'2'}, r",
        files=(("sub/f", "1"),),
    ),
    Case(
        "files are laid over what is there",
        "files = {'main.py': 'print(open(\"data/in\").read(), open(\"data/kept\").read())', 'data/in': b'new'}\n"
        "r = run(workspace, files=files)\nassert r.stdout == b'new kept\\n', r",
        "raise SystemExit('not replaced')",
        files=(("data/in", "old"), ("data/kept", "kept")),
    ),
    Case(
        "what the verifier writes is not there",
        "(workspace / 'key').write_text(SECRET)\nr = run(workspace)\nassert r.stdout == b\"['main.py']\\n\", r",
        "import os\nprint(os.listdir('.'))",
    ),
    Case(
        "nothing stays without a session",
        "for outputs in ((), ('new',)):\n  for _ in range(2):\n    r = run(workspace, outputs=outputs)\n"
        "    assert r.stdout == b'True True\\n', r\nassert not (workspace / 'new').exists()",
        "import os\nprint(*(not os.path.exists(p) for p in ('new', '/tmp/new')))\n"
        "for p in ('new', '/tmp/new'): open(p, 'w').close()",
    ),
    Case(
        "a session keeps the workspace and nothing else",
        "for seen in (b'True True\\n', b'False True\\n'):\n  r = run(workspace, session='s')\n  assert r.stdout == seen, r\n"
        "r = run(workspace, session='other')\nassert r.stdout == b'True True\\n', r\n"
        "r = run(workspace, session='s', files={'new': 'mine'}, outputs=['new'])\nassert r.outputs == {'new': b'mine'}, r",
        "import os\nprint(*(not os.path.exists(p) for p in ('new', '/tmp/new')))\n"
        "for p in ('new', '/tmp/new'): open(p, 'a').close()",
    ),
    Case(
        "compile, then run",
        "cc = run_submission(['cc', 'sum.c', '-o', 'sum'], workspace=workspace, session='build')\n"
        "if cc.code == 127:\n  print('no cc in the base')\n"
        "else:\n  assert cc.ok, cc\n"
        "  for n in (3, 4):\n"
        "    r = run_submission(['./sum'], workspace=workspace, session='build', stdin=str(n))\n"
        "    assert r.stdout == b'%d\\n' % (n * n), r",
        files=(("sum.c", '#include <stdio.h>\nint main(){int n;scanf("%d",&n);printf("%d\\n",n*n);return 0;}'),),
    ),
    Case(
        "four at once",
        "seen = [None] * 8\ndef one(n):\n  r = run(workspace, stdin=str(n))\n  seen[n] = r.stdout\n"
        "threads = [threading.Thread(target=one, args=(n,)) for n in range(8)]\n"
        "[t.start() for t in threads]\n[t.join() for t in threads]\n"
        "assert seen == [b'%d\\n' % n for n in range(8)], seen",
        "print(input())",
    ),
    Case(
        "outputs",
        "r = run(workspace, outputs=['o', 'd/o', 'none', 'empty'])\n"
        "assert r.outputs == {'o': b'\\xff', 'd/o': b'2', 'none': None, 'empty': b''}, r.outputs",
        "import os\nos.mkdir('d')\nopen('o', 'wb').write(b'\\xff')\nopen('d/o', 'w').write('2')\nopen('empty', 'w')",
    ),
]

HOSTILE = [
    Case(
        "outputs that are none",
        "names = ['link', 'through/passwd', 'fifo', 'hard', 'other', 'folder', 'socket', 'sparse', 'good']\n"
        "r = run(workspace, outputs=names)\n"
        "assert r.ok and r.outputs == {**dict.fromkeys(names), 'good': b'good'}, (r, r.outputs)",
        "import os, socket\nos.symlink('/etc/passwd', 'link')\nos.symlink('/etc', 'through')\nos.mkfifo('fifo')\n"
        "open('hard', 'w').write('h')\nos.link('hard', 'other')\nos.mkdir('folder')\n"
        "socket.socket(socket.AF_UNIX).bind('socket')\nopen('sparse', 'w').truncate(1 << 30)\n"
        "open('good', 'w').write('good')",
    ),
    Case(
        "files through a planted link",
        "r = run(workspace, session='s')\nassert r.ok, r\n"
        "r = run(workspace, session='s', files={'d/f': 'x', 'g': 'y'}, outputs=['d/f', 'g'])\n"
        "assert r.outputs == {'d/f': b'x', 'g': b'y'}, (r, r.outputs)",
        "import os, sys\nif not os.path.lexists('d'):\n  os.symlink('/tmp', 'd')\n  os.symlink('main.py', 'g')",
    ),
    Case(
        "timeout",
        "began = time.monotonic()\nr = run(workspace, timeout_s=1)\n"
        "assert (r.ended, r.code, r.signal, r.stdout) == ('wall_limit', None, None, b'before\\n'), r\n"
        "assert time.monotonic() - began < 20",
        "import os, signal, subprocess, time\nprint('before', flush=True)\nsignal.signal(15, signal.SIG_IGN)\n"
        "subprocess.Popen(['sleep', '600'], start_new_session=True)\ntime.sleep(600)",
    ),
    Case(
        "memory bomb",
        "r = run(workspace, memory_mb=64)\nassert r.ended == 'memory_limit', r",
        "held = []\nwhile True: held.append(bytearray(1 << 22))",
    ),
    Case(
        "memory bomb in files",
        "r = run(workspace, memory_mb=64, outputs=['f'])\n"
        "assert r.ended == 'memory_limit' and len(r.outputs['f'] or b'') <= 64 << 20, r",
        "f = open('f', 'wb')\nwhile True: f.write(bytes(1 << 22))",
    ),
    Case(
        "fork bomb",
        "r = run(workspace, timeout_s=10)\nassert not r.ok, r\nr = run_submission(['true'], workspace=workspace)\nassert r.ok, r",
        "import os\nwhile True: os.fork()",
    ),
    Case(
        "output flood",
        "r = run(workspace)\n"
        "assert r.ok and r.truncated and r.stdout == b'x' * (16 << 20) and r.stderr == b'end', (r.ended, r.code)",
        "import sys\nfor _ in range(100): sys.stdout.write('x' * (1 << 20))\nsys.stderr.write('end')",
    ),
    Case(
        "looks for the grader",
        "holder = open('/logs/verifier/held', 'w')\nr = run(workspace)\n"
        "assert r.ok, r\nassert r.stdout == b'nothing\\n', r.stdout",
        """
import os
found = [p for p in ("/tests", "/logs", "/solution", "/run/assay", "/run/assay/s") if os.path.exists(p)]
found += [v for v in os.environ if "ASSAY" in v]
for pid in filter(str.isdigit, os.listdir("/proc")):
    for name in ("cmdline", "environ"):
        try:
            data = open("/proc/%s/%s" % (pid, name), "rb").read()
        except OSError:
            continue
        if b"run_verifier" in data or b"ASSAY" in data:
            found.append(pid)
found += [f for f in os.listdir("/proc/self/fd") if int(f) > 3]
print(found or "nothing")
""",
    ),
    Case(
        "signals and sockets",
        "r = run(workspace)\nassert r.stdout == b'nothing\\n', r",
        """
import os, socket
done = []
try:
    os.kill(-1, 9)
except OSError:
    pass
for address in ("/run/assay/s", "\\0assay", "/tmp/s"):
    try:
        socket.socket(socket.AF_UNIX).connect(address)
        done.append(address)
    except OSError:
        pass
try:
    socket.create_connection(("1.1.1.1", 80), 1)
    done.append("network")
except OSError:
    pass
print(done or "nothing")
""",
    ),
    Case(
        "stays behind",
        "r = run(workspace)\nassert r.ok, r\nr = run(workspace)\nassert r.stdout.strip() == b'', r",
        "import os, subprocess\nme = str(os.getpid())\n"
        "print(*(p for p in os.listdir('/proc') if p.isdigit() and p not in ('1', '2', me) "
        "and b'sleep' in open('/proc/%s/cmdline' % p, 'rb').read()))\n"
        "subprocess.Popen(['sleep', '600'], start_new_session=True)",
    ),
]

REFUSED = [
    Case(
        "another folder",
        "import tempfile\ntry:\n  run_submission(['true'], workspace=tempfile.mkdtemp())\n"
        "except ValueError as error:\n  assert 'the workspace that `verify` was given' in str(error), error\n"
        "else: raise AssertionError",
    ),
    Case(
        "too many sessions",
        "for n in range(16):\n  assert run_submission(['true'], workspace=workspace, session=str(n)).ok\n"
        "try:\n  run_submission(['true'], workspace=workspace, session='one more')\n"
        "except RuntimeError as error:\n  assert '16 sessions' in str(error), error\n"
        "else: raise AssertionError\nassert run_submission(['true'], workspace=workspace, session='3').ok",
    ),
    Case(
        "another limit in a session",
        "assert run_submission(['true'], workspace=workspace, session='s', memory_mb=64).ok\n"
        "try:\n  run_submission(['true'], workspace=workspace, session='s', memory_mb=128)\n"
        "except ValueError as error:\n  assert 'another memory_mb' in str(error), error\n"
        "else: raise AssertionError",
    ),
]


@pytest.mark.parametrize("case", [*HONEST, *HOSTILE, *REFUSED], ids=lambda case: case.name)
def test_what_a_verifier_sees_of_a_run(case: Case, tmp_path: Path) -> None:
    code, verdict, _ = assay(*prepared(case, tmp_path), state=tmp_path / "state")
    assert verdict["failure"] is None, (verdict["failure"]["reason"], verdict["log_tail"])
    assert (code, verdict["reward"]) == (0, 1.0)
    assert verdict["unmet"] == []


def prepared(case: Case, folder: Path) -> list[str | Path]:
    body = "\n".join(f"    {line}" for line in case.verify.splitlines())
    task = make_task(folder / "task", f"{HEAD}def verify(workspace):\n{body}\n    return 1\n")
    workspace = folder / "workspace"
    for name, content in (*case.files, *([("main.py", case.program)] if case.program else [])):
        (workspace / name).parent.mkdir(parents=True, exist_ok=True)
        (workspace / name).write_text(content)
    workspace.mkdir(exist_ok=True)
    return ["verify", task, "--workspace", workspace, "--json", "--no-control"]


Judge = Callable[..., Any]


@pytest.fixture
def judge(tmp_path: Path) -> Judge:
    """Grades with a verifier's text; the workspace has a `main.py`."""

    async def judged(verifier: str, program: str = "", *, sandbox: Provider | str = "auto", toml: str = "") -> Verdict:
        task = make_task(tmp_path / "task", HEAD + verifier, toml)
        workspace = tmp_path / "workspace"
        workspace.mkdir()
        (workspace / "main.py").write_text(program)
        return await grade(task, workspace, sandbox=sandbox, state=tmp_path / "state", control=False)

    return judged


async def test_runs_are_counted(judge: Judge) -> None:
    verdict = await judge(
        "def verify(workspace):\n  for _ in range(3): run_submission(['true'], workspace=workspace)\n  return 1"
    )
    assert verdict.usage["runs"] == 3
    assert 0 < verdict.usage["run_s"] < 60


async def test_a_run_ends_with_the_time_of_its_verification(judge: Judge) -> None:
    began = time.monotonic()
    verdict = await judge(
        "def verify(workspace):\n  run_submission(['sleep', '600'], workspace=workspace, timeout_s=600)\n  time.sleep(600)",
        toml="[verifier]\ntimeout_sec = 2.0\n",
    )
    assert verdict.failure is not None
    assert verdict.failure["kind"] == "assay:verifier_timeout"
    assert time.monotonic() - began < 30


async def test_what_the_verifier_leaves_running_ends_with_it(judge: Judge) -> None:
    began = time.monotonic()
    verdict = await judge(
        "def verify(workspace):\n"
        "  ask = lambda: run_submission(['sleep', '600'], workspace=workspace, timeout_s=600)\n"
        "  threading.Thread(target=ask, daemon=True).start()\n"
        "  run_submission(['true'], workspace=workspace)\n  return 0.5"
    )
    assert verdict.reward == 0.5
    assert time.monotonic() - began < 30


@dataclass
class _Failing:
    """A provider whose sandboxes for submissions cannot be made, or are lost; the grader's are as always."""

    inner: Provider
    how: str
    failures: int = 1_000
    name: str = "failing"
    isolated: bool = True

    def capabilities(self) -> Any:
        return self.inner.capabilities()

    async def create(self, spec: SandboxSpec) -> Sandbox:
        sandbox = await self.inner.create(spec)
        if any(isinstance(mount, Socket) for mount in spec.mounts) or self.failures <= 0:
            return sandbox
        self.failures -= 1
        if self.how == "create":
            await sandbox.close()
            raise OSError(28, "No space left on device")
        return _Lost(sandbox)  # type: ignore[return-value] # all that a run asks of one


class _Lost:
    def __init__(self, sandbox: Sandbox) -> None:
        self.close = sandbox.close
        self.for_one = sandbox.for_one

    async def exec(self, argv: Any, **options: Any) -> ExecResult:
        return ExecResult(Ended.FAULT, fault="the slot's server is gone")


SWALLOWS = """
def verify(workspace):
    try:
        return float(run_submission(['true'], workspace=workspace).ok)
    except Exception as error:
        print(type(error).__name__, error)
        return 0
"""
TELLS = "def verify(workspace):\n  return float(run_submission(['true'], workspace=workspace).ok)\n"


@pytest.mark.parametrize("how", ["create", "exec"])
@pytest.mark.parametrize("verifier", [SWALLOWS, TELLS], ids=["swallowed", "told"])
async def test_a_fault_of_ours_is_never_a_zero(judge: Judge, verifier: str, how: str) -> None:
    verdict = await judge(verifier, sandbox=_Failing(get_provider("auto"), how))
    assert (verdict.status, verdict.reward, verdict.caused_by) == ("failed", None, "infrastructure")
    assert verdict.failure is not None
    assert verdict.failure["kind"] == "provider_unavailable"
    assert ("No space left" if how == "create" else "server is gone") in verdict.failure["reason"]
    assert verdict.discarded_reward == (0.0 if verifier is SWALLOWS else None)
    if verifier is SWALLOWS:
        assert verdict.log_tail.startswith("CannotGrade")


async def test_a_fault_that_passes_is_tried_again(judge: Judge) -> None:
    verdict = await judge(SWALLOWS, sandbox=_Failing(get_provider("auto"), "exec", failures=2))
    assert (verdict.reward, verdict.failure) == (1.0, None)


async def test_cannot_grade_without_a_fault_is_not_believed(judge: Judge) -> None:
    verdict = await judge("def verify(workspace):\n  raise CannotGrade('run_submission: the supervisor is gone')\n")
    assert verdict.failure is not None
    assert (verdict.failure["kind"], verdict.caused_by) == ("assay:cannot_grade", "unknown")


SLEEP = f"600.{os.getpid()}"


async def test_a_cancelled_verification_leaves_nothing(judge: Judge, tmp_path: Path) -> None:
    running = asyncio.ensure_future(
        judge(
            f"def verify(workspace):\n  run_submission(['sleep', '{SLEEP}'], workspace=workspace, timeout_s=600, session='s')\n"
        )
    )
    for _ in range(20_000):
        await asyncio.sleep(0.005)
        if _sleeping():
            break
    assert _sleeping()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not _sleeping()


def _sleeping() -> bool:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if (
                path.read_bytes() == f"sleep\0{SLEEP}\0".encode()
                and path.with_name("stat").read_text().split()[2] not in "ZX"
            ):
                return True
        except OSError:
            continue
    return False


EVERYWHERE = """
def verify(workspace):
    r = run(workspace, stdin='in', files={'d/f': 'x'}, outputs=['o', 'none'], session='s')
    assert r.ok and r.stdout == b'in x' and r.outputs == {'o': b'o', 'none': None}, (r, r.outputs)
    r = run_submission(['sh', '-c', 'cat o; chmod 0 . d o'], workspace=workspace, session='s', outputs=['o'])
    assert r.stdout == b'o', r
    r = run_submission(['true'], workspace=workspace, session='s')
    assert r.ended == 'exited', r
    r = run_submission(['cat', 'd/f'], workspace=workspace, session='s', files={'d/f': 'y'}, outputs=['d/f'])
    assert r.stdout == b'y' and r.outputs == {'d/f': b'y'}, (r, r.outputs)
    r = run_submission(['sh', '-c', 'ls; ls /tests /logs'], workspace=workspace)
    assert r.stdout == b'main.py\\n', r
    print('isolation', r.isolation)
    return call_function('main', 'double', [21])
"""
PROGRAM = (
    "import sys\ndef double(x): return 2 * x\n"
    "if __name__ == '__main__':\n    open('o', 'w').write('o')\n"
    "    sys.stdout.write(sys.stdin.read() + ' ' + open('d/f').read())\n"
)
ISOLATION = {"namespaces": "sandbox", "bubblewrap": "sandbox", "process": "uid" if os.geteuid() == 0 else "process"}


@pytest.mark.parametrize("provider", ["namespaces", "bubblewrap", "process"])
async def test_every_provider_runs_submissions(judge: Judge, provider: str) -> None:
    verdict = await judge(EVERYWHERE, PROGRAM, sandbox=provider)
    assert verdict.failure is None, (verdict.failure["reason"], verdict.log_tail)
    assert (verdict.reward, verdict.usage["runs"]) == (42.0, 6)
    assert verdict.log_tail == f"isolation {ISOLATION[provider]}\n"


@pytest.mark.parametrize("provider", ["namespaces", "bubblewrap", "process"])
def test_an_ordinary_user_runs_submissions(provider: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        task = make_task(folder / "task", HEAD + EVERYWHERE)
        (folder / "workspace").mkdir()
        (folder / "workspace" / "main.py").write_text(PROGRAM)
        arguments = ["verify", str(task), "--workspace", str(folder / "workspace"), "--sandbox", provider, "--json"]
        done = run_as_ordinary_user(
            [sys.executable, "-m", "assay.cli.main", *arguments], env={"PYTHONPATH": f"{REPOSITORY}/src"}
        )
    verdict = json.loads(done.stdout)
    assert verdict["failure"] is None, (verdict["failure"]["reason"], verdict["log_tail"])
    assert (verdict["reward"], verdict["usage"]["runs"]) == (42.0, 6)
    assert verdict["log_tail"] == f"isolation {'sandbox' if provider != 'process' else 'process'}\n"

"""Honest graders do not suffer: what real verifiers use works with full hardening on."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from attacks.conftest import ARENAS
from attacks.harness import SOAK, Arena, Attack, Files

OK = "echo 1 > /logs/verifier/reward.txt\n"


@dataclass(frozen=True)
class Grader:
    """A verifier that uses something, and a workspace that it must reward with 1 (and an empty one with less)."""

    name: str
    tests: dict[str, str]
    workspace: Files
    base: str = "host"
    timeout_s: float = 120.0
    program: str = ""
    """What the host must have; in a root folder it is always there."""


PLUGINS = """
import pytest

class Counts:
    def __init__(self):
        self.calls = 0
    def pytest_runtest_call(self, item):
        self.calls += 1

def verify(workspace):
    counts = Counts()
    code = pytest.main(["-q", "-c", "/dev/null", "--rootdir", "/tests", "-p", "no:cacheprovider", "-p", "helps",
                        "--junit-xml=/tmp/report.xml", "/tests/test_answer.py"], plugins=[counts])
    return float(code == 0 and counts.calls == 4)
"""
TESTS = """
import asyncio
import pytest

pytestmark = pytest.mark.parametrize("n", [0, 1])

def test_fixture(answer, tmp_path, monkeypatch, capsys, n):
    monkeypatch.setenv("X", "y")
    (tmp_path / "made").write_text(answer)
    print("shown")
    assert capsys.readouterr().out == "shown\\n"
    assert (tmp_path / "made").read_text() == "42"

def test_loop(answer, n):
    async def later():
        await asyncio.sleep(0)
        return answer
    assert asyncio.run(later()) == "42"
"""
HELPS = """
import pytest

@pytest.fixture
def answer():
    with open("/app/answer.txt") as file:
        return file.read().strip()
"""
NUMPY = """
import numpy

def verify(workspace):
    found = numpy.loadtxt(workspace / "answer.txt")
    random = numpy.random.default_rng().normal(size=(200, 200))
    assert numpy.allclose(random @ numpy.linalg.inv(random), numpy.eye(200), atol=1e-6)
    return numpy.float64(numpy.isclose(found, 42).all())
"""
COMPILES = """#!/bin/bash
set -e
cp -r /app /tmp/build
cd /tmp/build
gcc -O1 -Wall -o program program.c -lm
[ "$(./program 6 7)" = 42 ] && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt
"""
PROGRAM = """
#include <stdio.h>
#include <stdlib.h>
int main(int n, char **words) { printf("%d\\n", atoi(words[1]) * atoi(words[2])); return 0; }
"""
GIT = """#!/bin/bash
set -e
[ -e answer.txt ]
git init -q work && cd work
git config user.email a@b && git config user.name a
cp ../answer.txt . && git add . && git commit -q -m one
echo more >> answer.txt && git commit -q -a -m two && git checkout -q -b side HEAD~1 && git gc -q
git clone -q . ../copy
[ "$(git -C ../copy show HEAD:answer.txt)" = 42 ] && echo 1 > /logs/verifier/reward.txt
"""
SQLITE = """#!/bin/bash
set -e
sqlite3 made.db "PRAGMA journal_mode = WAL; CREATE TABLE t (n INTEGER); INSERT INTO t VALUES ($(cat answer.txt));" > /dev/null
[ "$(sqlite3 made.db 'SELECT sum(n) FROM t')" = 42 ] && echo 1 > /logs/verifier/reward.txt
"""
SERVER = """
import subprocess, sys, time, urllib.request

def verify(workspace):
    server = subprocess.Popen([sys.executable, "-m", "http.server", "8000", "--bind", "127.0.0.1"], cwd=workspace)
    for _ in range(2000):
        try:
            with urllib.request.urlopen("http://localhost:8000/answer.txt") as reply:
                return float(reply.read().strip() == b"42")
        except urllib.error.HTTPError:
            return 0
        except OSError:
            assert server.poll() is None
            time.sleep(0.01)
"""
PROCESSES = """
import multiprocessing
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

def read(path):
    return int(Path(path).read_text())

def verify(workspace):
    path = str(workspace / "answer.txt")
    found = []
    for method in ("fork", "spawn", "forkserver"):
        context = multiprocessing.get_context(method)
        with ProcessPoolExecutor(2, mp_context=context) as pool:
            found += pool.map(read, [path] * 4)
    with multiprocessing.Pool(2) as pool, ThreadPoolExecutor(8) as threads:
        found += pool.map(read, [path] * 4)
        found += threads.map(read, [path] * 4)
    shared, queue, lock = multiprocessing.Value("i", 0), multiprocessing.Queue(), multiprocessing.Lock()
    with lock:
        shared.value = 42
    queue.put(shared.value)
    found.append(queue.get(timeout=30))
    return float(set(found) == {42})
"""
SIGNALS = """
import os, resource, signal, tempfile, threading

def verify(workspace):
    rung = []
    signal.signal(signal.SIGALRM, lambda *_: rung.append(1))
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    signal.pause()
    child = os.fork()
    if child == 0:
        os.kill(os.getpid(), signal.SIGTERM)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGTERM
    with tempfile.NamedTemporaryFile() as made:
        made.write(b"x" * 1_000_000)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    thread = threading.Thread(target=rung.append, args=(2,))
    thread.start()
    thread.join()
    os.symlink("answer.txt", workspace / "link")
    os.rename(workspace / "link", workspace / "moved")
    os.chmod(workspace / "answer.txt", 0o600)
    return float(rung == [1, 2] and (workspace / "moved").read_text() == "42\\n")
"""
STREAMS = """#!/bin/bash
set -eo pipefail
echo to-stderr > /dev/stderr
echo to-stdout | tee /dev/stdout > /dev/null
diff <(sort answer.txt) <(echo 42)
mkfifo /tmp/pipe && (cat answer.txt > /tmp/pipe &) && [ "$(cat /tmp/pipe)" = 42 ]
timeout 20 bash -c 'sleep 0.01'
[ "$(seq 1 100000 | head -n 42 | tail -n 1)" = 42 ] || true
id -un > /dev/null; hostname > /dev/null; date > /dev/null; [ -n "$HOME" ] && touch "$HOME/made"
echo 1 > /logs/verifier/reward.txt
"""
ANSWER = {"answer.txt": "42\n"}

GRADERS = [
    Grader(
        "pytest and plugins", {"verifier.py": PLUGINS, "test_answer.py": TESTS, "helps.py": HELPS}, ANSWER, "pytest"
    ),
    Grader("numpy", {"verifier.py": NUMPY}, ANSWER, "numpy"),
    Grader("a C compiler", {"test.sh": COMPILES}, {"program.c": PROGRAM}, program="gcc"),
    Grader("git", {"test.sh": GIT}, ANSWER, program="git"),
    Grader("sqlite3", {"test.sh": SQLITE}, ANSWER, program="sqlite3"),
    Grader("a server on loopback", {"verifier.py": SERVER}, ANSWER),
    Grader("multiprocessing", {"verifier.py": PROCESSES}, ANSWER),
    Grader("signals, timers, files", {"verifier.py": SIGNALS}, ANSWER),
    Grader("shell streams", {"test.sh": STREAMS}, ANSWER),
]


@pytest.mark.parametrize("grader", GRADERS, ids=lambda grader: grader.name)
async def test_an_honest_grader_works(arena: Arena, grader: Grader) -> None:
    arena.needs(grader.program)
    if arena.spare and arena.mode == "shared" and grader.base == "numpy":
        pytest.skip("a large filesystem; the one with pytest stands for it, and ASSAY_SOAK=1 has both")
    verdicts = await _graded(arena, grader)
    assert verdicts == (1.0, "graded"), verdicts


MANY = 50_000 if SOAK else 5_000
LARGE = 2 << 30 if SOAK else 64 << 20
COUNTS = f"""
import os

def verify(workspace):
    found = sum(len(names) for _, _, names in os.walk(workspace))
    assert (workspace / "7" / "7").read_text() == "7"
    (workspace / "7" / "7").write_text("changed")
    return float(found == {MANY})
"""
HASHES = f"""
import hashlib

def verify(workspace):
    digest = hashlib.sha256()
    with open(workspace / "large", "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return float((workspace / "large").stat().st_size == {LARGE} and digest.hexdigest() == (workspace / "digest").read_text())
"""


def many_files(folder: Path) -> None:
    """Files of a few bytes, a hundred to a folder."""
    for number in range(MANY // 100):
        (folder / str(number)).mkdir()
        for name in range(100):
            (folder / str(number) / str(name)).write_text(str(name))


def large_file(folder: Path) -> None:
    """One file, half of it random."""
    digest = hashlib.sha256()
    with (folder / "large").open("wb") as file:
        for number in range(LARGE >> 20):
            block = os.urandom(1 << 20) if number % 2 else bytes(1 << 20)
            digest.update(block)
            file.write(block)
    (folder / "digest").write_text(digest.hexdigest())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "verifier", "workspace"),
    [(f"{MANY:,} files", COUNTS, many_files), (f"{LARGE >> 20:,} MiB", HASHES, large_file)],
)
async def test_a_large_workspace(arena: Arena, name: str, verifier: str, workspace: Callable[[Path], None]) -> None:
    if arena.spare and arena.mode == "shared" and arena.provider != ARENAS[0][0]:
        pytest.skip("a whole filesystem is copied by the same code for every provider; ASSAY_SOAK=1 has both")
    assert await _graded(arena, Grader(name, {"verifier.py": verifier}, workspace, timeout_s=600)) == (1.0, "graded")


async def _graded(arena: Arena, grader: Grader) -> tuple[float | None, object]:
    """Its reward; what it says of an empty workspace must be less, or nothing."""
    task = Attack(0, grader.name, grader.tests, grader.workspace, {}, timeout_s=grader.timeout_s, base=grader.base)
    folder = arena.task(task)
    verdict = await arena.graded(task, folder, arena.lay("workspace", grader.workspace, grader.base))
    nothing = await arena.graded(task, folder, arena.lay("empty", {}, grader.base))
    assert nothing.reward in (None, 0.0), nothing
    return verdict.reward, verdict.status if verdict.reward == 1.0 else verdict

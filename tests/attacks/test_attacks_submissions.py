"""The safe way: what cannot be stopped where the submission shares the grader's process or sandbox is stopped where the
verifier has it run by `run_submission` and `call_function`, in a sandbox of its own."""

from __future__ import annotations

from dataclasses import replace

import pytest

import assay.verifiers
from attacks.harness import Arena, Attack
from attacks.test_attacks_channel import CALLS_OF_A_DEBUGGER, DAEMON, LINES, PARENT, REOPENS, WRITES
from attacks.test_attacks_host import CALLS_OF_THE_KERNEL, LEFT_BEHIND, SWITCHES
from attacks.test_attacks_process import DETECTS, EQUAL, NOT_A_NUMBER, PICKLE, SEND, SUBCLASSES
from attacks.test_attacks_secrets import ENVIRON, ENVIRONMENT, MEMORY, READS_HIDDEN, SAYS, SECRET
from attacks.verifiers import DOUBLES, MULTIPLIES, solution, solve

pytestmark = pytest.mark.skipif(
    not hasattr(assay.verifiers, "run_submission"), reason="assay.verifiers has no run_submission yet"
)

RUNS_APART = {
    "verifier.py": """
import random, sys
from assay.verifiers import run_submission

def verify(workspace):
    a, b = random.randrange(10**6), random.randrange(10**6)
    done = run_submission(["python3", "solve.py"], workspace=workspace, stdin=f"{a} {b}\\n".encode(), timeout_s=8)
    sys.stderr.write(done.stderr[-1500:].decode("utf-8", "replace"))
    assert done.isolation == "sandbox", done
    return done.stdout.strip() == str(a * b).encode()
"""
}
CALLS_APART = {
    "verifier.py": """
from assay.verifiers import SubmissionFailed, call_function

def verify(workspace):
    try:
        return float(call_function("solution", "double", [21], workspace=workspace) == 42)
    except SubmissionFailed:
        return 0
"""
}
ASKS_APART = {
    "verifier.py": """
import sys
from assay.verifiers import run_submission

def verify(workspace):
    expected = open("/tests/expected.txt").read().strip()
    done = run_submission(["python3", "solve.py"], workspace=workspace, stdin=b"\\n", timeout_s=8)
    sys.stderr.write(done.stderr[-1500:].decode("utf-8", "replace"))
    return done.stdout.decode().strip() == expected
""",
    "expected.txt": f"{SECRET}\n",
}
LOOKS = """
answer = "nothing"
for path in ("/tests/expected.txt", "/proc/1/root/tests/expected.txt", "/tests/.ng/manifest.json", "/run/assay/s"):
    if os.path.exists(path):
        breach("sees " + path)
        answer = quietly(lambda: open(path).read().strip()) or answer
for name in os.listdir("/proc"):
    if name.isdigit() and b"run_verifier" in (quietly(lambda: open(f"/proc/{name}/cmdline", "rb").read()) or b""):
        breach("sees the grader")
"""
ANSWERS = "print('-1')"
STOPS = "quietly(lambda: os.kill(-1, 19))\n" + "os.kill(os.getppid() or 1, 19)"
LEAVES = "import time\n" + LEFT_BEHIND["setsid"]


def _asked(body: str) -> dict[str, str]:
    return {"solve.py": solve(body)["solve.py"].replace(ANSWERS, "print(answer)")}


ATTACKS = [
    Attack(1, "os._exit at import, apart", CALLS_APART, DOUBLES, solution("os._exit(0)")),
    Attack(2, "os._exit in the call, apart", CALLS_APART, DOUBLES, solution("", "os._exit(0)")),
    Attack(
        3,
        "sys.exit and atexit, apart",
        CALLS_APART,
        DOUBLES,
        solution("import atexit\natexit.register(os._exit, 0)\nsys.exit(0)"),
    ),
    Attack(7, "the verdict sent, apart", CALLS_APART, DOUBLES, solution(SEND + "os._exit(0)")),
    Attack(8, "always equal, apart", CALLS_APART, DOUBLES, solution(EQUAL, "Equal(-1)")),
    Attack(8, "NaN, apart", CALLS_APART, DOUBLES, solution("", NOT_A_NUMBER)),
    Attack(9, "subclasses, apart", CALLS_APART, DOUBLES, solution(SUBCLASSES, "Text('')")),
    Attack(
        10,
        "the caller's frames, apart",
        CALLS_APART,
        DOUBLES,
        solution("", "sys._getframe(1).f_locals.get('expected', 0)"),
    ),
    Attack(11, "a pickle, apart", CALLS_APART, DOUBLES, solution(PICKLE)),
    Attack(
        12,
        "known answers, apart",
        RUNS_APART,
        MULTIPLIES,
        solve(DETECTS.replace('f"/proc/{os.getppid()}/cmdline"', '"/proc/self/cmdline"')),
        tries=True,
    ),
    Attack(22, "reward files, apart", RUNS_APART, MULTIPLIES, solve(f"quietly(lambda: exec({WRITES!r}))"), tries=True),
    Attack(23, "a daemon, apart", RUNS_APART, MULTIPLIES, solve(DAEMON), tries=True),
    Attack(26, "verdict lines, apart", RUNS_APART, MULTIPLIES, solve(LINES), tries=True),
    Attack(
        27,
        "descriptors, apart",
        RUNS_APART,
        MULTIPLIES,
        solve(f"quietly(lambda: exec({PARENT + REOPENS!r}))"),
        tries=True,
    ),
    Attack(27, "a debugger, apart", RUNS_APART, MULTIPLIES, solve(PARENT + CALLS_OF_A_DEBUGGER), tries=True),
    Attack(
        27,
        "the grader's memory, apart",
        ASKS_APART,
        SAYS,
        _asked(MEMORY.replace('breach("opened the grader\'s memory")', "pass")),
        tries=True,
    ),
    Attack(28, "signals, apart", RUNS_APART, MULTIPLIES, solve(STOPS, early=True)),
    Attack(33, "hidden files, apart", ASKS_APART, SAYS, _asked(LOOKS), tries=True),
    Attack(33, "other tasks, apart", RUNS_APART, MULTIPLIES, solve(READS_HIDDEN), tries=True),
    Attack(35, "the environment, apart", ASKS_APART, SAYS, _asked(ENVIRON), toml=ENVIRONMENT, tries=True),
    Attack(38, "a process left behind, apart", RUNS_APART, MULTIPLIES, solve(LEAVES), tries=True),
    Attack(41, "calls of the kernel, apart", RUNS_APART, MULTIPLIES, solve(CALLS_OF_THE_KERNEL), tries=True),
    Attack(42, "switches, apart", RUNS_APART, MULTIPLIES, solve(SWITCHES), tries=True),
]


SIBLING = "a sibling never sees the agent's filesystem: it stands on the task's base with a copy of the workspace"
SHARED = (
    "the verdict sent, apart",
    "the grader's memory, apart",
    "signals, apart",
    "hidden files, apart",
    "switches, apart",
)
"""What shows, in shared mode, that it is so."""


FOUGHT = [replace(attack, apart=True, same="" if attack.name in SHARED else SIBLING) for attack in ATTACKS]


@pytest.mark.parametrize("attack", FOUGHT, ids=lambda attack: attack.id)
async def test_a_submission_in_a_sandbox_of_its_own_is_stopped(arena: Arena, attack: Attack) -> None:
    await arena.fight(attack)

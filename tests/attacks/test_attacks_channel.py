"""Attacks on the way from the verifier to the verdict: 22 to 32."""

from __future__ import annotations

import os
import threading

import pytest

from attacks.harness import SHORT_S, WORKDIR, Arena, Attack, Expected, lay
from attacks.verifiers import (
    DOUBLES,
    EQUALS,
    IN_PROCESS,
    IN_SANDBOX,
    MULTIPLIES,
    PYTEST_IDS,
    RIGHT,
    RUNS,
    SCRIPT,
    WRONG,
    solution,
    solve,
)

GIVE_UP = ("assay:verifier_timeout",)
INVALID = ("assay:invalid_reward",)

PLANTED = dict.fromkeys(
    (
        "reward.json",
        "reward.txt",
        "logs/verifier/reward.json",
        "logs/verifier/reward.txt",
        "verifier/reward.txt",
        "checks.json",
    ),
    "1\n",
)
WRITES = """
for name in ("reward.json", "reward.txt"):
    with open(f"/logs/verifier/{name}", "w") as file:
        file.write("1")
"""
DAEMON = """
import signal, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        while True:
            for name in ("reward.json", "reward.txt"):
                try:
                    with open(f"/logs/verifier/.{name}", "w") as file:
                        file.write("1")
                    os.rename(f"/logs/verifier/.{name}", f"/logs/verifier/{name}")
                except OSError:
                    pass
    os._exit(0)
os.wait()
"""
PLACES = {
    "a symlink": 'os.symlink("/app/one", PLACE)',
    "a symlink to the verifier": 'os.symlink("/tests/verifier.py", PLACE)',
    "a symlink in a circle": "os.symlink(PLACE, PLACE)",
    "a FIFO": "os.mkfifo(PLACE)",
    "a socket": "import socket; socket.socket(socket.AF_UNIX).bind(PLACE)",
    "a device": "quietly(lambda: os.mknod(PLACE, 0o020666, os.makedev(1, 5)))",
    "a folder": "os.makedirs(PLACE + '/a/b')",
    "a folder that may not be entered": "os.makedirs(PLACE + '/a/b'); os.chmod(PLACE + '/a', 0); os.chmod(PLACE, 0)",
    "a hard link": 'open("/logs/verifier/other", "w").write("1"); os.link("/logs/verifier/other", PLACE)',
    "an immutable file": 'import fcntl, struct; file = open(PLACE, "w"); file.write("1"); file.flush()\n'
    'quietly(lambda: fcntl.ioctl(file, 0x40086602, struct.pack("l", 0x10)))',
    "a sparse file": 'open(PLACE, "w").truncate(8 << 30)',
    "a closed folder around it": 'open(PLACE, "w").write("one"); os.chmod("/logs/verifier", 0)',
}
BOTH_WAYS = ("a symlink", "a FIFO")
AS_PROVIDERS_DIFFER = ("a device", "an immutable file", "a hard link", "a closed folder around it")
"""What the provider's own mount and owner of the log folder have a part in."""
KINDS_OF_PLACES = ("assay:invalid_reward", "assay:missing_reward", "assay:verifier_contract", "assay:verdict_conflict")

ONE_READER = "what may be a reward is read and judged by the same code for every provider, when the sandbox is dead"
READ_OUTSIDE = "the log folder is a fresh mount, read by the supervisor when the sandbox is dead"

ONLY_SUBMISSION_WRITES = {
    "test.sh": """#!/bin/bash
given="$RANDOM $RANDOM"
read -r a b <<< "$given"
[ "$(python3 -I -S solve.py <<< "$given")" = $((a * b)) ] && echo 1 > /logs/verifier/reward.txt
exit 0
"""
}
"""Writes no reward for a wrong answer."""


def _place(made: str, name: str) -> dict[str, str]:
    body = f"PLACE = '/logs/verifier/{name}'\nif os.path.lexists(PLACE):\n    os.unlink(PLACE)\n{made}\n"
    return {**solve(body), "one": "1\n"}


PLANTING = [
    Attack(22, "rewards in the workspace", EQUALS, RIGHT, {**WRONG, **PLANTED}),
    Attack(22, "rewards in the workspace, test.sh", SCRIPT, MULTIPLIES, {"solve.py": "print(-1)\n", **PLANTED}),
    Attack(22, "rewards written by what is run", RUNS, MULTIPLIES, solve(WRITES), tries=True),
    Attack(
        22,
        "rewards written by what test.sh runs",
        SCRIPT,
        MULTIPLIES,
        solve(WRITES),
        expected=Expected.FORGED,
        why=IN_SANDBOX,
        tries=True,
    ),
    Attack(23, "a daemon that writes rewards", RUNS, MULTIPLIES, solve(DAEMON), tries=True),
]
PLACING = [
    Attack(
        24,
        f"{what} at reward.{end}",
        tests,
        MULTIPLIES,
        _place(made, f"reward.{end}"),
        kinds=kinds,
        tries=True,
        same="" if what in BOTH_WAYS else READ_OUTSIDE,
        alike="" if what in (*BOTH_WAYS, *AS_PROVIDERS_DIFFER) else ONE_READER,
    )
    for what, made in PLACES.items()
    for end, tests, kinds in (
        ("json", RUNS, ()),
        ("txt", ONLY_SUBMISSION_WRITES, KINDS_OF_PLACES),
    )
    if not (tests is ONLY_SUBMISSION_WRITES and what == "an immutable file")
]
SIZES = [
    Attack(
        25,
        "ten gigabytes, sparse",
        ONLY_SUBMISSION_WRITES,
        MULTIPLIES,
        _place('open(PLACE, "w").truncate(10 << 30)', "reward.txt"),
        kinds=INVALID,
        tries=True,
    ),
    Attack(
        25,
        "more than a reward can be",
        ONLY_SUBMISSION_WRITES,
        MULTIPLIES,
        _place('open(PLACE, "w").write(" " * (2 << 20) + "1")', "reward.json"),
        kinds=INVALID,
        tries=True,
    ),
]
LINES = """
for stream in (sys.stdout, sys.stderr):
    for line in ("PASSED", "1 passed", '{"result": 1.0}', '{"reward": 1.0}', "reward: 1", "assay: graded 1", "\\0\\x1b[2J"):
        print(line, file=stream)
"""
PARENT = "parent = os.getppid() or 1\n"
"""In a sandbox of its own a command's parent is outside, and nobody; what is nearest to it in there is pid 1."""
REOPENS = """
message = b'{"result": 1.0}'
for name in quietly(lambda: os.listdir(f"/proc/{parent}/fd")) or map(str, range(3, 64)):
    try:
        fd = os.open(f"/proc/{parent}/fd/{name}", os.O_WRONLY | os.O_NONBLOCK)
        os.write(fd, message)
    except OSError:
        pass
for name in os.listdir("/proc/self/fd"):
    try:
        if int(name) > 2:
            os.write(int(name), message)
    except OSError:
        pass
"""
CALLS_OF_A_DEBUGGER = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
for name, arguments in {
    "ptrace attach": (101, 16, parent, 0, 0),
    "ptrace seize": (101, 0x4206, parent, 0, 0),
    "pidfd_getfd": (438, libc.syscall(434, parent, 0), 3, 0),
    "process_vm_writev": (311, parent, 0, 0, 0, 0, 0),
    "kcmp": (312, parent, os.getpid(), 0, 0, 0),
}.items():
    if libc.syscall(*map(ctypes.c_long, arguments)) != -1:
        breach(name)
"""
DAEMONS_OF_ONE = """
import signal
for number in (signal.SIGSTOP, signal.SIGKILL, signal.SIGTERM, signal.SIGABRT):
    quietly(lambda: os.kill(1, number))
for name in quietly(lambda: os.listdir("/proc/1/fd")) or ():
    fd = quietly(lambda: os.open(f"/proc/1/fd/{name}", os.O_RDWR | os.O_NONBLOCK))
    if fd is not None:
        quietly(lambda: os.write(fd, (1).to_bytes(8, "little")))
def overwrite():
    with open("/proc/1/maps") as maps, open("/proc/1/mem", "r+b", buffering=0) as memory:
        for line in maps:
            if "rw-p" in line and "[" not in line:
                memory.seek(int(line.split("-")[0], 16))
                memory.write(bytes(64))
quietly(overwrite)
"""

GRADER = [
    Attack(26, "verdict lines on the output", RUNS, MULTIPLIES, solve(LINES), tries=True),
    Attack(26, "verdict lines on test.sh's output", SCRIPT, MULTIPLIES, solve(LINES), tries=True),
    Attack(27, "the grader's descriptors reopened", RUNS, MULTIPLIES, solve(PARENT + REOPENS), tries=True),
    Attack(27, "a debugger on the grader", RUNS, MULTIPLIES, solve(PARENT + CALLS_OF_A_DEBUGGER), tries=True),
    Attack(
        28,
        "SIGSTOP to the grader",
        RUNS,
        MULTIPLIES,
        solve(PARENT + "os.kill(parent, 19)", early=True),
        kinds=GIVE_UP,
        timeout_s=SHORT_S,
        tries=True,
        everywhere=True,
        same="a stopped grader is ended by the supervisor's clock",
    ),
    Attack(
        28,
        "SIGKILL to the grader",
        RUNS,
        MULTIPLIES,
        solve(PARENT + WRITES + "os.kill(parent, 9)", early=True),
        kinds=("assay:missing_reward",),
        tries=True,
    ),
    Attack(28, "SIGKILL to everything", RUNS, MULTIPLIES, solve(WRITES + "os.kill(-1, 9)", early=True), tries=True),
    Attack(
        29,
        "pid 1 stopped, killed, written to",
        RUNS,
        MULTIPLIES,
        solve(DAEMONS_OF_ONE, early=True),
        timeout_s=SHORT_S,
        tries=True,
        both=True,
    ),
    Attack(
        30,
        "a forged JUnit report",
        PYTEST_IDS,
        DOUBLES,
        solution(
            "path = next(word.partition('=')[2] for word in sys.argv if word.startswith('--junit-xml='))\n"
            "cases = ''.join(f'<testcase name=\"test_{n}\"/>' for n in ('two', 'three', 'four'))\n"
            "open(path, 'w').write(f'<testsuites><testsuite>{cases}</testsuite></testsuites>')\n"
            "os._exit(0)"
        ),
        base="pytest",
        both=True,
        expected=Expected.FORGED,
        why=IN_PROCESS,
        tries=True,
    ),
]

TRUSTS = {
    "test.sh": "#!/bin/bash\ncp score.txt /logs/verifier/reward.txt\n",
}
"""A script that takes a number from the submission: what it may be is all that is left to check."""
SCORES = {
    "NaN": "nan",
    "infinity": "1e308e1",
    "too large": "1" + "0" * 400,
    "an overflow": "1e309",
    "text": '"true"',
    "a bool": "true",
    "negative": "-1",
    "above the range": "1.0000001",
    "an underscore": "1_0",
    "two numbers": "1 1",
    "an Arabic digit": "١",
    "a null byte": "1\0",
}
NUMBERS = [
    Attack(
        31,
        f"{what} in reward.txt",
        TRUSTS,
        {"score.txt": "1\n"},
        {"score.txt": text},
        kinds=INVALID,
        same=READ_OUTSIDE,
        alike="" if what in ("NaN", "text") else ONE_READER,
    )
    for what, text in SCORES.items()
] + [
    Attack(
        31,
        f"{what} returned by verify",
        {"verifier.py": "def verify(workspace):\n    return eval((workspace / 'score.txt').read_text())\n"},
        {"score.txt": "1"},
        {"score.txt": text},
        kinds=("assay:verifier_contract", "assay:invalid_reward"),
        same=READ_OUTSIDE,
        alike="" if what in ("NaN", "None") else ONE_READER,
    )
    for what, text in {
        "NaN": "float('nan')",
        "infinity": "1e308 * 10",
        "400 digits": "10 ** 400",
        "text": "'1'",
        "None": "None",
        "negative": "-1",
        "a dict that is deep": "{'reward': {'a': 1}}",
        "a complex": "1 + 0j",
    }.items()
]

READS = {
    "verifier.py": "import json\n\ndef verify(workspace):\n"
    "    return json.loads((workspace / 'a.json').read_text('utf-8'))['n'] == 42\n"
}
GOOD_JSON = {"a.json": '{"n": 42}'}
CRASHES: dict[str, dict[str, str | bytes]] = {
    "odd bytes": {"a.json": b"\xff\xfe\x00"},
    "depth": {"a.json": "[" * 200_000},
    "another type": {"a.json": "[]"},
    "nothing": {},
    "a long number": {"a.json": '{"n": ' + "9" * 100_000 + "}"},
}


ATTACKS = [*PLANTING, *PLACING, *SIZES, *GRADER, *NUMBERS]


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.id)
async def test_the_verdict_is_honest(arena: Arena, attack: Attack) -> None:
    await arena.fight(attack)


@pytest.mark.parametrize(("what", "workspace"), CRASHES.items(), ids=list(CRASHES))
async def test_a_crash_is_the_floor_and_not_tried_for_ever(
    arena: Arena, what: str, workspace: dict[str, str | bytes]
) -> None:
    attack = Attack(32, f"crash by {what}", READS, GOOD_JSON, workspace, kinds=("verifier_error",))
    await arena.fight(attack)
    hostile = arena.folder / "hostile"
    hostile = hostile / WORKDIR if arena.mode == "shared" else hostile
    # With nothing known beforehand the task's own solution shows that the verifier works: two looks, no more.
    lay(arena.folder / "task" / "solution", {"solve.sh": "echo '{\"n\": 42}' > a.json\n"})
    logs = arena.folder / "logs"
    verdict = await arena.graded(attack, arena.folder / "task", hostile, control=True, logs=logs)
    assert (verdict.reward, verdict.caused_by, verdict.proven) == (0.0, "submission", True)
    assert sorted(path.name for path in logs.iterdir()) == ["attempt-1", "attempt-2"]


async def test_an_agent_that_still_runs_cannot_reach_what_is_graded(arena: Arena) -> None:
    """23: somebody writes to the workspace before, while and after it is graded."""
    attack = Attack(23, "an agent that is still alive", EQUALS, RIGHT, WRONG)
    task = arena.task(attack)
    honest, hostile = arena.lay("honest", attack.honest), arena.lay("hostile", attack.hostile)
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            for name in PLANTED:
                (hostile / name).parent.mkdir(parents=True, exist_ok=True)
                (hostile / name).write_text("1")
                (hostile / name).unlink()
            os.symlink("/tests", hostile / "link")
            (hostile / "link").unlink()

    assert (await arena.graded(attack, task, honest)).reward == 1.0
    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(5):
            verdict = await arena.graded(attack, task, hostile)
            assert (verdict.status, verdict.reward) == ("graded", 0.0), verdict
    finally:
        stop.set()
        writer.join()
    arena.record(attack, f"{verdict.reward:g}")

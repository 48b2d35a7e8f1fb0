"""Attacks on what only the grader may know: 33 to 35, and the grader's memory and environment (27)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from attacks.harness import Arena, Attack, Expected, lay
from attacks.verifiers import EQUALS, MULTIPLIES, RUNS, WRONG, solve

SECRET = "assay-attack-secret-7f3a"
SHARED_SANDBOX = "a program that the verifier itself starts shares its sandbox and its uid: use run_submission"

EXPECTS = {
    "verifier.py": """
from assay.verifiers import read_text

def verify(workspace):
    return read_text(workspace, "answer.txt") == open("/tests/expected.txt").read().strip()
""",
    "expected.txt": f"{SECRET}\n",
}
"""Compares with a hidden file, through the helper."""
OPENS = {
    "verifier.py": """
def verify(workspace):
    return (workspace / "answer.txt").read_text() == open("/tests/expected.txt").read()
""",
    "expected.txt": f"{SECRET}\n",
}
"""Compares with a hidden file, and opens whatever the workspace has at a name."""
KNOWS = {"answer.txt": f"{SECRET}\n"}

ASKS = {
    "verifier.py": """
import subprocess, sys

def verify(workspace):
    expected = open("/tests/expected.txt").read().strip()
    done = subprocess.run([sys.executable, "-I", "-S", "solve.py"], cwd=workspace, stdout=subprocess.PIPE, input=b"\\n", env={})
    return done.stdout.decode().strip() == expected
""",
    "expected.txt": f"{SECRET}\n",
}
"""Runs the submission where the expected output lies."""
SAYS = {"solve.py": f"print({SECRET!r})\n"}


def _link(target: str, *through: tuple[str, str]) -> dict[str, object]:
    def made(folder: Path) -> None:
        for name, to in through:
            (folder / name).symlink_to(to)
        (folder / "answer.txt").symlink_to(target)

    return {"hostile": made}


IN_THE_WORKSPACE = "a link of the workspace is followed, or not, by the verifier, whatever the workspace lies in"
LINKS_TOO = ("an absolute link", "a link through /proc")
"""Shown in shared mode, too."""
LINKS = {
    "an absolute link": _link("/tests/expected.txt"),
    "a relative link": _link("../tests/expected.txt"),
    "a link through a linked folder": _link("there/tests/expected.txt", ("there", "/")),
    "a link through /proc": _link("/proc/self/root/tests/expected.txt"),
    "a link through the current folder": _link("/proc/self/cwd/../tests/expected.txt"),
    "a chain of links": _link("one", ("one", "two"), ("two", "/tests/expected.txt")),
}

READS_HIDDEN = """
for path in ("/solution", "/solution/solve.sh", "/tests/../solution", "/proc/1/root/solution", "/logs/agent"):
    if os.path.exists(path):
        breach("sees " + path)
def walk(top, depth):
    try:
        names = os.listdir(top)
    except OSError:
        return
    for name in names:
        path = os.path.join(top, name)
        if os.path.isdir(path) and not os.path.islink(path):
            if depth:
                walk(path, depth - 1)
        elif os.path.isfile(path):
            try:
                text = open(path, "rb").read(1 << 16)
            except OSError:
                continue
            if b"assay-attack-" b"other" in text:
                breach("reads " + path)
for top in "/ /tmp /var/tmp /dev/shm /root /home /mnt /srv /opt /run /var /newroot /oldroot".split():
    walk(top, 3 if top != "/" else 0)
for line in open("/proc/self/mountinfo"):
    if "assay-tests" in line.split()[4]:
        breach("sees the host path " + line.split()[4])
"""
SEES_OTHERS = """
for name in os.listdir("/proc"):
    if name.isdigit():
        line = quietly(lambda: open(f"/proc/{name}/cmdline", "rb").read()) or b""
        if b"assay-attack-" b"secret" in line or b"pytest" in line:
            breach(f"process {name}: {line[:300]!r}")
"""
MEMORY = """
import re
answer = "nothing"
parent = os.getppid() or 1
def search():
    with open(f"/proc/{parent}/maps") as maps, open(f"/proc/{parent}/mem", "rb", buffering=0) as memory:
        breach("opened the grader's memory")
        for line in maps:
            first, last = (int(word, 16) for word in line.split()[0].split("-"))
            if "rw-p" in line and last - first < 1 << 26:
                memory.seek(first)
                held = quietly(lambda: memory.read(last - first)) or b""
                for found in re.findall(rb"assay-attack-" + rb"secret-[0-9a-f]+", held):
                    return found.decode()
answer = quietly(search) or answer
"""
ENVIRON = """
answer = "nothing"
def search():
    for word in open(f"/proc/{os.getppid() or 1}/environ", "rb").read().split(b"\\0"):
        if word.startswith(b"EXPECTED="):
            return word[9:].decode()
answer = quietly(search) or answer
"""
FOLDER = "answer = open('/tests/expected.txt').read().strip()"
ENVIRONMENT = f'[verifier.env]\nEXPECTED = "{SECRET}"\n'


def _answers(body: str) -> dict[str, str]:
    """Prints what it found."""
    return {"solve.py": solve(body)["solve.py"].replace("print('-1')", "print(answer)")}


ATTACKS = [
    Attack(33, "the solution, other tasks, other rollouts", RUNS, MULTIPLIES, solve(READS_HIDDEN), tries=True),
    Attack(35, "command lines", RUNS, MULTIPLIES, solve(SEES_OTHERS), tries=True, toml=ENVIRONMENT),
    *(
        Attack(
            34,
            f"{name}, through the helper",
            EXPECTS,
            KNOWS,
            link["hostile"],  # type: ignore[arg-type] # a function
            same="" if name in LINKS_TOO else IN_THE_WORKSPACE,
        )
        for name, link in LINKS.items()
    ),
    *(
        Attack(
            34,
            f"{name}, opened by name",
            OPENS,
            KNOWS,
            link["hostile"],  # type: ignore[arg-type] # a function
            expected=Expected.FORGED,
            why="a verifier that opens a path of the workspace follows its links: use read_text",
            same="" if name in LINKS_TOO else IN_THE_WORKSPACE,
        )
        for name, link in LINKS.items()
    ),
    Attack(27, "the grader's memory", ASKS, SAYS, _answers(MEMORY), tries=True),
    Attack(35, "the grader's environment", ASKS, SAYS, _answers(ENVIRON), toml=ENVIRONMENT, tries=True),
    Attack(
        33,
        "the tests folder, where the submission is run",
        ASKS,
        SAYS,
        _answers(FOLDER),
        expected=Expected.FORGED,
        why=SHARED_SANDBOX,
        tries=True,
    ),
]


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.id)
async def test_the_verdict_is_honest(arena: Arena, attack: Attack) -> None:
    other = arena.folder / "other-task" / "tests"
    lay(other, {"expected.txt": "assay-attack-other\n"})
    await arena.fight(attack)


async def test_a_hard_link_to_a_hidden_file_is_a_copy(arena: Arena) -> None:
    """34: the agent links a file of its own to itself and out; what the grader changes reaches neither."""
    outside = arena.folder / "outside.txt"
    outside.write_text("41\n")
    writes = EQUALS["verifier.py"].replace("    return", "    (workspace / 'answer.txt').write_text('42')\n    return")

    def linked(folder: Path) -> None:
        os.link(outside, folder / "answer.txt")

    attack = Attack(34, "a hard link out of the workspace", {"verifier.py": writes}, WRONG, linked, reward=1.0)
    verdict = await arena.fight(attack)
    assert verdict.reward == 1.0
    assert outside.read_text() == "41\n"

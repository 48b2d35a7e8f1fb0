"""Attacks on what a verifier is started with and finds its modules and programs by: 13 to 21."""

from __future__ import annotations

from pathlib import Path

import pytest

from attacks.harness import Arena, Attack, Expected
from attacks.verifiers import CALLS, DOUBLES, EQUALS, MULTIPLIES, PYTEST_IDS, RIGHT, RUNS, SCRIPT, WRONG

TAKES_OVER = """
import sys
sys.stderr.write("BREACH: a planted module ran\\n")
open("/logs/verifier/reward.json", "w").write("1")
"""
PROGRAM = "#!/bin/sh\necho 'BREACH: a planted program ran' >&2\necho 1 > /logs/verifier/reward.json\n"

READS_WITH_PYTEST = {
    "test.sh": """#!/bin/bash
export WORKSPACE=$PWD
python3 -I -c 'import pytest' || exit 2
cd /tests && python3 -I -m pytest -q -c /dev/null --rootdir /tests -p no:cacheprovider test_answer.py
case $? in
  0) echo 1 > /logs/verifier/reward.txt ;;
  1) echo 0 > /logs/verifier/reward.txt ;;
  *) exit 2 ;;
esac
""",
    "test_answer.py": """
import os

def test_answer():
    with open(os.path.join(os.environ["WORKSPACE"], "answer.txt")) as file:
        assert file.read().strip() == "42"
""",
}
"""pytest on data, from the tests folder, with a configuration of nobody's: the way that the examples show."""
NAIVE_PYTEST = {
    **READS_WITH_PYTEST,
    "test.sh": "#!/bin/bash\nexport WORKSPACE=$PWD\npython3 -m pytest -q -p no:cacheprovider /tests/test_answer.py\n"
    "[ $? = 0 ] && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt\n",
}
"""pytest started in the workspace, which `python3 -m` puts on the path."""
CONFTEST = "import os\nopen('/logs/verifier/reward.json', 'w').write('1')\nprint('BREACH: conftest ran')\nos._exit(0)\n"
PYTEST_FILES = {
    "conftest.py": CONFTEST,
    "pytest.ini": "[pytest]\naddopts = -p plugin_of_mine --collect-only\n",
    "pyproject.toml": "[tool.pytest.ini_options]\naddopts = '--collect-only -p plugin_of_mine'\n",
    "tox.ini": "[pytest]\naddopts = --collect-only\n",
    "setup.cfg": "[tool:pytest]\naddopts = --collect-only\n",
    "plugin_of_mine.py": CONFTEST,
    "tests/conftest.py": CONFTEST,
}
SHADOWS = {
    f"{name}.py": TAKES_OVER
    for name in ("json", "os", "random", "subprocess", "pytest", "typing", "shutil", "sitecustomize", "usercustomize")
}
PACKAGES = {
    f"{name}/__init__.py": TAKES_OVER for name in ("assay", "assay/verifiers", "nemo_gym", "nemo_gym/verifiers")
}
HOOKS = {
    **{f"{folder}{name}.py": TAKES_OVER for folder in ("", "lib/") for name in ("sitecustomize", "usercustomize")},
    "start.pth": "import sitecustomize\n",
    "python.pth": "/app/lib\n",
    "pyvenv.cfg": "home = /app\ninclude-system-site-packages = false\n",
    "python3._pth": "/app/lib\n",
    "startup.py": TAKES_OVER,
    ".local/lib/python3.11/site-packages/usercustomize.py": TAKES_OVER,
}
PROGRAMS = {
    f"{folder}{name}": PROGRAM
    for folder in ("", "bin/", ".venv/bin/", "usr/bin/")
    for name in ("python3", "python", "bash", "sh", "curl", "git", "pytest", "cat", "[")
}
SHELL_FILES = dict.fromkeys((".bashrc", ".profile", ".bash_profile", ".bash_env", "evil.sh"), PROGRAM)
SETTINGS = {
    "pip.conf": "[global]\nindex-url = http://127.0.0.1:9/\n",
    ".pip/pip.conf": "[global]\nindex-url = http://127.0.0.1:9/\n",
    ".config/pip/pip.conf": "[global]\nindex-url = http://127.0.0.1:9/\n",
    ".npmrc": "registry=http://127.0.0.1:9/\n",
    ".netrc": "machine localhost login a password b\n",
    ".env": "http_proxy=http://127.0.0.1:9/\n",
    ".gitconfig": "[core]\nfsmonitor = 'echo BREACH >&2'\n",
    ".git/config": "[core]\nfsmonitor = 'echo BREACH >&2'\n",
}
LOOKS_AT_ENVIRONMENT = {
    "test.sh": """#!/bin/bash
env | grep -i -E 'proxy|preload|PYTHON|BASH_ENV|PIP_|assay-attack|LD_' && echo 'BREACH: inherited'
python3 -c 'import sys; print("started with", sys.flags)'
[ "$(cat answer.txt)" = 42 ] && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt
"""
}
CALLERS = {
    "http_proxy": "http://127.0.0.1:9/",
    "HTTPS_PROXY": "http://127.0.0.1:9/",
    "PYTHONSTARTUP": "/app/startup.py",
    "PYTHONPATH": "/app",
    "PYTHONHOME": "/app",
    "PYTHONINSPECT": "1",
    "BASH_ENV": "/app/evil.sh",
    "ENV": "/app/evil.sh",
    "PIP_INDEX_URL": "http://127.0.0.1:9/",
    "LD_LIBRARY_PATH": "/app",
    "ASSAY_TOKEN": "assay-attack-secret",
}
BUILDS = {
    "test.sh": """#!/bin/bash
cp -r /app /tmp/build && cd /tmp/build && make -s -f /tests/Makefile product >&2
[ "$(cat product 2>/dev/null)" = 42 ] && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt
""",
    "Makefile": "product: answer.txt\n\tcp answer.txt product\n",
}
"""Builds with a Makefile of its own."""
MAKES = {
    "verifier.py": """
import subprocess

def verify(workspace):
    subprocess.run(["make", "-s", "-C", workspace, "product"], stdout=2)
    return (workspace / "product").read_text().strip() == "42"
"""
}
"""Runs the submission's own Makefile."""
MAKEFILE = "product:\n\techo 42 > product\n"


def preload(folder: Path) -> None:
    """Something that the loader would be told to load, in every place where it might look for that."""
    for name in ("evil.so", "libc.so.6", "etc/ld.so.preload", "ld.so.preload", "usr/lib/x86_64-linux-gnu/libc.so.6"):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("/app/evil.so\n")
    (folder / "answer.txt").write_text("41\n")


ATTACKS = [
    Attack(
        13,
        "conftest and configuration",
        READS_WITH_PYTEST,
        RIGHT,
        {**WRONG, **PYTEST_FILES},
        base="pytest",
        everywhere=True,
    ),
    Attack(
        13,
        "conftest and configuration beside what is imported",
        PYTEST_IDS,
        DOUBLES,
        {**PYTEST_FILES, "solution.py": "def double(n):\n    return -1\n"},
        base="pytest",
    ),
    Attack(
        14,
        "pytest settings and plugins, naive",
        NAIVE_PYTEST,
        RIGHT,
        {**WRONG, **PYTEST_FILES},
        base="pytest",
        both=True,
    ),
    Attack(
        14,
        "a pytest.py in the folder where pytest is started",
        NAIVE_PYTEST,
        RIGHT,
        {**WRONG, "pytest.py": "import sys\nsys.exit(0)\n"},
        base="pytest",
        expected=Expected.FORGED,
        why="`python3 -m` looks in the current folder first: start it with -I, from /tests",
    ),
    Attack(15, "start-up hooks", EQUALS, RIGHT, {**WRONG, **HOOKS}),
    Attack(15, "start-up hooks, where the submission is run", RUNS, MULTIPLIES, {"solve.py": "print(-1)\n", **HOOKS}),
    Attack(15, "start-up hooks, by the caller's environment", EQUALS, RIGHT, {**WRONG, **HOOKS}, environ=CALLERS),
    Attack(16, "shadow modules", EQUALS, RIGHT, {**WRONG, **SHADOWS, **PACKAGES}),
    Attack(16, "shadow modules under pytest", READS_WITH_PYTEST, RIGHT, {**WRONG, **SHADOWS}, base="pytest"),
    Attack(
        16,
        "shadow modules in tests, planted by the submission",
        CALLS,
        DOUBLES,
        {
            "solution.py": "import sys\nfor name in ('json', 'random'):\n"
            "    try:\n        open(f'/tests/{name}.py', 'w').write('')\n"
            "        print('BREACH: wrote to /tests', file=sys.stderr)\n"
            "    except OSError:\n        pass\n"
            "print('TRIED', file=sys.stderr)\ndef double(n):\n    return -1\n"
        },
        tries=True,
    ),
    Attack(17, "programs in the workspace", SCRIPT, MULTIPLIES, {"solve.py": "print(-1)\n", **PROGRAMS}),
    Attack(17, "programs and shell start-up files", EQUALS, RIGHT, {**WRONG, **PROGRAMS, **SHELL_FILES}),
    Attack(18, "an interpreter and libraries in the workspace", LOOKS_AT_ENVIRONMENT, RIGHT, {**WRONG, **PROGRAMS}),
    Attack(19, "preloaded libraries", LOOKS_AT_ENVIRONMENT, RIGHT, preload),
    Attack(
        20,
        "build files beside a build",
        BUILDS,
        RIGHT,
        {**WRONG, "Makefile": MAKEFILE, "GNUmakefile": MAKEFILE},
        program="make",
    ),
    Attack(
        20,
        "a Makefile that is run writes a reward",
        MAKES,
        {"Makefile": MAKEFILE},
        {
            "Makefile": "product:\n\techo TRIED >&2; echo 41 > product; echo 1 > /logs/verifier/reward.json; "
            "echo 1 > /logs/verifier/reward.txt\n"
        },
        tries=True,
        program="make",
    ),
    Attack(21, "package and proxy settings", LOOKS_AT_ENVIRONMENT, RIGHT, {**WRONG, **SETTINGS}),
    Attack(21, "the caller's environment", LOOKS_AT_ENVIRONMENT, RIGHT, {**WRONG, **SETTINGS}, environ=CALLERS),
]


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.id)
async def test_the_verdict_is_honest(arena: Arena, attack: Attack) -> None:
    await arena.fight(attack)

"""Verifiers and workspaces of every kind, and what `assay verify` must say of each."""

from __future__ import annotations

from dataclasses import dataclass

CONTRACT = "assay:verifier_contract"


@dataclass(frozen=True)
class Case:
    name: str
    verifier: str
    """The module's text; the task has no solution, so what is ambiguous stays without a verdict."""
    reward: float | None = None
    kind: str | None = None
    metrics: tuple[tuple[str, float], ...] = ()
    said: str = ""
    """Must occur in the reason."""
    toml: str = ""
    truncated: bool = False
    exit_code: int | None = None

    @property
    def code(self) -> int:
        if self.exit_code is not None:
            return self.exit_code
        return 0 if self.kind is None else 3


def _returns(value: str, imports: str = "") -> str:
    return f"{imports}\ndef verify(workspace):\n    return {value}\n"


RETURNS = [
    Case("number", _returns("0.75"), 0.75),
    Case("integer", _returns("1"), 1.0),
    Case("negative", _returns("-2.5"), -2.5),
    Case("bool", _returns("True"), 1.0),
    Case("decimal", _returns('Decimal("0.125")', "from decimal import Decimal"), 0.125),
    Case("fraction", _returns("Fraction(1, 4)", "from fractions import Fraction"), 0.25),
    Case("dict", _returns('{"reward": 0.5, "speed": 3}'), 0.5, metrics=(("speed", 3.0),)),
    Case("dict with one key", _returns('{"accuracy": 0.9}'), 0.9),
    Case("None", _returns("None"), kind=CONTRACT),
    Case("nan", _returns('float("nan")'), kind=CONTRACT),
    Case("inf", _returns('float("inf")'), kind=CONTRACT),
    Case("text", _returns('"1.0"'), kind=CONTRACT),
    Case("bytes", _returns('b"1.5"'), kind=CONTRACT),
    Case("complex", _returns("1 + 0j"), kind=CONTRACT),
    Case("400 digits", _returns("10 ** 399"), kind=CONTRACT),
    Case("empty dict", _returns("{}"), kind=CONTRACT),
    Case("nested dict", _returns('{"reward": {"a": 1}}'), kind=CONTRACT),
    Case("dict without reward", _returns('{"a": 1, "b": 2}'), kind="assay:reward_key_missing", said="reward_key"),
]

SIGNATURES = [
    Case("async", "async def verify(workspace):\n    return 1\n", 1.0),
    Case("awaits", "import asyncio\nasync def verify():\n    await asyncio.sleep(0)\n    return 0.5\n", 0.5),
    Case("positional-only", "def verify(workspace, /):\n    return float(workspace.is_dir())\n", 1.0),
    Case("keyword-only", "def verify(*, workspace, task_data):\n    return len(task_data)\n", 0.0),
    Case(
        "kwargs",
        "def verify(**given):\n    return float(sorted(given) == ['state', 'task_data', 'workspace'])\n",
        1.0,
    ),
    Case("default", "def verify(response=None):\n    return float(response is None)\n", 1.0),
    Case(
        "partial",
        "import functools\ndef grade(factor, workspace):\n    return factor\nverify = functools.partial(grade, 0.5)\n",
        0.5,
    ),
    Case(
        "instance", "class Grader:\n    def __call__(self, workspace):\n        return 0.25\nverify = Grader()\n", 0.25
    ),
    Case("no verify", "def grade(workspace):\n    return 1\n", kind=CONTRACT, said="verify"),
    Case("verify is no function", "verify = 1\n", kind=CONTRACT),
    Case("unknown parameter", "def verify(workspace, answer):\n    return 1\n", kind=CONTRACT, said="answer"),
    Case("response required", "def verify(response):\n    return 1\n", kind=CONTRACT, said="response"),
    Case("import error", "import nothing_of_that_name\n" + _returns("1"), kind=CONTRACT, said="nothing_of_that_name"),
    Case("syntax error", "def verify(workspace)\n    return 1\n", kind=CONTRACT),
]

ENDINGS = [
    Case(
        "raises",
        "def verify(workspace):\n    raise ValueError('no such column')\n",
        kind="verifier_error",
        said="no such",
    ),
    Case("sys.exit(0)", "import sys\ndef verify(workspace):\n    sys.exit(0)\n", kind="verifier_error"),
    Case("sys.exit at import", "import sys\nsys.exit(0)\n", kind=CONTRACT),
    Case(
        "os._exit(0)",
        "import os\ndef verify(workspace):\n    os._exit(0)\n",
        kind="assay:missing_reward",
        said="code 0",
    ),
    Case(
        "writes a reward and leaves",
        "import os\ndef verify(workspace):\n    open('/logs/verifier/reward.txt', 'w').write('1')\n    os._exit(0)\n",
        kind="assay:missing_reward",
    ),
    Case(
        "cannot grade",
        "from assay.verifiers import CannotGrade\ndef verify(workspace):\n    raise CannotGrade('the judge is away')\n",
        kind="assay:cannot_grade",
        said="the judge is away",
    ),
    Case(
        "infinite loop",
        "def verify(workspace):\n    while True: pass\n",
        kind="assay:verifier_timeout",
        toml="[verifier]\ntimeout_sec = 1.0\n",
    ),
    Case(
        "200 MB of output",
        "import sys\ndef verify(workspace):\n    for _ in range(200):\n        sys.stdout.write('x' * 1_000_000)\n    return 1\n",
        1.0,
        truncated=True,
    ),
    Case(
        "left-over thread",
        "import threading, time\ndef verify(workspace):\n"
        "    threading.Thread(target=time.sleep, args=(1000,)).start()\n    return 1\n",
        1.0,
    ),
    Case(
        "left-over child",
        "import subprocess\ndef verify(workspace):\n    subprocess.Popen(['sleep', '1000'])\n    return 1\n",
        1.0,
    ),
    Case(
        "left-over daemon",
        "import subprocess\ndef verify(workspace):\n"
        "    subprocess.Popen(['sleep', '1000'], start_new_session=True)\n    return 1\n",
        1.0,
    ),
]

BOMBS = [
    Case(
        "memory bomb",
        "def verify(workspace):\n    held = []\n    while True: held.append(bytearray(1 << 24))\n",
        kind="assay:memory_limit",
        toml="[environment]\nmemory_mb = 256\n",
    ),
    Case(
        "fork bomb",
        # Its copies wait: a thousand that each end with a traceback would be a test of this machine's patience.
        "import os, signal\ndef verify(workspace):\n    while os.fork(): pass\n    signal.pause()\n",
        kind="assay:process_limit",
        toml="[verifier]\ntimeout_sec = 20.0\n",
    ),
]

CASES = [*RETURNS, *SIGNATURES, *ENDINGS, *BOMBS]

"""The runner started from its compiled files: the same as from its sources, under every interpreter."""

from __future__ import annotations

import json
import marshal
import os
from collections.abc import Sequence
from importlib.util import MAGIC_NUMBER
from typing import Any

import pytest

from assay.verifiers.compiled import COMPILED, START, compiled_files
from assay.verifiers.vendored import vendored_files
from interpreters import Python

SCORES = (
    "from assay.verifiers import check\n\ndef verify(workspace):\n"
    "    check('there', (workspace / 'a').exists())\n    return {'reward': 0.5, 'm': 2}\n"
)
SPAWNS = (
    "import multiprocessing\nfrom helper import part\n\ndef verify(workspace):\n"
    "    with multiprocessing.get_context('spawn').Pool(1) as pool:\n        return pool.map(part, [3])[0]\n"
)
RAISES = "def verify(workspace):\n    return 1 / 0\n"
BROKEN = "def verify(workspace:\n"


@pytest.fixture
def compiled(bench: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The bench, whose runner is started as grading starts it in a folder that nobody else could write."""
    home = str(bench.tests / ".ng")
    given = bench.command

    def command(python: Python, flags: Sequence[str] = (), options: Sequence[str] = ()) -> list[str]:
        words: list[str] = given(python, flags, options)
        place = words.index(f"{home}/run_verifier.py")
        return [*words[:place], "-c", START, home, *words[place + 1 :]]

    monkeypatch.setattr(type(bench), "command", lambda self, *args, **named: command(*args, **named))
    bench.write(f".ng/{COMPILED}", compiled_files(home))
    return bench


@pytest.mark.parametrize("magic", ["own", "another's"])
@pytest.mark.parametrize(
    ("source", "code", "reward"), [(SCORES, 0, 0.5), (SPAWNS, 0, 9.0), (RAISES, 1, None), (BROKEN, 2, None)]
)
def test_it_does_what_the_sources_do(
    compiled: Any, every_python: Python, magic: str, source: str, code: int, reward: float | None
) -> None:
    if magic == "another's":
        data = compiled_files(str(compiled.tests / ".ng"))
        compiled.write(f".ng/{COMPILED}", b"\0\0\r\n" + data[4:])
    compiled.write("helper.py", "def part(n):\n    return n * n\n")
    ended = compiled.run(every_python, source, flags=["-I"])
    assert (ended.code, "Traceback" in ended.stdout) == (code, False), ended.stderr
    found = ended.messages[0].get("result") if ended.messages else None
    assert (found["reward"] if isinstance(found, dict) else found) == reward
    if source is RAISES:
        assert f'File "{compiled.verifier}", line 2, in verify' in ended.stderr
        assert "compiled" not in ended.stderr
        assert "<string>" not in ended.stderr, "how it was started says nothing to a person"


def test_only_the_files_laid_with_it_are_taken_from_it(compiled: Any, python: Python) -> None:
    """A source file of another content at the same place would not be noticed, so nothing but the runner's own is in it."""
    paths = marshal.loads(compiled_files("/tests/.ng")[4:])
    assert sorted(paths) == sorted(f"/tests/.ng/{name}" for name in vendored_files())


def test_a_published_runner_never_looks_at_it(bench: Any, python: Python) -> None:
    planted = compile("import os\nos._exit(77)\n", "x", "exec")
    home = str(bench.tests / ".ng")
    codes = {f"{home}/{name}": marshal.dumps(planted) for name in vendored_files()}
    bench.write(f".ng/{COMPILED}", MAGIC_NUMBER + marshal.dumps(codes))
    ended = bench.run(python, "def verify(workspace):\n    return 0.25\n", env={"ASSAY_COMPILED": home})
    assert (ended.code, json.loads(ended.rewards["reward.txt"])) == (0, 0.25)
    assert os.listdir(bench.workspace) == []

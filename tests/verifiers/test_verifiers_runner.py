"""The runner's public names, called in this process."""

from __future__ import annotations

import asyncio
import fcntl
import functools
import numbers
import os
import subprocess
import sys
from array import array
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from assay.verifiers import delivery, runner


class Offers:
    """What a scalar of another library offers, and no more."""

    def __init__(self, value: Any, kind: str | None = None, ndim: int = 0, is_complex: bool = False) -> None:
        self.value = value
        self.ndim = ndim
        self.dtype = type("dtype", (), {"kind": kind, "is_complex": is_complex})()

    def __float__(self) -> float:
        return float(self.value)

    def item(self) -> Any:
        return self.value


class Index:
    def __index__(self) -> int:
        return 7


class Raising:
    def __float__(self) -> float:
        raise ZeroDivisionError


class Registered(Offers):
    """Registered as complex, as a library's complex scalar is."""


numbers.Complex.register(Registered)


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (0, 0.0),
        (-3, -3.0),
        (1.5, 1.5),
        (True, 1.0),
        (False, 0.0),
        (10**308, 1e308),
        (5e-324, 5e-324),
        (Decimal("0.1"), 0.1),
        (Fraction(1, 3), 1 / 3),
        (Index(), 7.0),
        (Offers(0.5), 0.5),
        (Offers(0.5, "f"), 0.5),
        (Offers(True, "b"), 1.0),
        (Offers(Decimal("0.5"), "O"), 0.5),
        (Offers(1.0, "V"), 1.0),
        (None, None),
        (float("nan"), None),
        (float("inf"), None),
        (float("-inf"), None),
        (10**400, None),
        (Decimal("NaN"), None),
        (Decimal("sNaN"), None),
        (Decimal("1e999"), None),
        ("1", None),
        (b"1.5", None),
        (bytearray(b"1.5"), None),
        (memoryview(b"1.5"), None),
        (array("b", b"1"), None),
        (1 + 0j, None),
        (Registered(1.0), None),
        (Offers(1.0, "c"), None),
        (Offers(b"1.5", "S"), None),
        (Offers("1.5", "U"), None),
        (Offers(b"1.5", "O"), None),
        (Offers(1, "m"), None),
        (Offers(1.0, "f", ndim=1), None),
        (Offers(1.0, is_complex=True), None),
        (Raising(), None),
        (float, None),
        ([1], None),
        (object(), None),
    ],
)
def test_number(value: Any, number: float | None) -> None:
    found = runner._number(value)
    assert found == number
    assert type(found) is (float if number is not None else type(None))


def plain(workspace: Any, task_data: Any) -> None: ...
def positional(workspace: Any, /, task_data: Any) -> None: ...
def skips(response: Any = "r", task_data: Any = "t", state: Any = "s", workspace: Any = "w", /) -> None: ...
def unknown_before(level: Any = 3, workspace: Any = "w", /) -> None: ...
def keyword(*, workspace: Any, level: Any = 1) -> None: ...
def several(*args: Any, workspace: Any = None) -> None: ...
def everything(**rest: Any) -> None: ...
def the_rest(workspace: Any, /, **rest: Any) -> None: ...
def nothing() -> None: ...


@functools.wraps(plain)
def decorated(*args: Any, **named: Any) -> None: ...


class Grader:
    def __call__(self, workspace: Any) -> None: ...

    def grade(self, workspace: Any, /) -> None: ...

    @staticmethod
    def static(task_data: Any) -> None: ...

    @classmethod
    def of_class(cls, task_data: Any) -> None: ...


class Constructed:
    def __init__(self, workspace: Any) -> None: ...


HAVE = {"workspace": "W", "task_data": "T", "state": "S"}


@pytest.mark.parametrize(
    ("verify", "args", "named"),
    [
        (plain, [], {"workspace": "W", "task_data": "T"}),
        (positional, ["W"], {"task_data": "T"}),
        (skips, ["r", "T", "S", "W"], {}),
        (unknown_before, [3, "W"], {}),
        (keyword, [], {"workspace": "W"}),
        (several, [], {"workspace": "W"}),
        (everything, [], HAVE),
        (the_rest, ["W"], {"task_data": "T", "state": "S"}),
        (nothing, [], {}),
        (decorated, [], {"workspace": "W", "task_data": "T"}),
        (Grader(), [], {"workspace": "W"}),
        (Grader().grade, ["W"], {}),
        (Grader.static, [], {"task_data": "T"}),
        (Grader.of_class, [], {"task_data": "T"}),
        (Constructed, [], {"workspace": "W"}),
        (functools.partial(plain, "bound"), [], {"task_data": "T"}),
        (functools.partial(the_rest, level=2), ["W"], {"task_data": "T", "state": "S"}),
        (lambda workspace=1, missing=2: None, [], {"workspace": "W"}),
    ],
)
def test_select_arguments(verify: Any, args: list[Any], named: dict[str, Any]) -> None:
    assert runner.select_arguments(verify, HAVE) == (args, named)
    verify(*args, **named)


def wants_response(response: Any) -> None: ...
def wants_unknown(a: Any, b: Any) -> None: ...
def wants_by_position(a: Any, /) -> None: ...
def wants_by_name(*, reward_dir: Any) -> None: ...
def unreadable() -> None: ...


unreadable.__signature__ = 5  # type: ignore[attr-defined] # what makes it unreadable


@pytest.mark.parametrize(
    ("verify", "text"),
    [
        (wants_response, "`response`, which this run does not have: give --response"),
        (wants_unknown, "`a`, which is none of workspace, task_data, response, state"),
        (wants_by_position, "`a`, which is none of"),
        (wants_by_name, "`reward_dir`, which is none of"),
        (functools.partial(wants_unknown, 1), "`b`, which is none of"),
        (unreadable, "no signature that can be read"),
    ],
)
def test_select_arguments_names_what_is_wrong(verify: Any, text: str) -> None:
    with pytest.raises(RuntimeError, match=text):
        runner.select_arguments(verify, HAVE)


def test_the_two_ways_of_reading_a_signature_agree() -> None:
    """Plain functions are read without `inspect`; what `inspect` says of them is the same."""
    from assay.verifiers import calling

    for function in (plain, positional, skips, unknown_before, keyword, several, everything, the_rest, nothing):
        quick = calling._parameters(function)
        assert calling._parameters(functools.partial(function)) == quick


def test_place_on_path_moves_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, c = (tmp_path / name for name in "abc")
    for folder in (a, b, c):
        folder.mkdir()
    (tmp_path / "alias").symlink_to(b)
    monkeypatch.setattr(sys, "path", [str(c), str(a) + "/", str(tmp_path / "alias"), "/usr", str(b)])
    runner.place_on_path(b, a, b)
    assert sys.path == [str(b), str(a), str(c), "/usr"]
    runner.place_on_path(c)
    assert sys.path == [str(c), str(b), str(a), "/usr"]


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (None, "cannot be read"),
        ("x = 1", "has no function `verify`"),
        ("verify = None", "has no function `verify`"),
        ("verify = 'text'", "must be a function, got 'text'"),
        ("import nowhere_at_all", "No module named 'nowhere_at_all'"),
        ("raise SystemExit(0)", "SystemExit: 0"),
        ("def", "SyntaxError"),
    ],
)
def test_load_verify_says_what_is_wrong(tmp_path: Path, source: str | None, text: str) -> None:
    path = tmp_path / "load_verify_refused.py"
    if source is not None:
        path.write_text(source)
    with pytest.raises(RuntimeError, match=text):
        runner.load_verify(path)
    sys.modules.pop("load_verify_refused", None)


def test_load_verify(tmp_path: Path) -> None:
    path = tmp_path / "load_verify_case.py"
    path.write_text("import dataclasses\n@dataclasses.dataclass\nclass A:\n  b: 'int'\ndef verify(): return A(7).b\n")
    try:
        assert runner.load_verify(path)() == 7
        assert sys.modules["load_verify_case"].__file__ == str(path)
    finally:
        del sys.modules["load_verify_case"]


def test_an_unchanged_public_face() -> None:
    assert runner.KNOWN_ARGUMENTS == ("workspace", "task_data", "response", "state")
    assert runner.REWARD_FILES == ("reward.json", "reward.txt")


def test_the_text_of_a_line() -> None:
    assert delivery.one_line("a\n b\t\x1b[31mc\ud800") == "a b [31mc\\ud800".replace("\\ud800", "")
    assert len(delivery.one_line("x" * 5000)) == 2000


def test_a_broken_stream_at_the_end_is_no_error(capfd: pytest.CaptureFixture[str]) -> None:
    class Broken:
        def write(self, text: str) -> None:
            raise KeyboardInterrupt

        def flush(self) -> None:
            raise SystemExit(0)

    delivery.last_words(Broken(), None, set(), ["assay: told all the same"])  # type: ignore[arg-type] # a broken stream
    assert capfd.readouterr().err == "assay: told all the same\n"


ENDS = """\
import fcntl, os, sys
from assay.verifiers import delivery
end = int(sys.argv[1])
sys.stdout.write("x" * 5000)
import _thread
started = []
start = _thread.start_new_thread
_thread.start_new_thread = lambda *given: started.append(given) or start(*given)
delivery.last_words(sys.stderr, None, set(), [])
os.write(end, b"%d" % len(started))
delivery.leave(0)
"""


@pytest.mark.parametrize(
    ("size", "full", "threads"),
    [(1 << 18, False, b"0"), (1 << 16, False, b"1"), (1 << 18, True, b"1")],
    ids=["room", "a small pipe", "a full pipe"],
)
def test_nothing_waits_for_who_has_stopped_to_read(size: int, full: bool, threads: bytes) -> None:
    (read, write), (heard, said) = os.pipe(), os.pipe()
    fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, size)
    if full:
        os.write(write, b"y" * size)
    with subprocess.Popen(
        [sys.executable, "-I", "-c", ENDS, str(said)], stdout=write, stderr=write, pass_fds=[said]
    ) as ends:
        os.close(said)
        os.close(write)
        assert os.read(heard, 9) == threads
    assert ends.returncode == 0
    content = os.read(read, size)
    assert content.count(b"x") == (0 if full else 5000)
    os.close(read)
    os.close(heard)


def test_main_in_this_process(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "main_case.py").write_text("def verify(response): return 1")
    given = [
        "--verifier",
        str(tmp_path / "main_case.py"),
        "--workspace",
        str(tmp_path),
        "--reward-dir",
        str(tmp_path / "r"),
    ]
    assert runner.main(given) == 2
    assert capsys.readouterr().err.startswith("assay: `verify` asks for `response`")
    del sys.modules["main_case"]
    (tmp_path / "response.json").write_text("{}")
    assert runner.main([*given, "--response", str(tmp_path / "response.json")]) == 0
    assert (tmp_path / "r" / "reward.txt").read_text() == "1.0\n"
    del sys.modules["main_case"]


def test_no_loop_is_made_for_a_plain_result() -> None:
    from assay.verifiers import calling

    assert calling.settled(5) == 5
    loop = asyncio.new_event_loop()
    future = loop.create_future()
    future.set_result(6)
    assert calling.settled(future) == 6
    asyncio.set_event_loop(None)
    loop.close()

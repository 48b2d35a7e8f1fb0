"""What others verify with, measured where it is installed: an environment of its own, with a newer Python than ours may be.

`install` makes the environment in `benchmarks/.venv`, which git ignores. Each peer is given the best case: rewardkit runs without
any sandbox, and looks nothing up on the network; Harbor's output folders are mounted, and its check is a line of shell.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from assay.sandbox.runtime import find_bubblewrap

from . import work

PLACE = Path(__file__).parent / ".venv"
PACKAGES = ("harbor==0.26.0", "harbor-rewardkit==0.2.3")
"""Those that the specification's figures are of."""
LEAST = (3, 12)
_INSTALL_S = 900
_NEWEST = 20
CHECKS = """\
import rewardkit as rk

rk.file_exists("answer.txt")
rk.file_contains("answer.txt", "42")
"""


class NotHere(Exception):
    """A peer cannot be measured on this machine; why not."""


def install() -> str | None:
    """Make the environment, unless it is there as it should be. Returns why it could not be made, or None."""
    said = PLACE / "installed.txt"
    if said.is_file() and said.read_text().split() == list(PACKAGES):
        return None
    python = find_python()
    if python is None:
        return f"there is no Python {'.'.join(map(str, LEAST))} or newer on PATH or in the usual places; install one"
    work.tell(f"installing {' and '.join(PACKAGES)} with {python}")
    shutil.rmtree(PLACE, ignore_errors=True)
    for argv in (
        [str(python), "-m", "venv", str(PLACE)],
        [str(PLACE / "bin" / "python"), "-m", "pip", "install", "--quiet", *PACKAGES],
    ):
        try:
            done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=_INSTALL_S)
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"it cannot be installed: {error}"
        if done.returncode != 0:
            return f"it cannot be installed: {_last_line(done.stderr) or _last_line(done.stdout)}"
    said.write_text("\n".join(PACKAGES))
    return None


def find_python() -> Path | None:
    """An interpreter that is new enough and can make environments; None without."""
    for python in _candidates():
        check = "import sys, venv, ensurepip; sys.exit(sys.version_info < " + repr(LEAST) + ")"
        try:
            done = subprocess.run([python, "-c", check], capture_output=True, check=False, timeout=30)
        except (OSError, subprocess.TimeoutExpired):
            continue
        if done.returncode == 0:
            return python
    return None


def _candidates() -> Iterator[Path]:
    names = [f"python3.{minor}" for minor in range(LEAST[1], _NEWEST)]
    for name in (*names, "python3"):
        found = shutil.which(name)
        if found is not None:
            yield Path(found)
    home = Path.home()
    # Where systems and people's own tools keep interpreters.
    for place, pattern in (
        (Path("/usr/local/bin"), "python3.*"),
        (Path("/opt"), "*/bin/python3.*"),
        (Path(os.environ.get("PYENV_ROOT", home / ".pyenv"), "versions"), "3.*/bin/python3.*"),
        (Path(os.environ.get("UV_PYTHON_INSTALL_DIR", home / ".local/share/uv/python")), "*/bin/python3.*"),
    ):
        yield from (path for path in sorted(place.glob(pattern)) if path.name in names)


def _python() -> Path:
    python = PLACE / "bin" / "python"
    if not (PLACE / "installed.txt").is_file():
        raise NotHere("not installed: `make bench-peers` does it")
    return python


class Rewardkit:
    """Its command, on two trivial checks of the answer."""

    def __init__(self, folder: Path) -> None:
        """`folder`: an empty one of ours. Raises `NotHere`."""
        self._argv = [str(_python()), "-m", "rewardkit", str(folder / "checks")]
        self._argv += ["--workspace", str(folder / "workspace"), "--output", str(folder / "reward.json")]
        work.make_workspace(folder / "workspace")
        (folder / "checks").mkdir()
        (folder / "checks" / "check.py").write_text(CHECKS)
        self._reward = folder / "reward.json"
        self.take(1)

    def take(self, times: int) -> list[float]:
        """Seconds of each of so many runs. Raises `NotHere` when one fails."""
        seconds = []
        # A list of prices that it would fetch, and wait for where there is no network.
        env = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
        for _ in range(times):
            self._reward.unlink(missing_ok=True)
            began = time.perf_counter()
            done = subprocess.run(self._argv, capture_output=True, text=True, check=False, env=env)
            seconds.append(time.perf_counter() - began)
            if done.returncode != 0 or json.loads(self._reward.read_text()) != {"reward": 1.0}:
                raise NotHere(f"rewardkit failed: {_last_line(done.stderr)}")
        return seconds


class HarborPhase:
    """The process that runs its trials: `peer_harbor`."""

    def __init__(self, folder: Path) -> None:
        """`folder`: an empty one of ours. Raises `NotHere`."""
        argv = [str(_python()), "-I", str(Path(__file__).with_name("peer_harbor.py")), str(folder)]
        self._said = folder / "said.txt"
        env = {**os.environ, "ASSAY_BENCH_BWRAP": str(find_bubblewrap().path)}
        with self._said.open("w") as said:
            self._running = subprocess.Popen(
                argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said, text=True, bufsize=1, env=env
            )
        try:
            self.take(2)
        except BaseException:
            self._end()
            raise

    def __enter__(self) -> HarborPhase:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._end()

    def _end(self) -> None:
        self._running.communicate()

    def take(self, times: int) -> list[float]:
        """Seconds of the verifier phase of each of so many trials. Raises `NotHere` when one fails."""
        assert self._running.stdin is not None
        assert self._running.stdout is not None
        self._running.stdin.write(f"{times}\n")
        line = self._running.stdout.readline()
        if not line:
            self._running.wait()
            raise NotHere(f"Harbor cannot be driven: {_last_line(self._said.read_text())}")
        return [float(word) for word in line.split()]


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[-1][-300:]

"""Harbor's own verifier phase, timed by Harbor itself. Run by the peers' interpreter (`peers`), which knows nothing of Assay.

Reads numbers from stdin, a line each, runs so many trials, and prints the seconds of the verifier phase of each: from
`started_at` to `finished_at`, as Harbor notes them in a trial's result. Each command of the environment is one run of bare
bubblewrap, its output folders are mounted, and the verifier is the benchmark's own check in a line of shell, so that no
interpreter has to start: the least that Harbor's phase can take.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from harbor.environments.base import BaseEnvironment, ExecResult
from harbor.environments.capabilities import EnvironmentCapabilities
from harbor.models.trial.config import AgentConfig, EnvironmentConfig, TaskConfig, TrialConfig
from harbor.trial.trial import Trial

BWRAP = os.environ.get("ASSAY_BENCH_BWRAP", "bwrap")
TEST = """\
#!/bin/bash
if [ "$(cat /app/answer.txt)" = 42 ]; then echo 1 > /logs/verifier/reward.txt; else echo 0 > /logs/verifier/reward.txt; fi
"""


class BubblewrapEnvironment(BaseEnvironment):
    """A folder, shown as a root's `/app` and `/tests` to each command."""

    @staticmethod
    def type() -> str:
        return "bubblewrap"

    @property
    def capabilities(self) -> EnvironmentCapabilities:
        return EnvironmentCapabilities(disable_internet=True, mounted=True)

    def _validate_definition(self) -> None:
        pass

    @property
    def _root(self) -> Path:
        return Path(self.trial_paths.trial_dir, "root")

    async def start(self, force_build: bool) -> None:
        for name in ("app", "tests", "logs", "solution"):
            (self._root / name).mkdir(parents=True)
        (self._root / "app" / "answer.txt").write_text("42\n")

    async def stop(self, delete: bool) -> None:
        shutil.rmtree(self._root)

    def _inside(self, path: str) -> Path:
        return self._root / path.lstrip("/")

    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        shutil.copy(source_path, self._inside(target_path))

    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        shutil.copytree(source_dir, self._inside(target_dir), dirs_exist_ok=True)

    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        shutil.copy(self._inside(source_path), target_path)

    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        shutil.copytree(self._inside(source_dir), target_dir, dirs_exist_ok=True)

    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        argv = [BWRAP, "--unshare-all", "--die-with-parent", "--ro-bind", "/usr", "/usr"]
        argv += ["--symlink", "usr/bin", "/bin", "--symlink", "usr/lib", "/lib", "--symlink", "usr/lib64", "/lib64"]
        argv += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]
        for name in ("app", "tests", "logs", "solution"):
            argv += ["--bind", str(self._root / name), f"/{name}"]
        for mount in self._mounts:
            argv += ["--bind", str(mount["source"]), str(mount["target"])]
        argv += ["--clearenv", "--setenv", "PATH", "/usr/bin:/bin"]
        for name, value in (self._merge_env(env) or {}).items():
            argv += ["--setenv", name, value]
        argv += ["--chdir", cwd or "/app", "--", "bash", "-c", command]
        running = await asyncio.create_subprocess_exec(
            *argv, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        out, err = await running.communicate()
        return ExecResult(stdout=out.decode(), stderr=err.decode(), return_code=running.returncode or 0)


def make_task(folder: Path) -> Path:
    task = folder / "task"
    (task / "tests").mkdir(parents=True)
    (task / "environment").mkdir()
    (task / "instruction.md").write_text("Write 42.\n")
    (task / "task.toml").write_text('schema_version = "1.4"\n')
    test = task / "tests" / "test.sh"
    test.write_text(TEST)
    test.chmod(0o755)
    return task


async def phase_s(task: Path, trials: Path) -> float:
    """Seconds of one trial's verifier phase."""
    config = TrialConfig(
        task=TaskConfig(path=task),
        trials_dir=trials,
        agent=AgentConfig(name="nop"),
        environment=EnvironmentConfig(import_path=f"{__name__}:BubblewrapEnvironment"),
    )
    trial = await Trial.create(config)
    result: Any = await trial.run()
    rewards = result.verifier_result.rewards if result.verifier_result is not None else None
    if rewards != {"reward": 1.0}:
        raise SystemExit(f"the trial was not graded: {result.exception_info or rewards}")
    seconds: float = (result.verifier.finished_at - result.verifier.started_at).total_seconds()
    return seconds


async def serve(folder: Path) -> None:
    task, trials = make_task(folder), folder / "trials"
    for line in sys.stdin:
        print(*[await phase_s(task, trials) for _ in range(int(line))], flush=True)
        shutil.rmtree(trials)


if __name__ == "__main__":
    # Trials log to where the benchmark's own words go.
    logging.disable(logging.WARNING)
    # Harbor imports the environment by the name of its module.
    sys.modules["peer_harbor"] = sys.modules["__main__"]
    __name__ = "peer_harbor"
    asyncio.run(serve(Path(sys.argv[1])))

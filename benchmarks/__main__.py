"""`make bench`: what a verification costs, beside bare bubblewrap, in one run.

The machines this runs on are shared and noisy: a ratio of medians taken turn by turn counts, an absolute time does not.
Prints a table and writes `benchmarks/results.json`: raw seconds, and the object `ratios`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from assay.grading import grade
from assay.sandbox import Overlay, ReadOnly, Sandbox, SandboxSpec, Writable, get_provider
from assay.sandbox.namespaces import get_ready
from assay.sandbox.runtime import find_bubblewrap
from assay.tasks import Task, load_task, stage_tests
from assay.workspaces import scratch_folder

from . import http

HERE = Path(__file__).parent
VERIFIER = "def verify(workspace):\n    return float((workspace / 'answer.txt').read_text() == '42\\n')\n"
TRUE_UID = 65534 if os.geteuid() == 0 else None
PYTHON = "/usr/bin/python3"
ASSAY = [sys.executable, "-m", "assay.cli.main"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=30, help="how often each case is run, turn by turn")
    runs = parser.parse_args().runs
    with tempfile.TemporaryDirectory() as place, scratch_folder("bench") as tests:
        root = Path(place)
        # Passable by the uid that bubblewrap is started under.
        root.chmod(0o755)
        task, workspace = make_task(root)
        stage_tests(task, tests, task_data={}, response=None)
        # What bubblewrap alone starts belongs to whoever starts it; the runner has to write its reward somewhere.
        loop = asyncio.new_event_loop()
        loop.run_until_complete(get_ready(SandboxSpec(interpreter=PYTHON)))
        launched = loop.run_until_complete(get_provider("namespaces").create(true_spec(workspace, tests)))
        cases: dict[str, Callable[[], object]] = {
            "setpriv + bwrap, true": lambda: bare_bwrap(["true"], workspace, tests, uid=TRUE_UID),
            "namespaces, true in a sandbox that is there": lambda: loop.run_until_complete(run_true(launched)),
            "namespaces, true in a sandbox of its own": lambda: loop.run_until_complete(whole_true(workspace, tests)),
            "bwrap, python3 -I -c pass": lambda: bare_bwrap(["python3", "-I", "-c", "pass"], workspace, tests),
            "bwrap, the runner and the same verifier": lambda: bare_bwrap(runner(), workspace, tests),
            "grade(), warm, in process": lambda: loop.run_until_complete(graded(task, workspace, root, warm=True)),
            "grade(), cold, in process": lambda: loop.run_until_complete(graded(task, workspace, root)),
            "grade(), cold, on bubblewrap": lambda: loop.run_until_complete(
                graded(task, workspace, root, "bubblewrap")
            ),
            "assay verify, as a command": lambda: command("verify", task.folder, "--workspace", workspace, state=root),
            "assay --help, as a command": lambda: command("--help", state=root),
        }
        seconds = turn_by_turn(cases, runs)
        loop.run_until_complete(launched.close())
        loop.close()
    medians = {name: statistics.median(taken) for name, taken in seconds.items()}
    ratios = {
        "launcher_true_over_bwrap_true": medians["namespaces, true in a sandbox that is there"]
        / medians["setpriv + bwrap, true"],
        "launcher_whole_true_over_bwrap_true": medians["namespaces, true in a sandbox of its own"]
        / medians["setpriv + bwrap, true"],
        "cold_over_bwrap_runner": medians["grade(), cold, in process"]
        / medians["bwrap, the runner and the same verifier"],
        "bwrap_runner_over_warm": medians["bwrap, the runner and the same verifier"]
        / medians["grade(), warm, in process"],
        "bwrap_python_over_warm": medians["bwrap, python3 -I -c pass"] / medians["grade(), warm, in process"],
        "cold_over_bwrap_python": medians["grade(), cold, in process"] / medians["bwrap, python3 -I -c pass"],
    }
    report(medians, ratios, runs)
    over_http = http.measure()
    for name, value in over_http.items():
        print(f"  {name:45} {value:9.4g}")
    results = {"seconds": seconds, "medians": medians, "ratios": ratios, "http": over_http}
    (HERE / "results.json").write_text(json.dumps(results, indent=1))


def make_task(root: Path) -> tuple[Task, Path]:
    folder, workspace = root / "task", root / "workspace"
    (folder / "tests").mkdir(parents=True)
    workspace.mkdir()
    (folder / "instruction.md").write_text("Write 42.\n")
    (folder / "task.toml").write_text('schema_version = "1.4"\n')
    (folder / "tests" / "verifier.py").write_text(VERIFIER)
    (workspace / "answer.txt").write_text("42\n")
    return load_task(folder), workspace


def runner() -> list[str]:
    return [
        *("python3", "/tests/.ng/run_verifier.py", "--verifier", "/tests/verifier.py"),
        *("--workspace", "/app", "--task-data", "/tests/.ng/task_data.json", "--reward-dir", "/logs/verifier"),
    ]


def bare_bwrap(argv: list[str], workspace: Path, tests: Path, uid: int | None = None) -> None:
    """Bubblewrap with namespaces and mounts, and nothing else: no cgroup, filter, capture or proof of death.

    `uid`: dropped to before it, as root must.
    """
    drop = [] if uid is None else ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--"]
    subprocess.run(
        [
            *drop,
            *(str(find_bubblewrap().path), "--unshare-all", "--die-with-parent", "--ro-bind", "/usr", "/usr"),
            *("--symlink", "usr/bin", "/bin", "--symlink", "usr/lib", "/lib", "--symlink", "usr/lib64", "/lib64"),
            *("--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--tmpfs", "/logs/verifier"),
            *("--overlay-src", workspace, "--tmp-overlay", "/app", "--ro-bind", tests, "/tests", "--chdir", "/app"),
            *("--clearenv", "--setenv", "PATH", "/usr/bin:/bin", "--", *argv),
        ],
        check=True,
        stdout=subprocess.DEVNULL,
    )


def true_spec(workspace: Path, tests: Path) -> SandboxSpec:
    return SandboxSpec(mounts=(Overlay(workspace, "/app"), ReadOnly(tests, "/tests"), Writable("/logs/verifier")))


async def run_true(sandbox: Sandbox) -> None:
    result = await sandbox.exec(["true"], cwd="/app", timeout_s=60)
    if result.code != 0:
        raise SystemExit(f"the benchmark's own command failed: {result}")


async def whole_true(workspace: Path, tests: Path) -> None:
    sandbox = await get_provider("namespaces").create(true_spec(workspace, tests))
    await run_true(sandbox)
    await sandbox.close()


async def graded(task: Task, workspace: Path, state: Path, provider: str = "namespaces", *, warm: bool = False) -> None:
    verdict = await grade(task, workspace, state=state, sandbox=get_provider(provider), warm=warm)
    if verdict.reward != 1.0:
        raise SystemExit(f"the benchmark's own verification failed: {verdict.failure}")


def command(*arguments: str | Path, state: Path) -> None:
    env = {**os.environ, "ASSAY_STATE": str(state)}
    subprocess.run([*ASSAY, *arguments], check=True, stdout=subprocess.DEVNULL, env=env)


def turn_by_turn(cases: dict[str, Callable[[], object]], runs: int) -> dict[str, list[float]]:
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for turn in range(-2, runs):
        for name, work in cases.items():
            began = time.perf_counter()
            work()
            if turn >= 0:
                seconds[name].append(time.perf_counter() - began)
        print(f"\r{max(turn + 1, 0)} of {runs}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return seconds


def report(medians: dict[str, float], ratios: dict[str, float], runs: int) -> None:
    print(f"medians of {runs} runs, taken turn by turn")
    for name, median in medians.items():
        print(f"  {name:45} {median * 1e3:9.1f} ms")
    for name, ratio in ratios.items():
        print(f"  {name:45} {ratio:9.2f}")


if __name__ == "__main__":
    main()

"""`python -m benchmarks.runs`: what reading a run costs, with 1,000, 10,000 and 100,000 answers in it.

Each command is a process of its own: seconds of its start included, its own peak of memory. The rows are made by writing them
into the store's tables, past the commands that would make them.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from sqlalchemy import Connection, insert

from assay.answers import Store, open_store, schema
from assay.runs import AgentSettings, RunSettings

MEASURED = """
import sys
from assay.cli.main import main
try:
    main()
finally:
    # Its own: what `wait` tells of a child is no less than what its parent had.
    peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
    print(peak.split()[1], file=sys.stderr)
"""
COMMANDS = {"status": ["status"], "report": ["report"], "export": ["export"], "compare": ["compare"]}
ROLLOUTS = 4
RESPONSE = json.dumps({"output_text": "some text of an agent " * 50})
_BATCH = 5000
_KINDS = ("judge_failed", "verifier_error")


class Cost(NamedTuple):
    """Of one command."""

    rows: int
    seconds: float
    peak_mb: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="*", default=[1000, 10_000, 100_000])
    print(f"{'command':8} {'rows':>8} {'seconds':>9} {'rows/s':>10} {'peak MB':>8}")
    for rows in parser.parse_args().rows:
        with tempfile.TemporaryDirectory() as place:
            run = make_run(Path(place) / "run", rows)
            for name in COMMANDS:
                cost = cost_of(name, run, rows)
                print(f"{name:8} {rows:>8} {cost.seconds:>9.2f} {rows / cost.seconds:>10.0f} {cost.peak_mb:>8.0f}")


def make_run(folder: Path, rows: int) -> Path:
    """A run of so many answers: one in ten masked, the others with rewards of five values and two metrics each."""
    folder.mkdir()
    settings = RunSettings("/nowhere", AgentSettings("nop")).to_json()
    with open_store(folder / "run.sqlite") as store:
        store.create_run_now(settings)
        for begin in range(0, rows, _BATCH):
            _fill(store, range(begin, min(begin + _BATCH, rows)))
    return folder


def cost_of(name: str, run: Path, rows: int) -> Cost:
    """What one command on a run costs."""
    words = [*COMMANDS[name], str(run), *([str(run)] if name == "compare" else []), "--json"]
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=True
    )
    seconds = time.monotonic() - began
    return Cost(rows, seconds, int(done.stderr.split()[-1]) / 1024)


def _fill(store: Store, numbers: range) -> None:
    tables: dict[str, list[dict[str, object]]] = {"answer": [], "verdict": [], "identity": [], "metric": []}
    for number in numbers:
        task, rollout = f"task-{number // ROLLOUTS:06}", number % ROLLOUTS
        masked, reward = number % 10 == 9, (number % 5) / 4
        answer_id, verdict_id = f"A{number:08}", f"V{number:08}"
        kind = _KINDS[number % 2] if masked else None
        failure = {"event_id": f"E{number:08}", "kind": kind, "reason": "for a benchmark", "stage": "verification"}
        body = {
            "verdict_id": verdict_id,
            "task_id": task,
            "status": "failed" if masked else "graded",
            "reward": None if masked else reward,
            "verifier_digest": f"sha256:{number // ROLLOUTS:064}",
            "metrics": {} if masked else {"one": reward, "two": 1.0},
            "failure": failure if masked else None,
            "log_tail": "a line of a log\n" * 40,
        }
        common = {
            "answer_id": answer_id,
            "status": body["status"],
            "reward": body["reward"],
            "verifier_digest": body["verifier_digest"],
            "kind": kind,
            "caused_by": "infrastructure" if masked else None,
            "proven": 1,
            "provisional": 0,
            "flaky": 0,
            "recoverable": int(masked),
            "terminal": 0,
        }
        where = {"task_id": task, "rollout": rollout}
        extra = {"responses_create_params": {"input": "an instruction " * 30}}
        answer = {"id": answer_id, "agent": "nop", "created_at": 0.0, "agent_settings": "{}", "dropped": "[]", **where}
        tables["answer"].append({**answer, "task_digest": "sha256:t", "extra": json.dumps(extra), "response": RESPONSE})
        tables["verdict"].append({"id": verdict_id, "created_at": 0.0, "body": json.dumps(body), **common})
        tables["identity"].append(
            {"position": number, "verdict_seq": number + 1, "tries": int(masked), **where, **common}
        )
        metrics = body["metrics"]
        assert isinstance(metrics, dict)
        tables["metric"] += [
            {"verdict_seq": number + 1, "name": name, "value": value} for name, value in metrics.items()
        ]

    def work(connection: Connection) -> None:
        for name, rows in tables.items():
            connection.execute(insert(getattr(schema, name)), rows)

    store.database.write_now(work)


if __name__ == "__main__":
    main()

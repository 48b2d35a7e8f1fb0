"""`docs/runs.md`: its worked example does what it says."""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import func, select

from assay.answers import StoreUnusable, schema
from assay.runs import find_place, read_run
from runs.endpoints import endpoint

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "runs.md"
PORT = "8011"


def commands() -> Iterator[tuple[str, list[str]]]:
    """Every command of the worked example, and what it prints."""
    text = DOCUMENT.read_text().partition("## The morning after")[2].partition("\n## ")[0]
    for block in re.findall(r"```console\n(.*?)```", text, re.DOTALL):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, *printed = part.rstrip("\n").split("\n")
            yield command, printed


def test_the_morning_after(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {
        **os.environ,
        "ASSAY_STATE": str(tmp_path / "state"),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    ran = 0
    with judge_from("assay recover", port) as up:
        for command, printed in commands():
            ran += 1
            up(command)
            shell = ["bash", "-c", f"exec {command}" if command.startswith("assay") else command]
            shell[-1] = shell[-1].replace(PORT, str(port))
            process = subprocess.Popen(
                shell, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path, env=environment
            )
            if printed == ["Killed"]:
                wait_for_answers(tmp_path / "night", process)
                process.send_signal(signal.SIGKILL)
                process.communicate()
                continue
            stdout, stderr = process.communicate(timeout=120)
            assert process.returncode == (3 if "assay resume" in command else 0), stderr
            assert matches(printed, stdout.splitlines()), stdout
    assert ran == 13
    with read_run(find_place(tmp_path / "night")) as store:
        agents = select(func.count()).where(schema.attempt.c.stage == "agent", schema.attempt.c.outcome == "answered")
        assert store.database.read_now(lambda c: c.execute(agents).scalar_one()) == 8


def matches(expected: list[str], printed: list[str]) -> bool:
    """Line by line; a line `…` stands for any lines, digests are alike, spaces at the end are not looked at."""
    pattern = "".join(r"(?:.*\n)*" if line == "…" else re.escape(_plain(line)) + "\n" for line in expected)
    return re.fullmatch(pattern, "".join(_plain(line) + "\n" for line in printed)) is not None


def _plain(line: str) -> str:
    return re.sub(r"sha256:(\w+|…)", "sha256:…", line).rstrip()


def wait_for_answers(run: Path, process: subprocess.Popen[str]) -> None:
    """Until some are kept: the machine dies in the middle of it."""
    deadline = time.monotonic() + 60
    answers = 0
    while answers < 2:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
        try:
            with read_run(find_place(run)) as store:
                answers = store.database.read_now(
                    lambda c: c.execute(select(func.count()).select_from(schema.answer)).scalar_one()
                )
        except StoreUnusable:
            continue


@contextmanager
def judge_from(word: str, port: int) -> Iterator[object]:
    """A judge that comes up with the first command that begins so."""
    begin, end = threading.Event(), threading.Event()
    ready = threading.Event()

    async def serve() -> None:
        async with endpoint(port=port):
            ready.set()
            while not end.is_set():
                await asyncio.sleep(0.02)

    def work() -> None:
        begin.wait()
        if not end.is_set():
            asyncio.run(serve())

    thread = threading.Thread(target=work)
    thread.start()

    def up(command: str) -> None:
        if command.startswith(word):
            begin.set()
            assert ready.wait(10)

    try:
        yield up
    finally:
        end.set()
        begin.set()
        thread.join()


def test_commands_named_in_the_document_are_there() -> None:
    from assay.cli.main import cli

    named = set(
        itertools.chain.from_iterable(re.findall(r"`assay (\w+)", line) for line in DOCUMENT.read_text().splitlines())
    )
    assert {"run", "resume", "recover", "regrade", "export"} <= named
    assert named <= set(cli.list_commands(None))  # type: ignore[arg-type]

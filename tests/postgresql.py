"""A PostgreSQL server of the test session's own: on a Unix socket in a temporary folder, as an ordinary user."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ordinary_user import ORDINARY_UID

TOOL = Path(__file__).resolve().parent.parent / "tools" / "postgresql.py"
# Nothing here is to outlive the session, so no write of it waits for the disk.
SETTINGS = ("fsync=off", "full_page_writes=off", "listen_addresses=", "max_connections=50", "shared_buffers=16MB")


def find_programs() -> Path | None:
    """The folder that `initdb` and `postgres` are in, or None."""
    found = subprocess.run([sys.executable, TOOL, "find"], capture_output=True, text=True, check=False).stdout.strip()
    return Path(found) if found else None


@contextmanager
def running_server(programs: Path) -> Iterator[str]:
    """The URL of a server that runs until the end of the block."""
    folder = Path(tempfile.mkdtemp(prefix="pg-"))
    # The server refuses to run as root. Whoever starts it dies with this process.
    as_whom = ["setpriv", "--pdeathsig", "INT"]
    if os.geteuid() == 0:
        os.chown(folder, ORDINARY_UID, ORDINARY_UID)
        as_whom += [f"--reuid={ORDINARY_UID}", f"--regid={ORDINARY_UID}", "--clear-groups"]
    env = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", "HOME": str(folder), "TZ": "UTC"}
    data = folder / "data"
    init = [*as_whom, "--", programs / "initdb", "-D", data, "-U", "assay", "-A", "trust", "-E", "UTF8", "--no-sync"]
    done = subprocess.run(init, env=env, cwd="/", capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    options = [part for setting in SETTINGS for part in ("-c", setting)]
    command = [*as_whom, "--", programs / "postgres", "-D", data, "-k", folder, *options]
    with open(folder / "log", "wb") as log:
        server = subprocess.Popen(command, env=env, cwd="/", stdout=log, stderr=log)
    try:
        ready = folder / "data" / "postmaster.pid"
        deadline = time.monotonic() + 60
        while not ready.exists() or "ready" not in ready.read_text():
            assert server.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < deadline, (folder / "log").read_text()
            time.sleep(0.02)
        yield f"postgresql://assay@/postgres?host={folder}"
    finally:
        # Its immediate shutdown: clients are cut, and nothing is put in order for a next start.
        server.send_signal(signal.SIGQUIT)
        server.wait(60)
        shutil.rmtree(folder)

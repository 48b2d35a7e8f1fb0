"""A real `assay serve` on loopback, and one client of it on one connection."""

from __future__ import annotations

import http.client
import io
import json
import os
import subprocess
import sys
import tarfile
import time
import uuid
from pathlib import Path
from types import TracebackType

from assay.workspaces import capture, scratch_folder

from .work import Work

_HEADERS = {"Content-Type": "application/json"}


class Served:
    """The server, in a process of its own, with the answer uploaded."""

    def __init__(self, work: Work, workspace: Path) -> None:
        """Starts it with its usual settings, on a port of its own."""
        argv = [sys.executable, "-m", "assay.cli.main", "serve", str(work.task.folder.parent)]
        argv += ["--port", "0", "--rootfs", "host", "--state", str(work.folder / "served"), "--json"]
        self._running = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env={**os.environ, "ASSAY_TOKEN": ""})
        assert self._running.stdout is not None
        said = self._running.stdout.readline()
        if not said:
            raise SystemExit(f"the server did not start: it ended with {self._running.wait()}")
        self._client = http.client.HTTPConnection("127.0.0.1", int(json.loads(said)["url"].rpartition(":")[2]))
        try:
            self._body = json.dumps({"task_id": work.task.id, "workspace": {"snapshot": self._upload(workspace)}})
        except BaseException:
            self._end()
            raise

    def __enter__(self) -> Served:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._end()

    def _end(self) -> None:
        self._client.close()
        self._running.terminate()
        self._running.communicate()

    def _upload(self, workspace: Path) -> str:
        with scratch_folder("bench-upload") as place:
            digest = capture(workspace, place / "copy").digest
        archive = io.BytesIO()
        with tarfile.open(fileobj=archive, mode="w") as tar:
            tar.add(workspace, ".")
        self._ask("PUT", f"/snapshots/{digest}", archive.getvalue(), {})
        return digest

    def _ask(self, method: str, path: str, body: bytes | str, headers: dict[str, str]) -> bytes:
        self._client.request(method, path, body, headers)
        reply = self._client.getresponse()
        said = reply.read()
        if reply.status not in (200, 201, 204) or reply.headers.get("Idempotency-Replayed"):
            raise SystemExit(f"{method} {path} was answered with {reply.status}: {said[:500]!r}")
        return said

    def take(self, times: int) -> list[float]:
        """Seconds of each of so many verifications, one after the other: from the request to its reply, read."""
        seconds = []
        for _ in range(times):
            headers = {**_HEADERS, "Idempotency-Key": str(uuid.uuid4())}
            began = time.perf_counter()
            reply = json.loads(self._ask("POST", "/verify", self._body, headers))
            seconds.append(time.perf_counter() - began)
            if reply["reward"] != 1.0 or reply["mask_sample"]:
                raise SystemExit(f"the benchmark's own verification failed over HTTP: {reply}")
        return seconds

"""The shim: what lets a Python verifier be graded as `tests/test.sh`, here and under any other Harbor.

`test.sh` needs bash and Python 3.8 or newer in the image and nothing else. Everything beside it is in `.ng/`: the runner
with its helpers, the task's fields, and a manifest of the whole tests folder, so that what somebody plants there later is
never imported.
"""

from __future__ import annotations

import hashlib
import json
import posixpath
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal

from assay.tasks.digest import sha256_of
from assay.tasks.errors import TaskInvalid
from assay.tasks.source import Source
from assay.tasks.strict_json import strict_json
from assay.tasks.tree import Entry
from assay.verifiers import vendored

SHIM_FOLDER = ".ng"
MANIFEST = f"{SHIM_FOLDER}/manifest.json"
TASK_DATA = f"{SHIM_FOLDER}/task_data.json"
RESPONSE = f"{SHIM_FOLDER}/response.json"
OWN_VERIFIER: Final = "verifier.py"
DATASET_VERIFIER: Final = ".ng/verifier.py"

VerifierPath = Literal["verifier.py", ".ng/verifier.py"]

_TEST_SH = r"""#!/bin/bash
# Written by Assay: runs this task's Python verifier and leaves its reward in /logs/verifier.
# Needs bash and Python 3.8 or newer, nothing else. Edit the verifier, not this file.

here=${BASH_SOURCE[0]%/*}
if [ "$here" = "${BASH_SOURCE[0]}" ]; then here=.; fi
here=$(CDPATH='' cd -- "${here:-/}" && pwd -P) || exit 2
rewards=${ASSAY_REWARD_DIR:-/logs/verifier}

# A reward that is there before the verifier ran is not the verifier's. The runner looks again, and says so if one stays.
for name in reward.json reward.txt; do
  if [ -e "$rewards/$name" ] || [ -L "$rewards/$name" ]; then
    PATH="$PATH:/usr/bin:/bin" rm -rf -- "$rewards/$name"
  fi
done

python=
refused=
# Never one that lies in the workspace: what the agent left there is not what grades it.
for candidate in $(type -aP python3 python); do
  case $candidate in "$PWD"/*) continue ;; /*) ;; *) continue ;; esac
  version=$("$candidate" -E -S -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)
  case $version in
    3.8 | 3.9 | 3.[1-9][0-9]* | [4-9].* | [1-9][0-9]*.*) python=$candidate; break ;;
    [0-9]*.[0-9]*) refused="$refused$candidate is Python $version, which is too old; " ;;
    *) refused="$refused$candidate does not run; " ;;
  esac
done
if [ -z "$python" ]; then
  echo "assay: ${refused:-there is no python3 and no python on PATH ($PATH); }put Python 3.8 or newer into the image" >&2
  exit 127
fi

arguments=(--verifier "$here/@VERIFIER@" --workspace "$PWD" --reward-dir "$rewards")
if [ -f "$here/.ng/task_data.json" ]; then arguments+=(--task-data "$here/.ng/task_data.json"); fi
if [ -f "$here/.ng/response.json" ]; then arguments+=(--response "$here/.ng/response.json"); fi
exec "$python" -I "$here/.ng/run_verifier.py" "${arguments[@]}"
"""


def test_sh(verifier: VerifierPath) -> bytes:
    """The shim's `test.sh` for a verifier at that path below the tests folder."""
    return _TEST_SH.replace("@VERIFIER@", verifier).encode()


def shim_entries(
    tests: list[Entry], *, task_data: Mapping[str, Any], response: Mapping[str, Any] | None, borrowed: bytes | None
) -> list[Entry]:
    """The whole tests folder of a Python verifier: the author's entries with the shim laid around them.

    `borrowed` is the content of the dataset's verifier.py, for a task that has none of its own. Raises `TaskInvalid` when
    the author's folder holds what is the shim's own, or a value that is not JSON.
    """
    for entry in tests:
        if entry.path == SHIM_FOLDER or entry.path.startswith(f"{SHIM_FOLDER}/"):
            raise TaskInvalid(f"tests/{SHIM_FOLDER}: is the folder that Assay lays itself; remove it")
    verifier: VerifierPath = OWN_VERIFIER if borrowed is None else DATASET_VERIFIER
    laid = {f"{SHIM_FOLDER}/{path}": content for path, content in _runner_files().items()}
    if borrowed is not None:
        laid[DATASET_VERIFIER] = borrowed
    entries = [*tests, _laid("test.sh", test_sh(verifier), executable=True)]
    entries += [_laid(path, content) for path, content in laid.items()]
    return with_inputs(entries, task_data=task_data, response=response)


def with_inputs(
    entries: list[Entry], *, task_data: Mapping[str, Any], response: Mapping[str, Any] | None
) -> list[Entry]:
    """A shim's tests folder with this run's task data and response, and the manifest that goes with them.

    The response is not in the manifest: it is each answer's own, laid over a folder that many answers share.
    """
    inputs = {TASK_DATA, RESPONSE, MANIFEST}
    kept = [entry for entry in entries if entry.path not in inputs]
    kept.append(_laid(TASK_DATA, json_file(task_data, "the task data")))
    manifest = _laid(MANIFEST, _manifest(kept))
    if response is not None:
        kept.append(_laid(RESPONSE, json_file(response, "the response")))
    return [*kept, manifest]


def shim_verifier(source: Source) -> VerifierPath | None:
    """Where the verifier lies when the task's `tests/` is our own shim, of this version and untouched; else None."""
    script = source.read("tests/test.sh")
    found: VerifierPath
    if script == test_sh(OWN_VERIFIER):
        found = OWN_VERIFIER
    elif script == test_sh(DATASET_VERIFIER):
        found = DATASET_VERIFIER
    else:
        return None
    entries = source.entries("tests")
    manifest = next((entry for entry in entries if entry.path == MANIFEST and entry.kind == "file"), None)
    if manifest is None:
        return None
    try:
        stated = strict_json(manifest.read())
    except ValueError:
        return None
    present = json.loads(_manifest([entry for entry in entries if entry.path != MANIFEST]))
    ours = {f"{SHIM_FOLDER}/{path}": hashlib.sha256(content).hexdigest() for path, content in _runner_files().items()}
    current = all(present["files"].get(path) == digest for path, digest in ours.items())
    return found if current and stated == present and found in present["files"] else None


@cache
def _runner_files() -> dict[str, bytes]:
    # Read once: they are laid beside every verifier, and do not change while this process runs.
    return vendored.vendored_files()


def json_file(value: Any, what: str) -> bytes:
    """`value` as the JSON file that the runner reads. Raises `TaskInvalid` when it is not JSON."""
    try:
        return json.dumps(value, indent=1, allow_nan=False).encode() + b"\n"
    except (TypeError, ValueError, RecursionError) as error:
        raise TaskInvalid(f"{what} cannot be written as JSON: {error}") from error


def _manifest(entries: list[Entry]) -> bytes:
    by_path = {entry.path: entry for entry in entries}
    files = {}
    for entry in entries:
        content = _followed(entry, by_path)
        if content is not None:
            files[entry.path] = sha256_of(content)
    return json_file({"runner": vendored.RUNNER_VERSION, "files": dict(sorted(files.items()))}, "the manifest")


def _followed(entry: Entry, by_path: Mapping[str, Entry]) -> Entry | None:
    """The file itself, or the one that a link within the tests folder leads to: a helper may be a link to another."""
    for _ in range(8):
        if entry.kind == "file":
            return entry
        if entry.kind == "folder" or entry.target is None or entry.target.startswith("/"):
            return None
        following = by_path.get(posixpath.normpath(posixpath.join(posixpath.dirname(entry.path), entry.target)))
        if following is None:
            return None
        entry = following
    return None


def _laid(path: str, content: bytes, *, executable: bool = False) -> Entry:
    return Entry(path, "file", Path(path), executable=executable, data=content)

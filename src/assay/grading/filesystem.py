"""A whole root filesystem as an answer: the agent's own in shared mode, a copy of the image's for the controls.

It is copied once. What a sandbox mounts afresh is taken out of the copy, so that nothing an agent left at those places (a
link, a file in a folder's place) can stand in a mount's way.
"""

from __future__ import annotations

import threading
from pathlib import Path

from assay.workspaces import Capture, capture, remove_tree

_MADE_AFRESH = ("dev", "proc", "sys")
_REAL_FOLDERS = ("tmp", "logs", "logs/agent", "logs/artifacts", "var/tmp", "run")
"""Parents first: below a link nothing is looked at."""
_MOUNTED = ("tests", "solution", "logs/verifier", "logs/agent/trajectory.json", "run/assay")


def take_filesystem(source: Path, into: Path, *, stop: threading.Event | None = None) -> Capture:
    """Capture a root filesystem into the new folder `into` and clear its mount points. Raises as `capture` does."""
    taken = capture(source, into, stop=stop)
    clear_mount_points(into)
    return taken


def clear_mount_points(root: Path) -> None:
    """Take out of a root filesystem of our own, in which nothing runs, what sandboxes mount afresh."""
    for name in _MADE_AFRESH:
        remove_tree(root / name)
        (root / name).mkdir(mode=0o755)
    for name in _REAL_FOLDERS:
        path = root / name
        if _below_a_link(root, path):
            continue
        if path.is_symlink() or (path.exists() and not path.is_dir()):
            remove_tree(path)
    for name in _MOUNTED:
        if not _below_a_link(root, root / name):
            remove_tree(root / name)
    # Where every container of the format has it.
    (root / "logs" / "artifacts").mkdir(parents=True, exist_ok=True)


def _below_a_link(root: Path, path: Path) -> bool:
    return any((root / parent).is_symlink() for parent in list(path.relative_to(root).parents)[:-1])

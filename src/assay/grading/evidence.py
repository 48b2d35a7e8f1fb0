"""What is known of a verifier, kept in `STATE_DIR/evidence`: whether it was seen to work for a task.

One small JSON file per (task, verifier, base, profile) digests. Good evidence is kept; bad evidence is asked for again
after a pause that doubles, since a machine may have been down. A file that cannot be read or written costs time, never a
verdict: it is as if nothing were known.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import json
import logging
import math
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from .decide import Controls, Evidence, floor_is_known, floor_of, is_proven
from .observation import Observation, Standing

_FIRST_PAUSE_S = 60.0
_LONGEST_PAUSE_S = 86_400.0
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Known:
    """What is known about one verifier for one task."""

    proven_by: str | None = None
    """"solution", or the verdict of an answer that was graded above the floor."""
    untouched: float | None = None
    """The untouched environment's reward; None when it was not graded, or never asked."""
    untouched_asked: bool = False
    solution_failed: bool = False
    """The task's own solution was run and the verifier could not grade it."""
    asked: int = 0
    """How often the controls were run without proof."""
    ask_again_at: float = 0.0
    """Seconds since the epoch before which they are not run again."""

    @property
    def floor(self) -> float | None:
        """The reward of "nothing achieved" where the task declares no range; None while it is not known."""
        evidence = Evidence(untouched_asked=self.untouched_asked, untouched_before=self.untouched)
        return floor_of(evidence) if floor_is_known(evidence) else None


def evidence_key(task_digest: str, verifier_digest: str, base_digest: str, profile: str) -> str:
    """The name under which evidence is kept."""
    return hashlib.sha256("\0".join((task_digest, verifier_digest, base_digest, profile)).encode()).hexdigest()


class EvidenceStore:
    """The folder of evidence. Safe for many processes: each write replaces one whole file."""

    def __init__(self, state: Path) -> None:
        """Nothing is made on disk before the first `update`."""
        self._folder = state / "evidence"

    def known(self, key: str) -> Known:
        """What is known under a key; nothing when there is no readable record."""
        try:
            path = self._folder / f"{key}.json"
            status = path.stat()
            return _read(str(path), status.st_ino, status.st_mtime_ns, status.st_size)
        except FileNotFoundError:
            return Known()
        except (OSError, ValueError, TypeError) as error:
            _log.warning("evidence %s cannot be read (%s): asked for anew", key[:12], error)
            return Known()

    def update(self, key: str, change: Callable[[Known], Known]) -> None:
        """Replace what is known under a key by a change of it. What was proven stays proven, whoever writes last."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with (self._folder / ".lock").open("a") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                before = self.known(key)
                after = change(before)
                if before.proven_by is not None and after.proven_by is None:
                    after = replace(after, proven_by=before.proven_by)
                if after != before:
                    self._write(key, after)
        except OSError as error:
            _log.warning("evidence cannot be kept in %s (%s): controls will run again", self._folder, error)

    def _write(self, key: str, known: Known) -> None:
        handle, name = tempfile.mkstemp(dir=self._folder, prefix=".new-")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(asdict(known), file)
            Path(name).replace(self._folder / f"{key}.json")
        except BaseException:
            Path(name).unlink()
            raise


@functools.lru_cache(maxsize=1024)
def _read(path: str, _inode: int, _mtime_ns: int, _size: int) -> Known:
    """What a record says. It is never written to, only replaced: with the same status it is the same."""
    return Known(**json.loads(Path(path).read_text("utf-8")))


def with_controls(known: Known, controls: Controls, range_low: float | None) -> Known:
    """What is known after the controls were run."""
    untouched = controls.untouched.reward.value if controls.untouched.reward is not None else None
    if is_proven(Evidence(controls=controls, range_low=range_low)):
        return Known(proven_by="solution", untouched=untouched, untouched_asked=True)
    if known.proven_by is not None:
        return replace(known, untouched=untouched, untouched_asked=True)
    asked = known.asked + 1
    pause = min(_FIRST_PAUSE_S * math.pow(2, asked - 1), _LONGEST_PAUSE_S)
    return replace(
        known,
        untouched=untouched,
        untouched_asked=True,
        solution_failed=_failed(controls.solution),
        asked=asked,
        ask_again_at=time.time() + pause,
    )


def tells(controls: Controls) -> bool:
    """Whether controls say anything about the verifier: not when the infrastructure failed one of them."""
    looks = (controls.untouched, controls.solution)
    return not any(look is not None and look.standing is Standing.INFRASTRUCTURE for look in looks)


def may_ask(known: Known) -> bool:
    """Whether the pause after bad evidence is over."""
    return time.time() >= known.ask_again_at


def _failed(solution: Observation | None) -> bool:
    return solution is not None and solution.standing is Standing.AMBIGUOUS

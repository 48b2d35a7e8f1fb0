"""Reading what a dead sandbox left: its logs, whatever happened, and the reward. Decides nothing."""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from pathlib import Path

from assay.failures import FailureEvent
from assay.sandbox import GIB, Ended, ExecResult
from assay.workspaces import Caps, capture, list_folder

from .channel import Channel, conflict, message_reward
from .checks import read_checks_file
from .job import Job
from .observation import Observation, Run, Standing, graded, not_graded
from .rewards import MissingReward, Reward, RewardRule, read_reward
from .starvation import starved

_log = logging.getLogger(__name__)
STDOUT_FILE = "test-stdout.txt"
TAIL_CHARACTERS = 2_000
_TAIL_BYTES = 4 * TAIL_CHARACTERS
_LOG_CAPS = Caps(bytes=GIB, entries=20_000, depth=64)
_LITTLE_BYTES = 1 << 16
_LITTLE_ENTRIES = 8

_LIMIT_KINDS = {
    Ended.WALL_LIMIT: "assay:verifier_timeout",
    Ended.CPU_LIMIT: "assay:cpu_limit",
    Ended.MEMORY_LIMIT: "assay:memory_limit",
    Ended.OUTPUT_LIMIT: "assay:output_limit",
}
_HIT_KINDS = {name: f"assay:{name}" for name in ("memory_limit", "process_limit", "storage_limit")}


def is_little(folder: Path) -> bool:
    """Whether a dead sandbox left so little in its log folder that a thread would take longer than reading it."""
    left = _LITTLE_BYTES
    try:
        with os.scandir(folder) as entries:
            for number, entry in enumerate(entries):
                left -= entry.stat(follow_symlinks=False).st_size
                if number >= _LITTLE_ENTRIES or left < 0 or not entry.is_file(follow_symlinks=False):
                    return False
    except OSError:
        return False
    return True


def read_whatever(
    job: Job, result: ExecResult, folder: Path, channel: Channel | None, logs: Path | None, beside_s: float
) -> Observation:
    """`_read`, where an error is what the sandbox left behind, never this machine's: nobody else could have brought it about."""
    try:
        return _read(job, result, folder, channel, logs, beside_s)
    except OSError as error:
        run = Run(ended={"how": result.how.value, "code": result.code, "signal": result.signal})
        unread = FailureEvent("assay:invalid_reward", f"the log folder cannot be read: {error}")
        return not_graded(Standing.AMBIGUOUS, unread, run)


def _read(
    job: Job, result: ExecResult, folder: Path, channel: Channel | None, logs: Path | None, beside_s: float
) -> Observation:
    """Read what a dead sandbox left: logs first, whatever happened, then the reward.

    `beside_s`: processor seconds that the submission's runs used meanwhile.
    """
    task = job.task
    _open_up(folder)
    checks = read_checks_file(folder)
    failure: FailureEvent | None = None
    reward: Reward | None = None
    low, high = task.settings.reward_range or (float("-inf"), float("inf"))
    rule = RewardRule(task.settings.reward_key, low, high)
    try:
        if channel is not None:
            message = channel.read()
            if message is None:
                raise MissingReward(f"the verifier ended without a verdict ({_ending(result)})")
            checks = message.checks
            reward = message_reward(message, rule)
            _agree(reward, folder, rule)
        else:
            reward = read_reward(folder, rule)
    except MissingReward as missing:
        failure = MissingReward(f"{missing.reason} ({_ending(result)})") if channel is None else missing
    except FailureEvent as event:
        failure, reward = event, None
    ended = {"how": result.how.value, "code": result.code, "signal": result.signal}
    run = Run(
        ended=ended,
        limits_hit=result.limits_hit,
        checks=checks,
        found=tuple({"path": f.path, "type": f.type, "bytes": f.bytes} for f in list_folder(folder)),
        log_tail=result.stdout[-_TAIL_BYTES:].decode("utf-8", "replace")[-TAIL_CHARACTERS:],
        truncated=result.truncated,
    )
    if logs is not None:
        run = replace(run, truncated=_keep_logs(folder, result, logs) or run.truncated)
    return _observe(job, result, run, reward, failure, beside_s)


def _open_up(folder: Path) -> None:
    """Make the log folder readable again, whatever mode the sandbox gave it: as an ordinary user it is ours, and its."""
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if os.fstat(descriptor).st_uid == os.geteuid():
            Path(f"/proc/self/fd/{descriptor}").chmod(0o700)
    finally:
        os.close(descriptor)


def _keep_logs(folder: Path, result: ExecResult, logs: Path) -> bool:
    """Copy what the verifier left into `logs`, beside its output. Returns whether something had to be left out."""
    try:
        logs.mkdir(parents=True)
        (logs / STDOUT_FILE).write_bytes(result.stdout)
        capture(folder, logs / "verifier", _LOG_CAPS)
    except (FailureEvent, OSError) as error:
        # Over a cap, or the disk is full: what was copied before stays, the record says that it is not all, and a verdict
        # is never lost for it.
        _log.warning("not all logs are in %s: %s", logs, error)
        return True
    return False


def _observe(
    job: Job, result: ExecResult, run: Run, reward: Reward | None, failure: FailureEvent | None, beside_s: float
) -> Observation:
    """What the ending and the reading come to together. The order matters: how it ended outranks what was written."""
    discarded = replace(run, discarded_reward=reward.value if reward is not None else None)
    if result.how is Ended.FAULT:
        lost = FailureEvent("provider_unavailable", f"the sandbox was lost: {result.fault}")
        return not_graded(Standing.INFRASTRUCTURE, lost, discarded)
    if starved(result, job.terms.limits.cpus, beside_s):
        waited = f"its processes waited {result.run_delay_s:.1f} s of {result.wall_s:.1f} s for a processor"
        busy = FailureEvent(
            "provider_unavailable", f"the verifier hit its time limit of {job.limit_s:g} s, but {waited}"
        )
        return not_graded(Standing.INFRASTRUCTURE, busy, discarded)
    if (kind := _LIMIT_KINDS.get(result.how)) is not None:
        said = f"the verifier was ended at its time limit of {job.limit_s:g} s"
        if result.how is not Ended.WALL_LIMIT:
            said = f"the verifier was ended: {_ending(result)}"
        return not_graded(Standing.AMBIGUOUS, FailureEvent(kind, said), discarded)
    if reward is not None:
        return graded(reward, run)
    assert failure is not None  # noqa: S101 - a reading gives one or the other
    if result.limits_hit:
        # What a limit broke may have failed in any way on its way out: the limit is what there is to know.
        hit = FailureEvent(
            _HIT_KINDS.get(result.limits_hit[0], failure.kind), f"a limit was hit; then {failure.reason}"
        )
        return not_graded(Standing.AMBIGUOUS, hit, run)
    return not_graded(Standing.AMBIGUOUS, failure, run)


def _agree(reward: Reward, folder: Path, rule: RewardRule) -> None:
    """A file that says something else than the message was written by somebody else. A file that is gone says nothing."""
    try:
        written = read_reward(folder, rule)
    except MissingReward:
        return
    except FailureEvent as event:
        raise conflict(
            f"the verifier said {reward.value!r}, and the reward file is another's: {event.reason}"
        ) from None
    if written != reward:
        raise conflict(f"the verifier said {reward.value!r}, and the reward file says {written.value!r}")


def _ending(result: ExecResult) -> str:
    match result.how:
        case Ended.EXITED:
            return f"it exited with code {result.code}"
        case Ended.SIGNALED:
            return f"it was killed by signal {result.signal}"
        case Ended.MEMORY_LIMIT:
            return "its memory limit"
        case Ended.CPU_LIMIT:
            return "its processor time limit"
        case Ended.OUTPUT_LIMIT:
            return f"it wrote more output than allowed ({result.stdout_bytes} bytes)"
        case Ended.WALL_LIMIT:
            return "its time limit"
        case Ended.FAULT:
            return "the sandbox was lost"

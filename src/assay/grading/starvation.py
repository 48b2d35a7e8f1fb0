"""Whether a time limit was hit because the machine was busy elsewhere."""

from __future__ import annotations

from assay.sandbox import Ended, ExecResult

_STARVED_SHARE = 0.5


def starved(result: ExecResult, cpus: float | None, beside_s: float) -> bool:
    """Whether a command hit its wall-clock limit, and the machine, not the command, used the time up.

    Waiting alone is not enough: a submission that starts a hundred busy processes makes each of them wait, and so does a
    quota (`cpus`) that it uses up. So the sandbox must also have had less than that share of what it may use of one
    processor, together with what ran beside it for the same verification (`beside_s`, processor seconds): its program may
    have asked for runs that keep it waiting.
    """
    if result.how is not Ended.WALL_LIMIT or result.run_delay_s is None or result.cpu_s is None:
        return False
    share = _STARVED_SHARE * result.wall_s
    return result.run_delay_s >= share and result.cpu_s + beside_s < share * min(1.0, cpus or 1.0)

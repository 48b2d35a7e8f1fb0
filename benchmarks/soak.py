"""`python -m benchmarks.soak`: many warm verifications, and what is left of them. Ends with 1 when something grew.

Four kinds of answer take turns: a good one, a wrong one, one whose verifier raises, and one whose verifier leaves processes and
files behind. Counts are taken twice over. *At rest*, before and after, no slot is there: what there is then is what leaked.
In between, with the slots that serve, a slot server's memory and descriptors are seen.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from assay.grading import Captured, Verdict
from assay.sandbox.namespaces import close_idle
from assay.workspaces import scratch_folder

from . import work
from .counts import Counts, count

AT_ONCE = 4
VERIFIER = """\
import os
import time


def verify(workspace):
    answer = (workspace / "answer.txt").read_text().strip()
    if answer == "raise":
        raise ValueError("the verifier was told to raise")
    if answer == "leave":
        leave()
    return float(answer in ("42", "leave"))


def leave():
    for number in range(3):
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                for fd in range(64):
                    try:
                        os.close(fd)
                    except OSError:
                        pass
                time.sleep(3600)
            os._exit(0)
        for place in ("/tmp", "/dev/shm", "/app"):
            with open(f"{place}/left-{number}", "wb") as file:
                file.write(bytes(100_000))
"""
ANSWERS: dict[str, tuple[str, float]] = {
    "good": ("42", 1.0),
    "wrong": ("41", 0.0),
    "raises": ("raise", 0.0),
    "leaves things behind": ("leave", 1.0),
}
"""What an answer says, and the reward that it must get. One that the verifier raises on gets the least: it is known to work."""
Answers = list[tuple[str, Path | Captured]]
MOST: dict[str, float] = {
    "supervisor_mb": 16,
    "servers_mb": 8,
    "descriptors": 4,
    "server_descriptors": 4,
    "threads": 2,
    "processes": 0,
    "cgroups": 0,
    "mounts": 0,
    "uids": 0,
    "scratch": 0,
}
"""By how much each may have grown. Threads and the interpreter's own memory vary; what is leased and made does not."""
_OF_SERVERS = ("servers_mb", "server_descriptors")


@dataclass(frozen=True, slots=True)
class Soaked:
    """What was counted."""

    before: Counts
    """At rest, after the warm-up."""
    during: tuple[tuple[int, Counts], ...]
    """With the slots that serve, after so many verifications."""
    after: Counts
    """At rest."""
    wrong: tuple[str, ...]
    """Verdicts that were not as expected, in words; the first ten."""
    seconds: float

    def grown(self) -> list[str]:
        """What grew by more than it may, in words."""
        said = []
        for name, most in MOST.items():
            # At rest there is no server: its memory is that of the first and the last count with some.
            first, last = (self.during[0][1], self.during[-1][1]) if name in _OF_SERVERS else (self.before, self.after)
            grown = getattr(last, name) - getattr(first, name)
            if grown > most:
                said.append(
                    f"{name.replace('_', ' ')} grew by {grown:g}, from {getattr(first, name):g} to "
                    f"{getattr(last, name):g}; it may by {most:g}"
                )
        return said


def soak(verifications: int, warm_up: int, tell: Callable[[str, Counts], None]) -> Soaked:
    """So many verifications, counted. `tell` is told each count as it is taken."""
    with scratch_folder("soak") as folder:
        own = work.make_work(folder, VERIFIER)
        plain = {
            kind: work.make_workspace(folder / kind.replace(" ", "-"), answer=f"{said}\n")
            for kind, (said, _) in ANSWERS.items()
        }
        # As both come in use: to be captured, and captured already.
        answers: Answers = [*plain.items(), *((kind, work.captured(workspace)) for kind, workspace in plain.items())]
        return asyncio.run(_soak(own, answers, verifications, warm_up, tell))


async def _soak(
    own: work.Work, answers: Answers, verifications: int, warm_up: int, tell: Callable[[str, Counts], None]
) -> Soaked:
    wrong: list[str] = []
    # One good answer alone first: from then on the verifier is known to work.
    wrong += await _verify_all(own, answers, 1, 1)
    wrong += await _verify_all(own, answers, warm_up, AT_ONCE)
    before = _at_rest()
    tell("before, at rest", before)
    began = time.monotonic()
    during = []
    done = 0
    for tenth in range(1, 11):
        upto = verifications * tenth // 10
        wrong += await _verify_all(own, answers, upto - done, AT_ONCE)
        done = upto
        work.clear()
        during.append((done, count()))
        tell(f"after {done}", during[-1][1])
    seconds = time.monotonic() - began
    after = _at_rest()
    tell("after, at rest", after)
    return Soaked(before, tuple(during), after, tuple(wrong[:10]), seconds)


def _at_rest() -> Counts:
    """With no slot, and nothing that waits to be removed."""
    # Not in a thread: what the loop does with a slot that came back, it does before or after.
    close_idle()
    work.clear()
    return count()


async def _verify_all(own: work.Work, answers: Answers, times: int, at_once: int) -> list[str]:
    """What was not as expected, in words."""
    left: Iterator[int] = iter(range(times))
    wrong = []

    async def worker() -> None:
        for number in left:
            kind, answer = answers[number % len(answers)]
            verdict = await work.verify(own, answer)
            if verdict.reward != ANSWERS[kind][1]:
                wrong.append(_unexpected(kind, verdict))

    await asyncio.gather(*(worker() for _ in range(at_once)))
    return wrong


def _unexpected(kind: str, verdict: Verdict) -> str:
    got = f"the reward {verdict.reward:g}" if verdict.reward is not None else f"no verdict: {verdict.failure}"
    return f"the answer that is {kind!r} must get the reward {ANSWERS[kind][1]:g}, and got {got}"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__)
    parser.add_argument("--verifications", type=work.positive, default=50_000, metavar="N", help="default: 50000")
    parser.add_argument("--warm-up", type=work.positive, default=400, metavar="N", help="before them (default: 400)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the counts go, too")
    options = parser.parse_args(arguments)
    if options.json is not None and not options.json.absolute().parent.is_dir():
        parser.error(f"--json {options.json}: there is no folder {options.json.absolute().parent}")
    work.check_machine()
    print(f"{'':20}" + "".join(f"{name.replace('_', ' '):>{len(name) + 2}}" for name in Counts._fields), flush=True)
    found = soak(options.verifications, options.warm_up, _print)
    print(f"{options.verifications} verifications, {AT_ONCE} at once, in {found.seconds:.0f} s", flush=True)
    grown = found.grown()
    if options.json is not None:
        told = {
            "verifications": options.verifications,
            "seconds": found.seconds,
            "before": found.before._asdict(),
            "during": [{"verifications": done, **counts._asdict()} for done, counts in found.during],
            "after": found.after._asdict(),
            "may_grow_by": MOST,
            "grown": grown,
            "unexpected": found.wrong,
        }
        options.json.write_text(json.dumps(told, indent=1))
    for said in (*grown, *found.wrong):
        print(said)
    if grown or found.wrong:
        raise SystemExit(1)
    print("nothing grew by more than it may, and every verdict was the expected one")


def _print(when: str, counts: Counts) -> None:
    print(f"{when:20}" + "".join(f"{value:>{len(name) + 2}g}" for name, value in counts._asdict().items()), flush=True)


if __name__ == "__main__":
    main()

"""The rule of evidence as a table of cases."""

import pytest

from assay.failures import FailureEvent
from assay.grading.decide import Ask, Controls, Evidence, Settled, decide
from assay.grading.observation import Observation, Run, Standing, graded, not_graded
from assay.grading.rewards import Reward
from assay.grading.verdict import CausedBy

RUN = Run(ended={"how": "exited", "code": 0, "signal": None})


def reward(value: float) -> Observation:
    return graded(Reward(value), RUN)


def crash(kind: str = "assay:missing_reward") -> Observation:
    return not_graded(Standing.AMBIGUOUS, FailureEvent(kind, "what was seen"), RUN)


def lost(started: bool = False) -> Observation:
    failure = FailureEvent("provider_unavailable", "the disk is full")
    return not_graded(Standing.INFRASTRUCTURE, failure, RUN if started else None)


def judge_failed() -> Observation:
    return not_graded(Standing.INFRASTRUCTURE, FailureEvent("judge_failed", "HTTP 500"), RUN)


def refused(kind: str) -> Observation:
    return not_graded(Standing.REFUSED, FailureEvent(kind, "no"))


def over_limit() -> Observation:
    return not_graded(Standing.AMBIGUOUS, FailureEvent("assay:workspace_limit", "too many files"))


WORKS = Controls(untouched=reward(0.0), solution=reward(1.0))
UNTOUCHED_CRASHES = Controls(untouched=crash(), solution=reward(1.0))
SOLUTION_ZERO = Controls(untouched=reward(0.0), solution=reward(0.0))
SOLUTION_ZERO_UNTOUCHED_CRASHES = Controls(untouched=crash(), solution=reward(0.0))
SOLUTION_CRASHES = Controls(untouched=reward(0.0), solution=crash())
SOLUTION_LOST = Controls(untouched=reward(0.0), solution=lost())
NO_SOLUTION = Controls(untouched=reward(0.0), solution=None)
NEGATIVE_NO_SOLUTION = Controls(untouched=reward(-1.0), solution=None)
NEGATIVE = Controls(untouched=reward(-1.0), solution=reward(2.0))


ASKS = [
    ("a crash is repeated first", crash(), Evidence(), Ask.REPEAT),
    ("a crash, repeated, asks for controls", crash(), Evidence(repeat=crash()), Ask.CONTROLS),
    ("a known verifier is still repeated once", crash(), Evidence(proven_before=True), Ask.REPEAT),
    (
        "a crash of a verifier known by another answer asks what nothing achieved is worth",
        crash(),
        Evidence(repeat=crash(), proven_before=True),
        Ask.CONTROLS,
    ),
    ("a zero asks for controls", reward(0.0), Evidence(), Ask.CONTROLS),
    ("below the floor asks for controls", reward(-0.5), Evidence(), Ask.CONTROLS),
    ("the lower bound is a floor", reward(0.2), Evidence(range_low=0.2), Ask.CONTROLS),
    ("a repeat that is a zero asks for controls", crash(), Evidence(repeat=reward(0.0)), Ask.CONTROLS),
    ("infrastructure is tried again", lost(), Evidence(tries=1), Ask.AGAIN),
    ("and again", lost(), Evidence(tries=2), Ask.AGAIN),
    ("even without controls", lost(), Evidence(tries=1, allowed=False), Ask.AGAIN),
    ("not stateless, but it never started", lost(), Evidence(stateless=False), Ask.AGAIN),
    ("a repeat that is lost is tried again", crash(), Evidence(repeat=lost(True), tries=1), Ask.AGAIN),
    ("a workspace over a cap is not repeated", over_limit(), Evidence(), Ask.CONTROLS),
]


@pytest.mark.parametrize(("case", "first", "evidence", "ask"), ASKS, ids=[c[0] for c in ASKS])
def test_decide_asks(case: str, first: Observation, evidence: Evidence, ask: Ask) -> None:
    assert decide(first, evidence) is ask


# reward (None: failed), caused_by, proven, flaky, provisional
TABLE = [
    ("above the floor", reward(0.5), Evidence(), (0.5, None, True, False, False)),
    ("above the floor without controls", reward(0.5), Evidence(allowed=False), (0.5, None, True, False, False)),
    ("zero, verifier works", reward(0.0), Evidence(controls=WORKS), (0.0, None, True, False, False)),
    (
        "zero, known to work",
        reward(0.0),
        Evidence(proven_before=True, untouched_asked=True),
        (0.0, None, True, False, False),
    ),
    ("zero, solution zero too", reward(0.0), Evidence(controls=SOLUTION_ZERO), (0.0, None, False, False, False)),
    ("zero, no solution", reward(0.0), Evidence(controls=NO_SOLUTION), (0.0, None, False, False, False)),
    ("zero, no controls", reward(0.0), Evidence(allowed=False), (0.0, None, False, False, False)),
    ("zero, not stateless", reward(0.0), Evidence(stateless=False), (0.0, None, False, False, False)),
    ("negative above negative", reward(-0.5), Evidence(controls=NEGATIVE), (-0.5, None, True, False, False)),
    ("crash, then graded", crash(), Evidence(repeat=reward(0.7)), (0.7, None, True, True, False)),
    (
        "crash, then a zero of a working verifier",
        crash(),
        Evidence(repeat=reward(0.0), controls=WORKS),
        (0.0, None, True, True, False),
    ),
    (
        "crash twice, verifier works",
        crash(),
        Evidence(repeat=crash(), controls=WORKS),
        (0.0, "submission", True, False, False),
    ),
    (
        "crash twice, untouched crashes too but the solution does not",
        crash(),
        Evidence(repeat=crash(), controls=UNTOUCHED_CRASHES),
        (0.0, "submission", True, False, False),
    ),
    (
        "crash twice, known to work",
        crash(),
        Evidence(repeat=crash(), proven_before=True, untouched_asked=True),
        (0.0, "submission", True, False, False),
    ),
    (
        "crash, known to work, nothing may be run",
        crash(),
        Evidence(allowed=False, proven_before=True, untouched_asked=True),
        (0.0, "submission", True, False, False),
    ),
    (
        "crash, known to work, but what nothing achieved is worth is not, and may not be asked",
        crash(),
        Evidence(allowed=False, proven_before=True),
        (None, "unknown", False, False, True),
    ),
    (
        "crash of a verifier known by another answer, whose controls then give the floor",
        crash(),
        Evidence(repeat=crash(), proven_before=True, controls=NEGATIVE_NO_SOLUTION),
        (-1.0, "submission", True, False, False),
    ),
    (
        "crash at the declared floor",
        crash(),
        Evidence(repeat=crash(), proven_before=True, range_low=-1.0),
        (-1.0, "submission", True, False, False),
    ),
    (
        "crash at the floor of a negative untouched environment",
        crash(),
        Evidence(repeat=crash(), controls=NEGATIVE),
        (-1.0, "submission", True, False, False),
    ),
    (
        "crash at a floor known from before",
        crash(),
        Evidence(repeat=crash(), proven_before=True, untouched_asked=True, untouched_before=-2.0),
        (-2.0, "submission", True, False, False),
    ),
    (
        "crash twice, the solution crashes too",
        crash(),
        Evidence(repeat=crash(), controls=SOLUTION_CRASHES),
        (None, "verifier", False, False, False),
    ),
    (
        "crash twice, the solution gets a zero",
        crash(),
        Evidence(repeat=crash(), controls=SOLUTION_ZERO),
        (None, "unknown", False, False, True),
    ),
    (
        "a solution's zero above a crash proves nothing",
        crash(),
        Evidence(repeat=crash(), controls=SOLUTION_ZERO_UNTOUCHED_CRASHES),
        (None, "unknown", False, False, True),
    ),
    (
        "crash twice, the solution's sandbox was lost",
        crash(),
        Evidence(repeat=crash(), controls=SOLUTION_LOST),
        (None, "unknown", False, False, True),
    ),
    (
        "crash twice, no solution",
        crash(),
        Evidence(repeat=crash(), controls=NO_SOLUTION),
        (None, "unknown", False, False, True),
    ),
    ("crash, nothing may be run", crash(), Evidence(allowed=False), (None, "unknown", False, False, True)),
    ("crash, not stateless", crash(), Evidence(stateless=False), (None, "unknown", False, False, True)),
    (
        "crash, not stateless, known to work",
        crash(),
        Evidence(stateless=False, proven_before=True, range_low=0.0),
        (0.0, "submission", True, False, False),
    ),
    (
        "a workspace over a cap, verifier works",
        over_limit(),
        Evidence(controls=WORKS),
        (0.0, "submission", True, False, False),
    ),
    (
        "a workspace over a cap, no evidence",
        over_limit(),
        Evidence(controls=NO_SOLUTION),
        (None, "unknown", False, False, True),
    ),
    ("infrastructure three times", lost(), Evidence(tries=3), (None, "infrastructure", False, False, False)),
    (
        "a failed judge was asked again already",
        judge_failed(),
        Evidence(),
        (None, "infrastructure", False, False, False),
    ),
    (
        "infrastructure after a start, not stateless",
        lost(True),
        Evidence(stateless=False),
        (None, "infrastructure", False, False, False),
    ),
    (
        "a repeat that is lost three times",
        crash(),
        Evidence(repeat=lost(True), tries=3),
        (None, "infrastructure", False, False, False),
    ),
    ("a task that cannot be read", refused("assay:task_invalid"), Evidence(), (None, None, False, False, False)),
    (
        "a workspace that cannot be read",
        refused("assay:workspace_invalid"),
        Evidence(),
        (None, None, False, False, False),
    ),
    ("no image", refused("assay:image_missing"), Evidence(), (None, "infrastructure", False, False, False)),
    ("no guarantee", refused("assay:guarantee_unmet"), Evidence(), (None, "infrastructure", False, False, False)),
]


@pytest.mark.parametrize(("case", "first", "evidence", "expected"), TABLE, ids=[c[0] for c in TABLE])
def test_decide_settles(
    case: str,
    first: Observation,
    evidence: Evidence,
    expected: tuple[float | None, str | None, bool, bool, bool],
) -> None:
    settled = decide(first, evidence)
    assert isinstance(settled, Settled)
    value = settled.reward.value if settled.reward is not None else None
    blame = settled.caused_by.value if settled.caused_by is not None else None
    assert (value, blame, settled.proven, settled.flaky, settled.provisional) == expected


def test_a_failure_is_never_a_number_and_a_number_from_nowhere_always_names_its_failure() -> None:
    for _, first, evidence, _ in TABLE:
        settled = decide(first, evidence)
        assert isinstance(settled, Settled)
        if settled.reward is None:
            assert settled.failure is not None
        if settled.caused_by is CausedBy.SUBMISSION:
            assert settled.failure is first.failure


def test_what_decides_is_bounded() -> None:
    """Whatever the observations, asking ends: each piece of evidence is asked for at most once, a lost run three times."""
    looks = [reward(1.0), reward(0.0), crash(), lost(), lost(True), judge_failed(), over_limit()]
    controls = [WORKS, SOLUTION_CRASHES, NO_SOLUTION]
    for first in looks:
        for again in looks:
            for found in controls:
                for stateless in (True, False):
                    for allowed in (True, False):
                        assert _asked(first, again, found, stateless, allowed) <= 7


def _asked(first: Observation, again: Observation, found: Controls, stateless: bool, allowed: bool) -> int:
    repeat: Observation | None = None
    asked_controls: Controls | None = None
    tries = 1
    for asked in range(20):
        evidence = Evidence(stateless, allowed, tries, repeat, asked_controls)
        decision = decide(first, evidence)
        if isinstance(decision, Settled):
            return asked
        if decision is Ask.CONTROLS:
            assert allowed
            assert stateless
            asked_controls = found
        elif decision is Ask.REPEAT:
            assert allowed
            assert stateless
            repeat, tries = again, 1
        elif repeat is not None:
            repeat, tries = again, tries + 1
        else:
            first, tries = again, tries + 1
    raise AssertionError("decide never settled")

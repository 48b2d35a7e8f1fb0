"""The ratios that count, what they are to be, and the table of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

FLOOR = "fork + wait of a bare interpreter"
BWRAP_PYTHON = "bwrap, python3 -I -c pass"
BWRAP_RUNNER = "bwrap, the runner and the same verifier"
COLD = "grade(), cold"
WARM = "grade(), warm, back to back"
PARKED = "grade(), warm, 50 ms apart"
FILES200 = "grade(), warm, 200 files"
MB100 = "grade(), warm, 100 MB"
HTTP = "over HTTP, keyed and stored"
BUSY_P99 = "grade(), warm, both cores busy, p99"
BUSY_MEDIAN = "grade(), warm, both cores busy, median"
RATE_2 = "grade(), warm, a second, two cores"
RATE_1 = "grade(), warm, a second, one core"
FLOOR_RATE_2 = "fork + wait, a second, two cores"
FLOOR_RATE_1 = "fork + wait, a second, one core"
REWARDKIT = "rewardkit, two trivial checks"
HARBOR = "Harbor, verifier phase of a trial"
TRUE = "namespaces, true in a sandbox that is there"
WHOLE_TRUE = "namespaces, true in a sandbox of its own"
BWRAP_TRUE = "setpriv + bwrap, true"
RATES = frozenset({RATE_1, RATE_2, FLOOR_RATE_1, FLOOR_RATE_2})
"""Of these more is better; all others are seconds."""


class Ratio(NamedTuple):
    """One median by another."""

    name: str
    above: str
    below: str
    least: float | None = None
    most: float | None = None

    def value(self, medians: Mapping[str, float]) -> float | None:
        """None when one of them was not measured."""
        if self.above not in medians or self.below not in medians:
            return None
        return medians[self.above] / medians[self.below]

    @property
    def target(self) -> str:
        """As it is printed."""
        if self.least is not None:
            return f">= {self.least:g}"
        return f"<= {self.most:g}" if self.most is not None else ""

    def judged(self, value: float | None) -> str:
        """Whether the target is met, in a word."""
        if value is None:
            return "not measured"
        if not self.target:
            return ""
        met = (self.least is None or value >= self.least) and (self.most is None or value <= self.most)
        return "met" if met else "missed"


SPECIFIED = (
    Ratio("bwrap_runner_over_warm", BWRAP_RUNNER, WARM, least=7),
    Ratio("bwrap_python_over_warm", BWRAP_PYTHON, WARM, least=3.5),
    Ratio("warm_over_floor", WARM, FLOOR, most=9),
    Ratio("parked_over_floor", PARKED, FLOOR, most=4),
    Ratio("warm_p99_over_median", BUSY_P99, BUSY_MEDIAN, most=3),
    Ratio("two_core_scaling", RATE_2, RATE_1, least=1.5),
    Ratio("floor_two_core_scaling", FLOOR_RATE_2, FLOOR_RATE_1, least=1.5),
    Ratio("files200_over_small", FILES200, WARM, most=1.2),
    Ratio("mb100_over_small", MB100, WARM, most=1.3),
    Ratio("http_over_warm", HTTP, WARM, most=2),
    Ratio("cold_over_bwrap_runner", COLD, BWRAP_RUNNER, most=1.0),
    Ratio("rewardkit_over_warm", REWARDKIT, WARM, least=300),
    Ratio("harbor_phase_over_warm", HARBOR, WARM, least=6),
)
"""Those of the specification, each with its target."""
LAUNCHER = (
    Ratio("launcher_true_over_bwrap_true", TRUE, BWRAP_TRUE, most=0.6),
    Ratio("launcher_whole_true_over_bwrap_true", WHOLE_TRUE, BWRAP_TRUE),
)
"""What starting any command costs, beside bubblewrap."""
ALL = SPECIFIED + LAUNCHER


def table(shown: Sequence[Ratio], medians: Mapping[str, float], notes: Mapping[str, str]) -> str:
    """Ratios with their targets. `notes`: why something was not measured, by its name."""
    lines = [f"{'ratio':37} {'value':>8}  {'target':8} "]
    for ratio in shown:
        value = ratio.value(medians)
        printed = f"{value:.2f}" if value is not None else "-"
        why = notes.get(ratio.above) or notes.get(ratio.below) if value is None else None
        judged = f"{ratio.judged(value)}: {why}" if why else ratio.judged(value)
        lines.append(f"{ratio.name:37} {printed:>8}  {ratio.target:8} {judged}".rstrip())
    return "\n".join(lines)


def measured(medians: Mapping[str, float]) -> str:
    """What the ratios are made of."""
    lines = []
    for name, median in medians.items():
        shown = f"{median:.0f} /s" if name in RATES else f"{median * 1e3:.2f} ms"
        lines.append(f"  {name:45} {shown:>12}")
    return "\n".join(lines)

"""How long to wait before the next attempt: full jitter, the same for the verify call and the judge call."""

from __future__ import annotations

import random as _random
from collections.abc import Callable
from typing import Final

FIRST_S: Final = 0.5
LONGEST_S: Final = 8.0


def retry_wait_s(attempt: int, random: Callable[[], float] = _random.random) -> float:
    """Seconds to wait after failed attempt `attempt` (from 1): uniform in [0, min(8, 0.5 · 2^(attempt − 1))].

    `random` gives numbers in [0, 1). The whole interval is drawn from, so that clients whose calls were cut by the same
    restart do not come back together.
    """
    longest = min(LONGEST_S, FIRST_S * 2.0 ** min(attempt - 1, 10))
    return random() * longest

"""One verification: prepare, run, read, decide.

Only this room decides whether something is graded or failed; nobody else turns a fault into a number.
"""

from .arguments import WrongArgument
from .checking import Check, check_task
from .decide import Ask, Controls, Evidence, Settled, decide
from .grade import failed_verdict, grade, grade_sync, lost_verdict
from .job import Captured
from .judging import AskJudge, Judgement, NoSuchJudge
from .observation import Observation, Standing
from .rewards import InvalidReward, MissingReward, Reward, RewardRule, read_reward
from .settling import Progress
from .state import state_dir
from .verdict import RULE, CausedBy, Timing, Verdict

__all__ = [
    "RULE",
    "Ask",
    "AskJudge",
    "Captured",
    "CausedBy",
    "Check",
    "Controls",
    "Evidence",
    "InvalidReward",
    "Judgement",
    "MissingReward",
    "NoSuchJudge",
    "Observation",
    "Progress",
    "Reward",
    "RewardRule",
    "Settled",
    "Standing",
    "Timing",
    "Verdict",
    "WrongArgument",
    "check_task",
    "decide",
    "failed_verdict",
    "grade",
    "grade_sync",
    "lost_verdict",
    "read_reward",
    "state_dir",
]

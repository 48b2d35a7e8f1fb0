"""What is kept: answers, workspaces, verdicts, attempts, evidence.

A run's rows are in a `Store` (`open_store`), which commands write to; counts and means are read with `totals`,
`rewards_by_task`, `metric_means` and `histogram`, rows with `identities`, `outcomes`, `answers`, `exported` and `changes`, one
answer with `find_answer`, `find_trajectory`, `verdicts_of` and `attempts_at`, all of `store.database`. Workspaces are in
`Snapshots`. `open_database` is for rows of another form (`Form`).
"""

from .choice import FIELDS, Choice, choice_of
from .chosen import require_tasks
from .claims import Need
from .database import Database, open_database
from .faults import StoreUnusable
from .history import attempts_at, find_answer, find_trajectory, verdicts_of
from .holding import StoreHeld
from .migrations import Form
from .mixing import GradedBy, mixed_tasks
from .rows import Answer, Attempt, Change, Claim, Command, Exported, Identity, Kept, KeptVerdict, Outcome, Run
from .snapshots import Snapshot, Snapshots
from .states import BUDGET, STATES, is_recoverable
from .store import LEASE_S, Store, open_store
from .streams import answers, changes, exported, identities, outcomes
from .summary import (
    Histogram,
    Masked,
    MetricMean,
    TaskRewards,
    Totals,
    histogram,
    metric_means,
    rewards_by_task,
    totals,
)

__all__ = [
    "BUDGET",
    "FIELDS",
    "LEASE_S",
    "STATES",
    "Answer",
    "Attempt",
    "Change",
    "Choice",
    "Claim",
    "Command",
    "Database",
    "Exported",
    "Form",
    "GradedBy",
    "Histogram",
    "Identity",
    "Kept",
    "KeptVerdict",
    "Masked",
    "MetricMean",
    "Need",
    "Outcome",
    "Run",
    "Snapshot",
    "Snapshots",
    "Store",
    "StoreHeld",
    "StoreUnusable",
    "TaskRewards",
    "Totals",
    "answers",
    "attempts_at",
    "changes",
    "choice_of",
    "exported",
    "find_answer",
    "find_trajectory",
    "histogram",
    "identities",
    "is_recoverable",
    "metric_means",
    "mixed_tasks",
    "open_database",
    "open_store",
    "outcomes",
    "require_tasks",
    "rewards_by_task",
    "totals",
    "verdicts_of",
]

"""What is kept: answers, workspaces, verdicts, attempts, evidence."""

from .database import Database, open_database
from .faults import StoreUnusable
from .migrations import Form
from .snapshots import Snapshot, Snapshots

__all__ = ["Database", "Form", "Snapshot", "Snapshots", "StoreUnusable", "open_database"]

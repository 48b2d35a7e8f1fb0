"""What is kept: answers, workspaces, verdicts, attempts, evidence."""

from .database import Database, open_database
from .faults import StoreUnusable
from .migrations import Form

__all__ = ["Database", "Form", "StoreUnusable", "open_database"]

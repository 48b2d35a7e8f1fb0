"""What a regrade changed, row by row and counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from assay.answers import Change, Database, changes

KINDS: Final = ("same", "higher", "lower", "now graded", "now failed", "failed otherwise", "first")
"""What can become of a row."""


@dataclass
class Changes:
    """Counts of a command's changes; complete once they are exhausted."""

    counts: Counter[str] = field(default_factory=Counter)
    verifiers: Counter[str] = field(default_factory=Counter)
    """Rows of the command by the digest of the verifier that graded them."""
    verifiers_before: Counter[str] = field(default_factory=Counter)
    """The same of the verdicts that they replaced."""
    kept_back: int = 0
    """Failed verdicts that did not become the current ones: a graded one of the same verifier stays."""

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "counts": {kind: self.counts[kind] for kind in KINDS},
            "verifiers": dict(self.verifiers),
            "verifiers_before": dict(self.verifiers_before),
            "kept_back": self.kept_back,
        }


def changed_rows(database: Database, command_id: str, found: Changes) -> Iterator[tuple[str, Change]]:
    """Every row that a command changed, with the kind of change, streamed; `found` is filled in on the way. Blocks."""
    for change in changes(database, command_id):
        kind = kind_of(change)
        found.counts[kind] += 1
        found.verifiers[change.after["verifier_digest"] or "none"] += 1
        if change.before is not None:
            found.verifiers_before[change.before["verifier_digest"] or "none"] += 1
        found.kept_back += not change.current
        if kind != "same":
            yield kind, change


def kind_of(change: Change) -> str:
    """One of `KINDS`."""
    before, after = change.before, change.after
    if before is None:
        return "first"
    was, now = before["reward"], after["reward"]
    if was is None and now is None:
        return "same" if before["kind"] == after["kind"] else "failed otherwise"
    if was is None:
        return "now graded"
    if now is None:
        return "now failed"
    if now == was:
        return "same"
    return "higher" if now > was else "lower"

"""Many answers: agents work, answers are kept, verified, recovered, verified again and summed up.

A run is in a folder (`find_place`, `make_place`); `open_run` opens it to write, `read_run` to read. `collect`, `recover` and
`regrade` work on it, each with a `Setting`; `summarise`, `compare` and `export` read it.
"""

from .catalogue import Catalogue, load_catalogue
from .changing import Changes, changed_rows
from .commands import Done, Setting, collect, recover, regrade
from .comparing import Comparison, Difference, compare
from .exporting import Export, export
from .left import Agent, Left
from .offers import Problem
from .place import OpenRun, Place, find_place, make_place, open_run, read_run
from .replaying import Replayed
from .reporting import Report, masked_by_kind, summarise
from .settings import AGENTS, AgentSettings, GradingSettings, RunSettings
from .tally import Happened, Tally, Watch

__all__ = [
    "AGENTS",
    "Agent",
    "AgentSettings",
    "Catalogue",
    "Changes",
    "Comparison",
    "Difference",
    "Done",
    "Export",
    "GradingSettings",
    "Happened",
    "Left",
    "OpenRun",
    "Place",
    "Problem",
    "Replayed",
    "Report",
    "RunSettings",
    "Setting",
    "Tally",
    "Watch",
    "changed_rows",
    "collect",
    "compare",
    "export",
    "find_place",
    "load_catalogue",
    "make_place",
    "masked_by_kind",
    "open_run",
    "read_run",
    "recover",
    "regrade",
    "summarise",
]

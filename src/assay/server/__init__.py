"""A verifier behind HTTP: `assay serve`.

`serve(Settings(dataset))` is the whole of it. A request is read strictly, its work is begun once for each idempotency key
however often it comes, and its verdict is on disk before anybody is told.
"""

from .catalogue import Chosen
from .grader import Graded, Grader, SandboxGrader
from .limits import Limits
from .running import Settings, serve

__all__ = ["Chosen", "Graded", "Grader", "Limits", "SandboxGrader", "Settings", "serve"]

"""What travels into the sandbox: the runner, and the helpers that a verifier imports.

Standard library only, Python 3.8 and newer, and nothing else of Assay: the files of this folder are copied beside a task's
tests (`assay.verifiers.vendored`), where `from assay.verifiers import …` means that copy.
"""

from .checks import check
from .errors import CannotGrade, JudgeUnparseable
from .files import file_exists, read_json, read_text, text_file_equals
from .functions import SubmissionFailed, call_function
from .judging import ask_judge
from .submission import Completed, run_submission

__all__ = [
    "CannotGrade",
    "Completed",
    "JudgeUnparseable",
    "SubmissionFailed",
    "ask_judge",
    "call_function",
    "check",
    "file_exists",
    "read_json",
    "read_text",
    "run_submission",
    "text_file_equals",
]

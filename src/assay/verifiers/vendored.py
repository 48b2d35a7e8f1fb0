"""The files that go into a tests folder so that a Python verifier runs there without Assay being installed."""

import hashlib
from pathlib import Path

RUNNER_VERSION: str
"""A digest of `vendored_files()`, `sha256:…`: it changes when anything that runs beside the verifier does. Computed when
it is first asked for."""

_HELPERS = (
    "__init__.py",
    "alone.py",
    "asking.py",
    "calling.py",
    "checks.py",
    "delivery.py",
    "errors.py",
    "files.py",
    "functions.py",
    "imports.py",
    "judging.py",
    "rewards.py",
    "submission.py",
)

_ALIAS = b'''"""The helpers under the name that existing verifiers import them by."""

from assay.verifiers import *  # noqa: F403
from assay.verifiers import __all__  # noqa: F401
'''


def vendored_files() -> "dict[str, bytes]":
    """The content of each file by its path below `.ng/`, the runner as `run_verifier.py`; the same on every machine."""
    here = Path(__file__).parent
    files = {f"assay/verifiers/{name}": (here / name).read_bytes() for name in _HELPERS}
    files["assay/__init__.py"] = b""
    files["nemo_gym/__init__.py"] = b""
    files["nemo_gym/verifiers/__init__.py"] = _ALIAS
    files["run_verifier.py"] = (here / "runner.py").read_bytes()
    return dict(sorted(files.items()))


def __getattr__(name: str) -> str:
    if name != "RUNNER_VERSION":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    digest = hashlib.sha256()
    for path, content in vendored_files().items():
        digest.update(f"{path}\0{len(content)}\0".encode())
        digest.update(content)
    version = f"sha256:{digest.hexdigest()}"
    globals()["RUNNER_VERSION"] = version
    return version

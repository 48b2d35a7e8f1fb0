"""The runner and its helpers compiled ahead, for sandboxes in which nobody else can have laid them.

To compile them takes an interpreter longer than to read a small verifier's answer. An interpreter of another kind or
version than the host's own compiles them itself, as the published `test.sh` always does.
"""

import marshal
from functools import cache
from importlib.util import MAGIC_NUMBER

from .vendored import vendored_files

HOME = "/tests/.ng"
"""Where sandboxes see the runner's folder."""
COMPILED = "compiled"
"""The name of the file, in the runner's folder."""

START = """\
import marshal, sys
_home, sys.argv[1:2] = sys.argv[1], []
with open(_home + "/compiled", "rb") as _file:
    _data = _file.read()
_same = _data.startswith(sys.modules["_frozen_importlib_external"].MAGIC_NUMBER)
ASSAY_COMPILED = marshal.loads(_data[4:]) if _same else {}
__file__ = _home + "/run_verifier.py"
if _same:
    _code = marshal.loads(ASSAY_COMPILED[__file__])
else:
    with open(__file__, "rb") as _file:
        _code = compile(_file.read(), __file__, "exec")
exec(_code)
"""
"""What the interpreter runs (`-c`) in place of `run_verifier.py`, with the runner's folder before its arguments.

It imports nothing that is not loaded: `sys.path` is still as the image has it.
"""


@cache
def compiled_files(home: str = HOME) -> bytes:
    """The content of `COMPILED`: this interpreter's magic number, then each file's marshalled code by its path in `home`."""
    codes = {}
    for name, source in vendored_files().items():
        path = f"{home}/{name}"
        codes[path] = marshal.dumps(compile(source, path, "exec", dont_inherit=True, optimize=0))
    return MAGIC_NUMBER + marshal.dumps(codes)

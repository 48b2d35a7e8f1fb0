"""The agent's own root filesystem in shared mode: small, since every grading copies it whole.

It has the programs and the part of Python's standard library (in one archive) that the attacks and their verifiers use,
nothing else; what needs pytest or numpy gets the root folder that has it.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import assay.verifiers
from filesystem import PASSWD, linked_with, make_filesystem

PYTHON = Path("/usr/bin/python3")
PROGRAMS = ("date", "diff", "head", "hostname", "mkfifo", "seq", "sort", "tail", "tee", "timeout")
"""Beside those of `make_filesystem`."""
ETC = {
    # A verifier of no user of its own is 1000.
    "passwd": f"{PASSWD}user:x:1000:1000::/home/user:/bin/bash\nnobody:x:65534:65534::/nonexistent:/bin/false\n",
    "hosts": "127.0.0.1 localhost\n::1 localhost\n",
    "nsswitch.conf": "passwd: files\nhosts: files\n",
}
LAZY = "encodings.cp437 encodings.idna encodings.latin_1 encodings.utf_8_sig http.server"
"""Modules that others import when they are used, beside those of the packages taken whole."""
WHOLE = "concurrent.futures multiprocessing xml.etree"
SOURCES = (Path(__file__).parent, Path(assay.verifiers.__file__).parent)
"""Whose imports are wanted, those in the texts of attacks included."""
IMPORT = re.compile(r"(?:^|[;'\"\\n ])(?:import|from) +([a-z_0-9., ]+)", re.MULTILINE)
_LIBRARY = f"""
import importlib, importlib.util, marshal, pkgutil, sys, zipfile
for name in ("ssl", "_hashlib"):
    sys.modules[name] = None
archive, *names = sys.argv[1:]
for package in {WHOLE.split()!r}:
    found = importlib.import_module(package)
    names += [package + "." + name for _, name, _ in pkgutil.iter_modules(found.__path__)]
for name in names:
    try:
        importlib.import_module(name)
    except ImportError:
        pass
with zipfile.ZipFile(archive, "w") as library:
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None) or ""
        if file.endswith(".so"):
            print(file)
        elif file.endswith(".py") and name not in ("__main__", "sitecustomize"):
            with open(file, "rb") as source:
                code = compile(source.read(), file, "exec", dont_inherit=True)
            path = name.replace(".", "/") + ("/__init__" if hasattr(module, "__path__") else "")
            library.writestr(path + ".pyc", importlib.util.MAGIC_NUMBER + bytes(12) + marshal.dumps(code))
print(sys.modules["os"].__file__)
"""
"""Run by the base's own Python: writes what modules written in Python are to the archive that it looks into first, and
prints the files of the others, and of the one by which it knows its library."""


def make_agents_filesystem(folder: Path) -> Path:
    """A root filesystem with Python, as a small image and an agent that did nothing would have left it."""
    make_filesystem(folder)
    for name, text in ETC.items():
        (folder / "etc" / name).write_text(text)
    for program in map(shutil.which, PROGRAMS):
        if program is not None:
            _take(folder, Path(program))
    real = PYTHON.resolve()
    _take(folder, real)
    if real.name != PYTHON.name:
        (folder / "usr/bin/python3").symlink_to(real.name)
    (folder / "usr/lib").mkdir(exist_ok=True)
    archive = folder / "usr/lib" / f"{real.name.replace('.', '')}.zip"
    command = [PYTHON, "-I", "-c", _LIBRARY, archive, *imported()]
    for line in subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines():
        _take(folder, Path(line))
    return folder


def imported() -> list[str]:
    """Names of modules of the standard library, as it is here, that the attacks and their verifiers may import."""
    text = "\n".join(path.read_text() for folder in SOURCES for path in sorted(folder.glob("*.py")))
    names = {name.split()[0] for found in IMPORT.findall(text) for name in found.split(",") if name.split()}
    return sorted(LAZY.split() + [name for name in names if name.partition(".")[0] in sys.stdlib_module_names])


def _take(folder: Path, file: Path) -> None:
    """Copy a file of this machine's with the time that its compiled form names, and what it is linked with."""
    real = file.resolve()
    target = folder / str(real).lstrip("/")
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(real, target)
    if re.search(r"\.so(\.|$)", real.name) or (file.parent.name == "bin" and _is_elf(real)):
        for library in map(Path, linked_with(real)):
            place = folder / str(library).lstrip("/")
            if not place.exists():
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(library.resolve(), place)


def _is_elf(file: Path) -> bool:
    with file.open("rb") as opened:
        return opened.read(4) == b"\x7fELF"

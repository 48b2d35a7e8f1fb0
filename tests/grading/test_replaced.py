"""Which of the files that decide a verdict in shared mode are not the image's."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from assay.grading.replaced import replaced_programs
from ordinary_user import REPOSITORY, run_as_ordinary_user

FILES = {
    "usr/bin/bash": "shell",
    "usr/bin/dash": "small",
    "usr/bin/env": "env",
    "usr/bin/python3.11": "python",
    "usr/lib/x86_64-linux-gnu/libc.so.6": "libc",
    "usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2": "loader",
    "usr/lib/python3/json.py": "json",
    "etc/passwd": "root",
}
LINKS = {
    "bin": "usr/bin",
    "lib": "usr/lib",
    "lib64": "usr/lib64",
    "usr/bin/python3": "python3.11",
    "usr/bin/sh": "/bin/dash",
    "usr/lib64/ld-linux-x86-64.so.2": "/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2",
}


def make(root: Path) -> Path:
    for name, text in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
        (root / name).chmod(0o755)
    for name, target in LINKS.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).symlink_to(target)
    return root


def _write(name: str, text: str = "evil") -> Callable[[Path], None]:
    def change(root: Path) -> None:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).unlink(missing_ok=True)
        (root / name).write_text(text)
        (root / name).chmod(0o755)

    return change


def _link(name: str, target: str) -> Callable[[Path], None]:
    def change(root: Path) -> None:
        (root / name).unlink(missing_ok=True)
        (root / name).symlink_to(target)

    return change


def _fifo(root: Path) -> None:
    (root / "usr/bin/bash").unlink()
    os.mkfifo(root / "usr/bin/bash")


CHANGES: dict[str, tuple[Callable[[Path], None], tuple[str, ...]]] = {
    "nothing": (lambda root: None, ()),
    "what decides nothing": (_write("etc/passwd"), ()),
    "the shell": (_write("usr/bin/bash"), ("/bin/bash",)),
    "the shell, of the same size": (_write("usr/bin/bash", "SHELL"), ("/bin/bash",)),
    "the shell is no program any more": (lambda root: (root / "usr/bin/bash").chmod(0o644), ("/bin/bash",)),
    "the interpreter": (_write("usr/bin/python3.11"), ("/bin/python3",)),
    "the interpreter's name": (_link("usr/bin/python3", "/app/python"), ("/bin/python3",)),
    "an interpreter that comes first": (_write("usr/local/bin/python3"), ("/usr/local/bin/python3",)),
    "the loader": (_write("usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2"), ("/lib64/ld-linux-x86-64.so.2",)),
    "the C library": (_write("usr/lib/x86_64-linux-gnu/libc.so.6"), ("/lib/x86_64-linux-gnu/libc.so.6",)),
    "preloaded libraries": (_write("etc/ld.so.preload", "/app/evil.so\n"), ("/etc/ld.so.preload",)),
    "a link in circles": (_link("usr/bin/env", "env"), ("/bin/env",)),
    "a link out": (_link("usr/bin/env", "../../../../../../usr/bin/env"), ("/bin/env",)),
    "a FIFO": (_fifo, ("/bin/bash",)),
    "no shell": (lambda root: (root / "usr/bin/bash").unlink(), ("/bin/bash",)),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_decides_is_compared(tmp_path: Path, name: str) -> None:
    change, expected = CHANGES[name]
    image, root = make(tmp_path / "image"), make(tmp_path / "root")
    change(root)
    assert replaced_programs(root, image) == expected


def test_an_ordinary_user_compares_what_the_agent_let_it_read() -> None:
    code = (
        "import sys; from pathlib import Path; sys.path.insert(0, sys.argv[1]); from grading.test_replaced import make\n"
        "from assay.grading.replaced import replaced_programs as found\n"
        "image, root = make(Path('image')), make(Path('root'))\n"
        "(root / 'usr/bin/env').chmod(0o311); print(found(root, image))\n"
        "(root / 'usr/bin').chmod(0); print(found(root, image)); (root / 'usr/bin').chmod(0o755)\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        command = [sys.executable, "-B", "-c", code, str(REPOSITORY / "tests")]
        done = run_as_ordinary_user(command, cwd=folder, env={"PYTHONPATH": os.environ.get("PYTHONPATH", "")})
    assert done.stdout.decode().splitlines() == [
        "('/bin/env',)",
        "('/bin/bash', '/bin/env', '/bin/python3', '/bin/sh')",
    ], done.stderr.decode()

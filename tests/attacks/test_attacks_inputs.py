"""Attacks on what a verifier reads, unpacks and compares: 39 and 43."""

from __future__ import annotations

import functools
import io
import os
import socket
import tarfile
import zipfile
import zlib
from dataclasses import replace
from pathlib import Path

import pytest

from attacks.harness import SHORT_S, Arena, Attack
from attacks.test_attacks_host import MEMORY
from attacks.verifiers import EQUALS, RIGHT

UNPACKS = {
    "verifier.py": """
import shutil, tarfile, zipfile

def verify(workspace):
    if (workspace / "a.zip").exists():
        with zipfile.ZipFile(workspace / "a.zip") as archive:
            archive.extractall("/tmp/out")
    else:
        with tarfile.open(workspace / "a.tar") as archive:
            archive.extractall("/tmp/out")
    return open("/tmp/out/answer.txt").read() == "42"
"""
}


def _zip(contents: dict[str, bytes]) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, content in contents.items():
            archive.writestr(name, content)
    return made.getvalue()


def _tar(*members: tuple[str, bytes, str | None]) -> bytes:
    """Members: name, content, and for a link its target ("device" for one)."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        for name, content, target in members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            member.mode = 0o4777
            if target == "device":
                member.type, member.devmajor, member.devminor, member.size = tarfile.CHRTYPE, 1, 5, 0
            elif target is not None:
                member.type, member.linkname, member.size = tarfile.SYMTYPE, target, 0
            archive.addfile(member, io.BytesIO(content) if member.isreg() else None)
    return made.getvalue()


def special_files(folder: Path) -> None:
    """A workspace that holds what no file is."""
    (folder / "answer.txt").write_text("41\n")
    os.mkfifo(folder / "fifo")
    # Bound by a short relative name: the path of a socket may have 107 bytes.
    here = os.open(folder, os.O_PATH)
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(f"/proc/self/fd/{here}/socket")
    os.close(here)
    if os.geteuid() == 0:
        os.mknod(folder / "zero", 0o020666, os.makedev(1, 5))
        os.mknod(folder / "disk", 0o060666, os.makedev(254, 0))
    (folder / "setuid").write_text("#!/bin/sh\n")
    (folder / "setuid").chmod(0o6755)


@functools.cache
def _large_zip() -> bytes:
    return _zip({f"{n}": bytes(200 << 20) for n in range(3)} | {"answer.txt": b"41"})


def zip_bomb(folder: Path) -> None:
    """Made where it is wanted: it takes seconds."""
    (folder / "a.zip").write_bytes(_large_zip())


ARCHIVES = [
    Attack(
        39,
        "a zip bomb",
        UNPACKS,
        {"a.zip": _zip({"answer.txt": b"42"})},
        zip_bomb,
        toml=MEMORY,
    ),
    Attack(
        39,
        "a tar that leaves its folder",
        UNPACKS,
        {"a.tar": _tar(("answer.txt", b"42", None))},
        {
            "a.tar": _tar(
                ("../../logs/verifier/reward.json", b"1", None),
                ("/logs/verifier/reward.txt", b"1", None),
                ("../../tests/verifier.py", b"", None),
                ("answer.txt", b"41", None),
            )
        },
    ),
    Attack(
        39,
        "links and devices in a tar",
        UNPACKS,
        {"a.tar": _tar(("answer.txt", b"42", None))},
        {"a.tar": _tar(("out", b"", "/logs/verifier"), ("out/reward.json", b"1", None), ("zero", b"", "device"))},
    ),
    Attack(39, "special files in the workspace", EQUALS, RIGHT, special_files),
]

MATCHES = {
    "verifier.py": """
import re

def verify(workspace):
    return bool(re.fullmatch(r"(a+)+b", (workspace / "answer.txt").read_text().strip()))
"""
}
PARSES_XML = {
    "verifier.py": """
from xml.etree import ElementTree

def verify(workspace):
    return ElementTree.parse(workspace / "answer.xml").getroot().text == "42"
"""
}
LAUGHS = "<!DOCTYPE a [" + "".join(
    f'<!ENTITY a{n} "{f"&a{n - 1};" * 10}">' if n else '<!ENTITY a0 "ha">' for n in range(12)
)
EVALUATES = {
    "verifier.py": "import ast\n\ndef verify(workspace):\n"
    "    return ast.literal_eval((workspace / 'answer.txt').read_text()) == 42\n"
}
INFLATES = {
    "verifier.py": "import zlib\n\ndef verify(workspace):\n"
    "    return zlib.decompress((workspace / 'a.z').read_bytes()) == b'42'\n"
}
IMAGES = {
    "verifier.py": """
import struct

def verify(workspace):
    width, height = struct.unpack(">II", (workspace / "a.png").read_bytes()[16:24])
    pixels = bytearray(width * height * 4)
    return len(pixels) == 16
"""
}
COMPUTES = {
    "verifier.py": "def verify(workspace):\n    return eval((workspace / 'answer.txt').read_text(), {'__builtins__': {}}) == 42\n"
}
HEADER = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"


@functools.cache
def _deflated(mebibytes: int) -> bytes:
    packer = zlib.compressobj(1)
    return b"".join(packer.compress(bytes(1 << 20)) for _ in range(mebibytes)) + packer.flush()


def inflation(folder: Path) -> None:
    """A gibibyte, in little. Made where it is wanted: it takes a second."""
    (folder / "a.z").write_bytes(_deflated(1024))


COMPARISONS = [
    Attack(
        43,
        "a regular expression",
        MATCHES,
        {"answer.txt": "aaab"},
        {"answer.txt": "a" * 60},
        timeout_s=SHORT_S,
        kinds=("assay:verifier_timeout",),
    ),
    Attack(
        43,
        "billion laughs",
        PARSES_XML,
        {"answer.xml": "<a>42</a>"},
        {"answer.xml": f"{LAUGHS}]><a>&a11;</a>"},
        timeout_s=30,
        toml=MEMORY,
    ),
    Attack(
        43, "depth", EVALUATES, RIGHT, {"answer.txt": "(" * 100_000}, kinds=("verifier_error", "assay:missing_reward")
    ),
    Attack(43, "a long number", EVALUATES, RIGHT, {"answer.txt": "9" * 1_000_000}, kinds=("verifier_error",)),
    Attack(
        43,
        "a sum that never ends",
        COMPUTES,
        {"answer.txt": "6 * 7"},
        {"answer.txt": "9 ** 9 ** 9"},
        timeout_s=SHORT_S,
        kinds=("assay:verifier_timeout", "assay:memory_limit", "verifier_error"),
        toml=MEMORY,
    ),
    Attack(
        43,
        "the size of an image",
        IMAGES,
        {"a.png": HEADER + bytes([0, 0, 0, 2, 0, 0, 0, 2])},
        {"a.png": HEADER + bytes([0, 0, 255, 255, 0, 0, 255, 255])},
        toml=MEMORY,
    ),
    Attack(43, "inflation", INFLATES, {"a.z": zlib.compress(b"42")}, inflation, toml=MEMORY),
]


DATA = "data that the verifier reads, and no program: where it lies makes no difference"
ATTACKS = [*ARCHIVES, *(replace(attack, same=DATA) for attack in COMPARISONS)]


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.id)
async def test_the_verdict_is_honest(arena: Arena, attack: Attack) -> None:
    await arena.fight(attack)

"""`assay rootfs`, and grading on what it made: images with another Python, or with none."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from archives import Item, docker, file, folder, hybrid, oci, symlink, tar
from assay.grading import grade
from assay.images import import_image, remove_image
from commands import ASSAY, Ended, assay, inline, make_task
from interpreters import Python, pythons

SMALL = [folder("usr/bin"), file("usr/bin/sh", "#!", 0o755)]
LEFT_OUT = {"test", "tests", "idlelib", "ensurepip", "tkinter", "lib2to3", "site-packages", "__pycache__"}
PLACE = "opt/python"
FORMS = {"oci": oci, "docker": docker, "hybrid": hybrid}


def run(*arguments: str | Path, state: Path) -> Ended:
    return inline("rootfs", *arguments, state=state)


def test_import_list_rm(tmp_path: Path) -> None:
    archive, state = tmp_path / "image.tar", tmp_path / "state"
    archive.write_bytes(oci([tar([*SMALL, Item("dev/null", tarfile.CHRTYPE)])], {"WorkingDir": "/srv"}))
    code, out, _ = run("import", archive, "org/name:1.0", state=state)
    assert code == 0
    assert out.startswith("imported org/name:1.0: 1 layer, 5 entries")
    assert "workdir  /srv" in out
    assert "dropped  1 device or FIFO: dev/null" in out
    code, out, _ = run("list", "--json", state=state)
    (line,) = out.splitlines()
    image = json.loads(line)
    assert (code, image["name"], image["format"], image["workdir"]) == (0, "org/name:1.0", "oci", "/srv")
    assert image["folder"] == str(state / "rootfs" / "org" / "name:1.0")
    code, out, _ = run("list", state=state)
    assert (code, out.split()[:2]) == (0, ["org/name:1.0", "oci"])
    assert run("rm", "org/name:1.0", "--json", state=state)[:2] == (0, '{"removed": "org/name:1.0"}\n')
    assert run("list", state=state) == (0, "", "no images; `assay rootfs import ARCHIVE NAME` makes one\n")


def test_import_prints_one_object(tmp_path: Path) -> None:
    archive = tmp_path / "image.tar.gz"
    archive.write_bytes(docker([tar(SMALL)], {"Env": ["A=b"]}))
    code, image, _ = assay("rootfs", "import", archive, "x", "--json", state=tmp_path / "state")
    assert (code, image["name"], image["env"], image["format"]) == (0, "x", {"A": "b"}, "docker")


WRONG: list[tuple[Sequence[str], str]] = [
    (["import", "{no}", "x"], "cannot be opened: No such file"),
    (["import", "{folder}", "x"], "tar -C"),
    (["import", "{text}", "x"], "no tar header"),
    (["import", "{good}", "../x"], "cannot name an image"),
    (["import", "{good}", "host"], "another name"),
    (["rm", "../x"], "cannot name an image"),
    (["rm", "x"], "there is no image 'x'"),
]


@pytest.mark.parametrize(("arguments", "said"), WRONG)
def test_what_is_wrong_is_said(tmp_path: Path, arguments: Sequence[str], said: str) -> None:
    places = {name: tmp_path / name for name in ("no", "folder", "text", "good")}
    places["folder"].mkdir()
    places["text"].write_text("text" * 1000)
    places["good"].write_bytes(tar(SMALL))
    given = [argument.format(**places) for argument in arguments]
    code, out, err = run(*given, state=tmp_path / "state")
    assert (code, out) == (2, "")
    assert said in err
    assert list((tmp_path / "state").rglob("usr")) == []


def test_a_shelf_that_cannot_be_made_is_no_wrong_usage(tmp_path: Path) -> None:
    archive = tmp_path / "image.tar"
    archive.write_bytes(tar(SMALL))
    (tmp_path / "state").write_text("a file")
    code, _, err = run("import", archive, "x", state=tmp_path / "state")
    assert code == 3
    assert err.startswith("persistence_failed: ")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupted_it_leaves_nothing(tmp_path: Path, number: signal.Signals, code: int) -> None:
    """The archive comes through a pipe that this test holds open: the import waits for more of it."""
    fifo, state = tmp_path / "fifo", tmp_path / "state"
    os.mkfifo(fifo)
    # A shell that starts the tests in the background has them ignore Ctrl-C, and so would what they start.
    command = ["env", f"--default-signal={number.name}", *ASSAY, "rootfs", "import", fifo, "x"]
    running = subprocess.Popen(command, env={**os.environ, "ASSAY_STATE": str(state)}, stderr=subprocess.PIPE)
    with fifo.open("wb") as pipe:
        # More than a pipe holds: once it is written, the command reads.
        pipe.write(tar([file("usr/x", bytes(2_000_000))])[:1_500_000])
        pipe.flush()
        running.send_signal(number)
        _, err = running.communicate(timeout=30)
    assert running.returncode == code
    assert b"Traceback" not in err
    assert [path.name for path in (state / "rootfs").rglob("*")] == [".staging"]


def other_python() -> Python | None:
    """An interpreter of this machine that is not the one in the host's base, and can be moved."""
    host = subprocess.run(
        ["/usr/bin/python3", "-c", "import sys; print(*sys.version_info[:2])"],
        capture_output=True,
        text=True,
        check=False,
    )
    for python in pythons():
        prefix = Path(python.path).parent.parent
        own = prefix / "lib" / f"python{python.version[0]}.{python.version[1]}" / "os.py"
        if own.exists() and host.stdout.split() != [str(part) for part in python.version[:2]]:
            return python
    return None


def from_folder(root: Path) -> bytes:
    """A folder of this machine as a layer."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        archive.add(root, ".")
    return out.getvalue()


def without_python(base: Path) -> bytes:
    """A layer that removes the Python of a root folder."""
    names = [path.relative_to(base) for place in ("usr/bin", "usr/lib") for path in (base / place).glob("python3*")]
    assert len(names) >= 2
    return tar([file(f"{name.parent}/.wh.{name.name}") for name in names])


def python_layer(python: Python) -> bytes:
    """A layer with an interpreter below `/opt/python`, its libraries included."""
    prefix, name = Path(python.path).parent.parent, f"python{python.version[0]}.{python.version[1]}"
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:

        def kept(info: tarfile.TarInfo) -> tarfile.TarInfo | None:
            return None if LEFT_OUT & set(info.name.split("/")) else info

        archive.add(prefix / "bin" / name, f"{PLACE}/bin/{name}")
        archive.add(prefix / "lib" / name, f"{PLACE}/lib/{name}", filter=kept)
        for library in prefix.glob(f"lib/lib{name}*.so*"):
            archive.add(library, f"{PLACE}/lib/{library.name}")
    return out.getvalue()


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory, base_with_pytest: Path) -> tuple[Path, Python | None]:
    """A state folder with the images `other:python` and `org/no-python:1`."""
    folder_, python = tmp_path_factory.mktemp("imported"), other_python()
    base, removed = from_folder(base_with_pytest), without_python(base_with_pytest)
    work = tar([folder("srv/work"), file("srv/work/given.txt", "from the image\n")])
    images: dict[str, bytes] = {"org/no-python:1": docker([base, removed])}
    if python is not None:
        env = [f"PATH=/{PLACE}/bin:/usr/bin:/bin", f"LD_LIBRARY_PATH=/{PLACE}/lib", "FROM_IMAGE=yes", "OURS=image"]
        start = tar([symlink(f"{PLACE}/bin/python3", f"python{python.version[0]}.{python.version[1]}")])
        layers = [base, removed, python_layer(python), start, work]
        images["other:python"] = hybrid(layers, {"WorkingDir": "/srv/work", "Env": env})
    for name, content in images.items():
        archive = folder_ / "image.tar"
        archive.write_bytes(content)
        code, _, err = run("import", archive, name, state=folder_ / "state")
        assert code == 0, err
        archive.unlink()
    return folder_ / "state", python


def verify(task: Path, workspace: Path, state: Path) -> tuple[int, dict[str, Any]]:
    workspace.mkdir(exist_ok=True)
    code, verdict, _ = assay("verify", task, "--workspace", workspace, "--json", state=state)
    return code, verdict


def test_grading_on_an_image_with_another_python(tmp_path: Path, imported: tuple[Path, Python | None]) -> None:
    """Its own interpreter, its environment below the task's, its working directory."""
    state, python = imported
    if python is None:
        pytest.skip("this machine has no other Python that can be moved into an image")
    task = make_task(
        tmp_path / "task",
        "import os, sys\ndef verify(workspace):\n"
        "    assert str(workspace) == os.getcwd() == '/srv/work', workspace\n"
        "    assert (os.environ['FROM_IMAGE'], os.environ['OURS']) == ('yes', 'task')\n"
        "    assert os.getuid() != 0\n"
        "    return {'reward': 1, 'major': sys.version_info[0], 'minor': sys.version_info[1]}\n",
        '[environment]\ndocker_image = "other:python"\nenv = { OURS = "task" }\n',
    )
    code, verdict = verify(task, tmp_path / "w", state)
    assert (code, verdict["reward"]) == (0, 1), verdict
    assert (verdict["metrics"]["major"], verdict["metrics"]["minor"]) == python.version[:2]
    assert verdict["base"] == "other:python"


def test_the_untouched_environment_is_what_the_image_has(tmp_path: Path, imported: tuple[Path, Python | None]) -> None:
    state, python = imported
    if python is None:
        pytest.skip("this machine has no other Python that can be moved into an image")
    task = make_task(
        tmp_path / "task",
        "def verify(workspace):\n    text = (workspace / 'given.txt').read_text()\n"
        "    return {'from the image\\n': 0.25, 'solved\\n': 1}[text]\n",
        '[environment]\ndocker_image = "other:python"\n',
    )
    (task / "solution").mkdir()
    (task / "solution" / "solve.sh").write_text('[ "$FROM_IMAGE" = yes ] && echo solved > given.txt\n')
    code, found, _ = assay("check", task, "--repeats", "1", "--json", state=state)
    assert (code, found["ok"]) == (0, True), found
    assert [look["reward"] for look in found["untouched"]] == [0.25]
    assert [look["reward"] for look in found["solution"]] == [1]


def test_a_bash_verifier_on_an_image_without_python(tmp_path: Path, imported: tuple[Path, Python | None]) -> None:
    task = tmp_path / "task"
    (task / "tests").mkdir(parents=True)
    (task / "instruction.md").write_text("Do it.\n")
    (task / "task.toml").write_text('[environment]\ndocker_image = "org/no-python:1"\n')
    (task / "tests" / "test.sh").write_text(
        'command -v python3 && exit 1\n[ "$PWD" = /app ] && grep -q 42 answer.txt && echo 1 > /logs/verifier/reward.txt\n'
    )
    (tmp_path / "w").mkdir()
    (tmp_path / "w" / "answer.txt").write_text("42\n")
    code, verdict = verify(task, tmp_path / "w", imported[0])
    assert (code, verdict["reward"], verdict["base"]) == (0, 1, "org/no-python:1"), verdict


def test_an_image_that_is_not_here_says_how_to_import_it(tmp_path: Path) -> None:
    task = make_task(tmp_path / "task", "def verify():\n    return 1\n", '[environment]\ndocker_image = "org/x:1"\n')
    code, verdict = verify(task, tmp_path / "w", tmp_path / "state")
    assert (code, verdict["failure"]["kind"]) == (3, "assay:image_missing")
    assert "assay rootfs import ARCHIVE org/x:1" in verdict["failure"]["reason"]
    assert "--rootfs host" in verdict["failure"]["reason"]


def test_an_image_cannot_show_the_hosts_files(tmp_path: Path, base_with_pytest: Path) -> None:
    """Its working directory is a link to a folder of the host's: what is there inside the image counts."""
    secret, state = tmp_path / "secret", tmp_path / "state"
    secret.mkdir()
    (secret / "host.txt").write_text("the host's")
    layers = [
        from_folder(base_with_pytest),
        tar([symlink("work", str(secret)), file(f"{secret}/image.txt".lstrip("/"), "x")]),
    ]
    archive = tmp_path / "image.tar"
    archive.write_bytes(oci(layers, {"WorkingDir": "/work"}, compress="plain"))
    assert run("import", archive, "x", state=state)[0] == 0
    task = make_task(
        tmp_path / "task",
        "def verify(workspace):\n    names = sorted(path.name for path in workspace.iterdir())\n"
        "    return {'image.txt': 0.25, 'solved': 1}[' '.join(names)]\n",
        '[environment]\ndocker_image = "x"\n',
    )
    (task / "solution").mkdir()
    (task / "solution" / "solve.sh").write_text("mv image.txt solved\n")
    code, found, _ = assay("check", task, "--repeats", "1", "--json", state=state)
    assert (code, found["ok"]) == (0, True), found
    assert [look["reward"] for look in found["untouched"]] == [0.25]


async def test_an_image_is_kept_while_it_is_used_and_a_verdict_says_when_it_is_gone(tmp_path: Path) -> None:
    """Removed from within the verification, when the scripted sandbox is asked for one."""
    state = tmp_path / "state"
    (tmp_path / "image.tar").write_bytes(tar(SMALL))
    import_image(tmp_path / "image.tar", "x", state / "rootfs")
    task = make_task(tmp_path / "task", "def verify():\n    return 1\n", '[environment]\ndocker_image = "x"\n')
    refusals = []

    def remove(_: str) -> None:
        try:
            remove_image("x", state / "rootfs")
        except ValueError as refusal:
            refusals.append(str(refusal))

    await grade(task, None, state=state, progress=remove, control=False)
    assert refusals
    assert all("being used" in refusal for refusal in refusals)
    remove_image("x", state / "rootfs")
    verdict = await grade(task, None, state=state)
    assert verdict.failure is not None
    assert verdict.failure["kind"] == "assay:image_missing"

"""Workspaces that are kept: what goes in comes out, and nothing else does."""

from __future__ import annotations

import hashlib
import io
import os
import resource
import shutil
import socket
import subprocess
import tarfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import fsspec
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import archives
from archives import COMPRESSORS, tar
from assay.answers import Snapshots, StoreUnusable
from assay.answers.depots import depot_at
from assay.failures import FailureEvent
from assay.workspaces import Caps, WorkspaceInvalid, capture, remove_tree
from filesystem import contents


@pytest.fixture(params=["folder", "url"])
def snapshots(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Snapshots]:
    """In a folder, and at a URL that is reached through fsspec."""
    place = str(tmp_path / "kept") if request.param == "folder" else f"memory://{tmp_path.name}"
    yield Snapshots(place, unpacked=tmp_path / "unpacked")
    fsspec.filesystem("memory").store.clear()


@pytest.fixture
def local(tmp_path: Path) -> Snapshots:
    return Snapshots(tmp_path / "kept", unpacked=tmp_path / "unpacked")


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    folder.mkdir()
    return folder


def fill(folder: Path) -> None:
    """Everything an honest agent may leave, and some that it may not mean to."""
    for name in ("a", "a/b", "a-", "a.d", "empty", "closed", "closed/in"):
        (folder / name).mkdir()
    for name in ("a/z", "a/b/c", "a-b", "a-/x", "a.d/y", "a0", "A", "closed/in/x"):
        (folder / name).write_bytes(name.encode() * 50)
        (folder / name).chmod(0o640)
    (folder / "run").write_text("#!/bin/sh\n")
    (folder / "run").chmod(0o4755)
    (folder / "secret").write_text("s")
    (folder / "secret").chmod(0o400)
    (folder / "outside").symlink_to("/etc/passwd")
    (folder / "loop").symlink_to("loop")
    (folder / ("x" * 90 + "é" * 60)).write_text("a long name")
    os.link(folder / "a0", folder / "a1")
    with (folder / "sparse").open("wb") as file:
        file.seek(5_000_000)
        file.write(b"middle")
        file.truncate(50_000_000)
    os.utime(folder / "a0", ns=(1, 1_600_000_000_123_456_789))
    (folder / "closed" / "in").chmod(0o500)
    (folder / "closed").chmod(0o555)


def digest_of(folder: Path) -> str:
    into = folder.parent / f"digest-{threading.get_ident()}"
    try:
        return capture(folder, into).digest
    finally:
        remove_tree(into)


def stored(tmp_path: Path) -> list[Path]:
    return sorted(path for path in (tmp_path / "kept").rglob("*") if path.is_file())


def test_what_goes_in_comes_out(snapshots: Snapshots, workspace: Path, tmp_path: Path) -> None:
    fill(workspace)
    digest = digest_of(workspace)
    kept = snapshots.put_folder(workspace)
    assert (kept.digest, snapshots.has(digest)) == (digest, True)
    snapshots.restore(digest, tmp_path / "back")
    expected = contents(workspace)
    mode, text = expected["run"]
    # A file of the submission's that is setuid must never be on the host.
    expected["run"] = (mode & ~0o6000, text)
    assert contents(tmp_path / "back") == expected
    assert (tmp_path / "back" / "a0").stat().st_mtime_ns == 1_600_000_000_123_456_789
    assert (tmp_path / "back" / "sparse").stat().st_blocks * 512 < 1_000_000
    assert (tmp_path / "back").stat().st_mode & 0o7777 == 0o755


def test_what_is_kept_is_used_without_unpacking_it_again(
    local: Snapshots, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(workspace)
    kept = local.put_folder(workspace)
    monkeypatch.setattr("assay.answers.snapshots.restore", lambda *_: pytest.fail("restored"))
    with local.unpacked(kept.digest) as folder:
        assert (folder / "a" / "z").read_bytes() == b"a/z" * 50


def test_the_same_content_is_one_file(local: Snapshots, workspace: Path, tmp_path: Path) -> None:
    fill(workspace)
    first = local.put_folder(workspace)
    shutil.copytree(workspace, tmp_path / "copy", symlinks=True)
    assert local.put_folder(tmp_path / "copy").digest == first.digest
    assert [path.name for path in stored(tmp_path)] == [f"{first.digest.removeprefix('sha256:')}.tar.zst"]


def test_an_ordinary_tar_reads_it(local: Snapshots, workspace: Path, tmp_path: Path) -> None:
    fill(workspace)
    local.put_folder(workspace)
    plain = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(stored(tmp_path)[0].read_bytes())).read()
    (tmp_path / "plain.tar").write_bytes(plain)
    (tmp_path / "theirs").mkdir()
    subprocess.run(["tar", "-xpf", tmp_path / "plain.tar", "-C", tmp_path / "theirs"], check=True)
    assert contents(tmp_path / "theirs") == contents(workspace)


def test_special_files_are_dropped_and_listed(local: Snapshots, workspace: Path) -> None:
    os.mkfifo(workspace / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(workspace / "socket"))
    (workspace / "file").write_text("x")
    kept = local.put_folder(workspace)
    assert [(found.path, found.type) for found in kept.dropped] == [("pipe", "fifo"), ("socket", "socket")]
    with local.unpacked(kept.digest) as folder:
        assert os.listdir(folder) == ["file"]


def test_a_tree_too_deep_for_paths_comes_back(local: Snapshots, tmp_path: Path) -> None:
    top = tmp_path / "deep"
    top.mkdir()
    folder = os.open(top, os.O_RDONLY)
    for _ in range(600):
        os.mkdir("d" * 200, dir_fd=folder)
        below = os.open("d" * 200, os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = below
    os.close(os.open("last", os.O_CREAT | os.O_WRONLY, 0o644, dir_fd=folder))
    os.close(folder)
    kept = local.put_folder(top)
    local.restore(kept.digest, tmp_path / "back")
    assert capture(tmp_path / "back", tmp_path / "again").digest == kept.digest
    # pytest cannot remove it.
    for path in (top, tmp_path / "back", tmp_path / "again", tmp_path / "unpacked"):
        remove_tree(path)


NAMES = st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=12)
TREES = st.recursive(
    st.one_of(st.binary(max_size=700), st.text("abc/.", min_size=1, max_size=150), st.integers(0, 0o7777)),
    lambda below: st.dictionaries(NAMES.filter(lambda name: name not in (".", "..")), below, max_size=5),
    max_leaves=12,
)


def plant(folder: Path, tree: object) -> None:
    """A tree of files (bytes), links (text), empty files with a mode (integers) and folders."""
    if not isinstance(tree, dict):
        return
    for name, below in tree.items():
        path = folder / name
        if isinstance(below, dict):
            path.mkdir()
            plant(path, below)
        elif isinstance(below, str):
            path.symlink_to(below)
        else:
            path.write_bytes(below if isinstance(below, bytes) else b"")
            if isinstance(below, int):
                path.chmod(below)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tree=TREES)
def test_any_tree_comes_back_under_its_own_name(tmp_path: Path, tree: object) -> None:
    for name in ("tree", "kept", "unpacked", "back"):
        remove_tree(tmp_path / name)
    (tmp_path / "tree").mkdir()
    plant(tmp_path / "tree", tree)
    snapshots = Snapshots(tmp_path / "kept", unpacked=tmp_path / "unpacked")
    kept = snapshots.put_folder(tmp_path / "tree")
    assert kept.digest == digest_of(tmp_path / "tree")
    snapshots.restore(kept.digest, tmp_path / "back")
    masked = {path: (mode & ~0o6000, text) for path, (mode, text) in contents(tmp_path / "tree").items()}
    if os.geteuid() == 0:  # an ordinary user may not read what it keeps closed
        assert contents(tmp_path / "back") == masked


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "torn": lambda data: data[: len(data) // 2],
    "empty": lambda data: data[:4],
    "one bit": lambda data: data[:-60] + bytes([data[-60] ^ 1]) + data[-59:],
    "something else": lambda data: b"not an archive" * 100,
    "another workspace": lambda data: zstandard.compress(tar([archives.file("other", b"x")])),
    "no end": lambda data: zstandard.compress(zstandard.ZstdDecompressor().stream_reader(data).read()[:-1024]),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_damage_is_said(local: Snapshots, workspace: Path, tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    (workspace / "data").write_bytes(bytes(range(256)) * 200)
    kept = local.put_folder(workspace)
    remove_tree(tmp_path / "unpacked")
    file = stored(tmp_path)[0]
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(WorkspaceInvalid, match=rf"the kept workspace {kept.digest} in .*kept is damaged"):
        local.restore(kept.digest, tmp_path / "back")
    with pytest.raises(WorkspaceInvalid, match="damaged"), local.unpacked(kept.digest):
        pytest.fail("used")
    assert os.listdir(tmp_path / "unpacked") == []


def test_a_workspace_that_is_not_there_is_said(snapshots: Snapshots, tmp_path: Path) -> None:
    digest = "sha256:" + "0" * 64
    assert not snapshots.has(digest)
    with pytest.raises(WorkspaceInvalid, match=rf"{digest} is not in .*; bring its file back"):
        snapshots.restore(digest, tmp_path / "back")


@pytest.mark.parametrize("digest", ["", "sha256:../../etc", "md5:" + "0" * 32, "sha256:" + "A" * 64])
def test_what_is_no_digest_becomes_no_path(snapshots: Snapshots, tmp_path: Path, digest: str) -> None:
    for call in (
        lambda: snapshots.has(digest),
        lambda: snapshots.restore(digest, tmp_path / "back"),
        lambda: snapshots.put_archive(io.BytesIO(), digest),
    ):
        with pytest.raises(ValueError, match="sha256: and 64"):
            call()


def archive_of(folder: Path) -> bytes:
    """The canonical archive of a folder, as somebody else's Assay makes it."""
    place = folder.parent / "elsewhere"
    kept = Snapshots(place, unpacked=folder.parent / "elsewhere-unpacked").put_folder(folder)
    name = kept.digest.removeprefix("sha256:")
    return (place / name[:2] / f"{name}.tar.zst").read_bytes()


def test_an_uploaded_archive_is_kept_as_it_is(snapshots: Snapshots, workspace: Path, tmp_path: Path) -> None:
    fill(workspace)
    data, digest = archive_of(workspace), digest_of(workspace)
    snapshots.put_archive(io.BytesIO(data), digest)
    snapshots.restore(digest, tmp_path / "back")
    assert digest_of(tmp_path / "back") != digest  # the setuid bit is in the manifest alone
    with depot_at(snapshots.where).reading(digest) as source:
        assert source.read(len(data) + 1) == data


@pytest.mark.parametrize("compress", COMPRESSORS.values(), ids=COMPRESSORS)
def test_an_archive_of_any_form_is_kept(
    snapshots: Snapshots, workspace: Path, tmp_path: Path, compress: Callable[[bytes], bytes]
) -> None:
    for name in ("b/c", "a", "b-"):
        (workspace / name).parent.mkdir(exist_ok=True)
        (workspace / name).write_text(name)
    theirs = io.BytesIO()
    with tarfile.open(fileobj=theirs, mode="w") as archive:
        archive.add(workspace, ".")
    digest = digest_of(workspace)
    kept = snapshots.put_archive(io.BytesIO(compress(theirs.getvalue())), digest)
    assert (kept.digest, kept.entries) == (digest, 4)
    snapshots.restore(digest, tmp_path / "back")
    assert contents(tmp_path / "back") == contents(workspace)


@pytest.mark.parametrize("form", ["canonical", "other"])
def test_an_archive_with_another_content_is_refused(
    local: Snapshots, workspace: Path, tmp_path: Path, form: str
) -> None:
    (workspace / "a").write_text("what it holds")
    data = archive_of(workspace) if form == "canonical" else tar([archives.file("./a", "what it holds")])
    named = "sha256:" + hashlib.sha256(b"what it is said to hold").hexdigest()
    with pytest.raises(WorkspaceInvalid, match=f"and it is named {named}: nothing was kept"):
        local.put_archive(io.BytesIO(data), named)
    assert not local.has(named)
    assert (stored(tmp_path), os.listdir(tmp_path / "unpacked")) == ([], [])


HOSTILE: dict[str, tuple[bytes, str]] = {
    "damaged": (b"\x28\xb5\x2f\xfd" + b"rubbish" * 30, "the zstd data is damaged"),
    "no archive": (b"hello", "cut short"),
    "empty": (b"", "cut short"),
    "a bomb": (zstandard.compress(tar([archives.file("a", bytes(2_000_000))])), "more than 1,000,000 bytes"),
    "a name too long": (tar([archives.file("x" * 256)]), "File name too long"),
    "too many": (tar([archives.file(f"{n:03}") for n in range(200)]), "more than 100 entries"),
}


@pytest.mark.parametrize(("data", "said"), HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_archive_leaves_nothing(local: Snapshots, tmp_path: Path, data: bytes, said: str) -> None:
    with pytest.raises(FailureEvent, match=said):
        local.put_archive(io.BytesIO(data), "sha256:" + "0" * 64, caps=Caps(bytes=1_000_000, entries=100))
    assert (stored(tmp_path), os.listdir(tmp_path / "unpacked")) == ([], [])


def test_a_link_in_an_archive_leads_nobody_out(local: Snapshots, tmp_path: Path) -> None:
    """An entry below a link: another form would follow it within the workspace, and the host is never touched."""
    (tmp_path / "victim").mkdir()
    data = tar([archives.symlink("a", str(tmp_path / "victim")), archives.file("a/b", "planted")])
    with pytest.raises(FailureEvent):
        local.put_archive(io.BytesIO(data), "sha256:" + "0" * 64)
    assert os.listdir(tmp_path / "victim") == []


PIECES = st.lists(
    st.one_of(
        st.builds(
            lambda name, data: archives.file(name, data),
            st.sampled_from(["a", "a/b", "./a", "/a", "../a", "c"]),
            st.binary(max_size=600),
        ),
        st.builds(archives.folder, st.sampled_from(["a", "a/b", "..", "b/"]), st.integers(0, 0o7777)),
        st.builds(archives.symlink, st.sampled_from(["a", "b", "a/b"]), st.sampled_from(["/", "..", "a", "/tmp"])),
        st.builds(archives.hard_link, st.sampled_from(["b", "a/c"]), st.sampled_from(["a", "../a", "/etc/passwd"])),
    ),
    max_size=6,
)


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(items=PIECES, cut=st.integers(0, 4000), flip=st.tuples(st.integers(0, 4000), st.integers(0, 255)))
def test_whatever_is_sent_it_is_kept_under_its_own_name_or_not_at_all(
    local: Snapshots, tmp_path: Path, items: list[archives.Item], cut: int, flip: tuple[int, int]
) -> None:
    data = bytearray(tar(items))
    if flip[0] < len(data):
        data[flip[0]] ^= flip[1]
    if cut < 1000:
        del data[len(data) - cut :]
    outside = sorted(path.name for path in tmp_path.iterdir())
    with pytest.raises(FailureEvent) as raised:
        local.put_archive(io.BytesIO(bytes(data)), "sha256:" + "0" * 64)
    assert raised.value.kind in ("assay:workspace_invalid", "assay:workspace_limit")
    if "content" in raised.value.details:
        named = str(raised.value.details["content"])
        assert local.put_archive(io.BytesIO(bytes(data)), named).digest == named
    assert sorted({*outside, "unpacked"}) == sorted(path.name for path in tmp_path.iterdir())


def put(snapshots: Snapshots, folder: Path, size: int, name: str) -> str:
    folder.mkdir()
    (folder / name).write_bytes(bytes(size))
    return snapshots.put_folder(folder).digest


def test_the_least_recently_used_go_first(tmp_path: Path) -> None:
    snapshots = Snapshots(tmp_path / "kept", unpacked=tmp_path / "unpacked", unpacked_bytes=250_000)
    first, second = (put(snapshots, tmp_path / name, 100_000, name) for name in "ab")
    with snapshots.unpacked(first):
        pass
    third = put(snapshots, tmp_path / "c", 100_000, "c")
    there = {path.name for path in (tmp_path / "unpacked").iterdir()}
    assert there == {digest.removeprefix("sha256:") for digest in (first, third)}
    with snapshots.unpacked(second) as folder:
        assert (folder / "b").stat().st_size == 100_000


def test_what_is_in_use_stays(tmp_path: Path) -> None:
    snapshots = Snapshots(tmp_path / "kept", unpacked=tmp_path / "unpacked", unpacked_bytes=1)
    first = put(snapshots, tmp_path / "a", 1000, "a")
    with snapshots.unpacked(first) as folder:
        put(snapshots, tmp_path / "b", 1000, "b")
        assert (folder / "a").stat().st_size == 1000
    put(snapshots, tmp_path / "c", 1000, "c")
    assert len(os.listdir(tmp_path / "unpacked")) == 1
    with snapshots.unpacked(first) as folder:
        assert (folder / "a").stat().st_size == 1000


def test_many_threads_use_and_keep_at_once(tmp_path: Path) -> None:
    snapshots = Snapshots(tmp_path / "kept", unpacked=tmp_path / "unpacked", unpacked_bytes=20_000)
    digests = [put(snapshots, tmp_path / f"w{n}", 8000, f"{n}") for n in range(4)]
    wrong: list[object] = []

    def use(turn: int) -> None:
        try:
            for n in range(turn, turn + 12):
                with snapshots.unpacked(digests[n % 4]) as folder:
                    if (folder / f"{n % 4}").stat().st_size != 8000:
                        wrong.append(n)
                snapshots.put_folder(tmp_path / f"w{n % 4}")
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=use, args=(turn,)) for turn in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_stopping_leaves_nothing(local: Snapshots, workspace: Path, tmp_path: Path) -> None:
    (workspace / "a").write_text("x")
    stop = threading.Event()
    stop.set()
    with pytest.raises(FailureEvent, match="stopped") as raised:
        local.put_folder(workspace, stop=stop)
    assert raised.value.kind == "cancelled"
    assert (stored(tmp_path), os.listdir(tmp_path / "unpacked")) == ([], [])


def test_a_place_that_cannot_be_written_is_said(local: Snapshots, workspace: Path, tmp_path: Path) -> None:
    (workspace / "a").write_text("x")
    digest = digest_of(workspace)
    # A file where the folder would be: no user may write there.
    (tmp_path / "kept" / digest.removeprefix("sha256:")[:2]).write_text("")
    with pytest.raises(FailureEvent, match=r"kept: Not a directory; make room there") as raised:
        local.put_folder(workspace)
    assert raised.value.kind == "persistence_failed"


def test_a_full_disk_is_said_and_nothing_is_left(local: Snapshots, workspace: Path, tmp_path: Path) -> None:
    """No file may grow beyond a limit: first the copy cannot be written, then its archive."""
    for name in "abcd":
        (workspace / name).write_bytes(os.urandom(60_000))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    for limit in (50_000, 100_000):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        try:
            with pytest.raises(FailureEvent, match="File too large; make room there") as raised:
                local.put_folder(workspace)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert raised.value.kind == "persistence_failed"
        assert (stored(tmp_path), os.listdir(tmp_path / "unpacked")) == ([], [])
    assert local.has(local.put_folder(workspace).digest)


@pytest.mark.parametrize("where", ["nosuchprotocol://x", "memory://x::nosuch://y"])
def test_a_url_that_nobody_knows_is_refused(tmp_path: Path, where: str) -> None:
    with pytest.raises(StoreUnusable, match="cannot be used for snapshots"):
        Snapshots(where, unpacked=tmp_path / "unpacked")

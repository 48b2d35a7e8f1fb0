"""Unpacking: what archives of every kind become, and what hostile ones do not do."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import subprocess
import tarfile
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

import assay.workspaces.unpack as unpacking
from archives import END, Bytes, Item, extended, file, folder, hard_link, header, padded, symlink, tar
from assay.workspaces import ArchiveInvalid, ArchiveTooLarge, Caps, scratch_folder
from assay.workspaces.archive import FileSlice, Meter, Metered, decompressed
from assay.workspaces.caps import TargetError
from assay.workspaces.tar import Kind
from assay.workspaces.unpack import Unpacker, unpack

CAPS_OF_A_WORKSPACE = Caps()


def keep(kind: Kind, mode: int) -> int:
    return mode


class Bench:
    """A root to unpack into, beside a folder that must stay as it is."""

    def __init__(self, tmp_path: Path) -> None:
        self.root = tmp_path / "root"
        self.root.mkdir()
        self.outside = tmp_path / "outside"
        self.outside.mkdir()
        (self.outside / "secret").write_text("secret")
        self.archive = tmp_path / "archive"

    def unpack(self, content: bytes | Iterable[Item], caps: Caps = CAPS_OF_A_WORKSPACE) -> Unpacker:
        self.archive.write_bytes(content if isinstance(content, bytes) else tar(content))
        descriptor = os.open(self.archive, os.O_RDONLY)
        try:
            meter = Meter(caps)
            raw = FileSlice(descriptor, 0, os.fstat(descriptor).st_size)
            source = Metered(decompressed(raw, "archive"), meter, "archive")
            return unpack(source, self.root, meter=meter, mode_of=keep)
        finally:
            os.close(descriptor)

    def tree(self) -> dict[str, str]:
        """Path to content: a link's text behind `->`, `/` for a folder."""
        found = {}
        for path in sorted(self.root.rglob("*")):
            name = path.relative_to(self.root).as_posix()
            if path.is_symlink():
                found[name] = f"-> {os.readlink(path)}"
            else:
                found[name] = "/" if path.is_dir() else path.read_text()
        return found

    def assert_outside_untouched(self) -> None:
        assert [path.name for path in self.outside.iterdir()] == ["secret"]
        assert (self.outside / "secret").read_text() == "secret"
        assert {path.name for path in self.root.parent.iterdir()} == {"root", "outside", "archive"}


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


CONFINED: list[tuple[str, list[Item], dict[str, str]]] = [
    ("absolute", [file("/etc/x", "1")], {"etc": "/", "etc/x": "1"}),
    ("dots", [file("../../a/../x", "1")], {"x": "1"}),
    ("dots only go up to the root", [file("a/../../../b/x", "1")], {"b": "/", "b/x": "1"}),
    ("slashes", [file("./a//./x", "1")], {"a": "/", "a/x": "1"}),
    ("the root itself", [folder("./", 0o700), folder("/"), file("x", "1")], {"x": "1"}),
    (
        "link out, kept as text",
        [symlink("l", "/outside"), symlink("m", "../../x")],
        {"l": "-> /outside", "m": "-> ../../x"},
    ),
    (
        "through a merged folder",
        [folder("usr/lib"), symlink("lib", "usr/lib"), file("lib/x", "1")],
        {"usr": "/", "usr/lib": "/", "usr/lib/x": "1", "lib": "-> usr/lib"},
    ),
    (
        "through an absolute link: inside",
        [symlink("lib", "/usr/lib"), file("lib/x", "1")],
        {"usr": "/", "usr/lib": "/", "usr/lib/x": "1", "lib": "-> /usr/lib"},
    ),
    (
        "through a link that climbs: inside",
        [symlink("a", "../../../b"), file("a/x", "1")],
        {"a": "-> ../../../b", "b": "/", "b/x": "1"},
    ),
    (
        "through links to links",
        [folder("d"), symlink("d/up", ".."), symlink("a", "d/up/d/up"), file("a/x", "1")],
        {"d": "/", "d/up": "-> ..", "a": "-> d/up/d/up", "x": "1"},
    ),
    (
        "a file over a link: the link goes",
        [file("t", "old"), symlink("l", "t"), file("l", "new")],
        {"t": "old", "l": "new"},
    ),
    (
        "a folder over a link to a folder: the link goes",
        [folder("t"), file("t/x", "1"), symlink("l", "t"), folder("l"), file("l/y", "2")],
        {"t": "/", "t/x": "1", "l": "/", "l/y": "2"},
    ),
    ("a folder over a folder: it stays", [file("a/x", "1"), folder("a")], {"a": "/", "a/x": "1"}),
    ("a file over a folder", [file("a/b/x", "1"), file("a", "2")], {"a": "2"}),
    ("a folder over a file", [file("a", "1"), folder("a"), file("a/x", "2")], {"a": "/", "a/x": "2"}),
    (
        "a link over a folder",
        [file("a/x", "1"), symlink("a", "b"), file("a/y", "2")],
        {"a": "-> b", "b": "/", "b/y": "2"},
    ),
    ("twice the same", [file("x", "1"), file("x", "22")], {"x": "22"}),
    ("hard link", [file("a/x", "1"), hard_link("y", "a/x")], {"a": "/", "a/x": "1", "y": "1"}),
    ("hard link, absolute", [file("x", "1"), hard_link("/y", "/x")], {"x": "1", "y": "1"}),
    ("hard link, climbing", [file("x", "1"), hard_link("y", "../../x")], {"x": "1", "y": "1"}),
    ("hard link to itself", [file("x", "1"), hard_link("x", "x")], {"x": "1"}),
    (
        "hard link to a symlink",
        [symlink("l", "/outside/secret"), hard_link("y", "l")],
        {"l": "-> /outside/secret", "y": "-> /outside/secret"},
    ),
    ("hard link, then written anew", [file("x", "1"), hard_link("y", "x"), file("y", "2")], {"x": "1", "y": "2"}),
    ("no UTF-8", [file("a\udcff\udc80", "1")], {"a\udcff\udc80": "1"}),
    (
        "a folder reached through what is then replaced",
        [
            folder("d/sub"),
            symlink("d/l", "sub"),
            symlink("p", "d/l/.."),
            file("p/y", "1"),
            symlink("p/l", "/o"),
            file("p/z", "2"),
        ],
        {"d": "/", "d/sub": "/", "d/l": "-> /o", "p": "-> d/l/..", "d/y": "1", "o": "/", "z": "2"},
    ),
    (
        "a replaced folder is found anew",
        [file("a/x", "1"), file("a/y", "2"), symlink("a", "c"), file("a/z", "3")],
        {"a": "-> c", "c": "/", "c/z": "3"},
    ),
]


@pytest.mark.parametrize(("items", "tree"), [case[1:] for case in CONFINED], ids=[case[0] for case in CONFINED])
@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT], ids=["pax", "gnu"])
def test_what_becomes_of_entries(bench: Bench, items: list[Item], tree: dict[str, str], form: int) -> None:
    bench.unpack(tar(items, form))
    assert bench.tree() == tree
    bench.assert_outside_untouched()


REFUSED: list[tuple[str, list[Item], str]] = [
    ("a file on the way", [file("a", "1"), file("a/x", "2")], "a on the way to it is no folder"),
    ("links in circles", [symlink("a", "b"), symlink("b", "a"), file("a/x")], "lead in circles"),
    ("a link to itself below itself", [symlink("a", "a/a"), file("a/x")], "lead in circles"),
    ("hard link to nothing", [hard_link("y", "x")], "which is not there"),
    ("hard link to a folder", [folder("d"), hard_link("y", "d")], "which is a folder"),
    ("hard link to the root", [hard_link("y", "..")], "which is a folder"),
    ("hard link over what holds it", [file("a/x"), hard_link("a", "a/x")], "lies in what it replaces"),
    ("hard link through a file", [file("a"), hard_link("y", "a/x")], "is no folder"),
    ("a file as the root", [file("..", "1")], "in the place of the root folder"),
    ("a long name", [file("n" * 300)], "File name too long"),
]


@pytest.mark.parametrize(("items", "said"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED])
def test_what_is_refused_leaves_nothing(bench: Bench, items: list[Item], said: str) -> None:
    with pytest.raises(ArchiveInvalid, match=said):
        bench.unpack([file("before", "1"), *items])
    assert bench.tree() == {}
    bench.assert_outside_untouched()


ESCAPES: list[tuple[str, Callable[[Path], list[Item]]]] = [
    ("a name", lambda outside: [file(f"../{outside.name}/new", "1"), file(f"{outside}/new", "1")]),
    (
        "a link, then through it",
        lambda outside: [symlink("l", str(outside)), file("l/new", "1"), file("l/secret", "1")],
    ),
    ("a climbing link", lambda outside: [symlink("l", "../outside"), file("l/new", "1"), folder("l/d")]),
    ("a link in the place of a file", lambda outside: [symlink("l", f"{outside}/secret"), file("l", "1")]),
    ("a link in the place of a folder", lambda outside: [symlink("l", str(outside)), folder("l", 0o777)]),
    ("a device over a link", lambda outside: [symlink("l", f"{outside}/secret"), Item("l", tarfile.CHRTYPE)]),
]


@pytest.mark.parametrize("items", [case[1] for case in ESCAPES], ids=[case[0] for case in ESCAPES])
def test_nothing_outside_is_touched(bench: Bench, items: Callable[[Path], list[Item]]) -> None:
    mode = bench.outside.stat().st_mode
    bench.unpack(items(bench.outside))
    bench.assert_outside_untouched()
    assert bench.outside.stat().st_mode == mode


@pytest.mark.parametrize("through", ["name", "link"])
def test_a_hard_link_reaches_nothing_outside(bench: Bench, through: str) -> None:
    secret = bench.outside / "secret"
    items = (
        [hard_link("y", str(secret))]
        if through == "name"
        else [symlink("l", str(bench.outside)), hard_link("y", "l/secret")]
    )
    with pytest.raises(ArchiveInvalid, match="which is not there"):
        bench.unpack(items)
    assert secret.stat().st_nlink == 1
    bench.assert_outside_untouched()


def test_special_files_are_dropped_and_listed(bench: Bench) -> None:
    kinds = {"null": tarfile.CHRTYPE, "disk": tarfile.BLKTYPE, "pipe": tarfile.FIFOTYPE}
    done = bench.unpack([file("null", "was here"), *(Item(name, kind) for name, kind in kinds.items()), file("x", "1")])
    assert bench.tree() == {"x": "1"}
    assert [(found.path, found.type) for found in done.dropped] == [
        ("null", "device"),
        ("disk", "device"),
        ("pipe", "fifo"),
    ]
    assert done.dropped_count == 3


@pytest.mark.parametrize(
    ("mode", "kept"),
    [(0o4755, 0o755), (0o2755, 0o755), (0o1777, 0o777), (0o000, 0o600), (0o444, 0o644), (0o7777, 0o777)],
)
def test_modes(bench: Bench, mode: int, kept: int) -> None:
    old = os.umask(0o077)
    try:
        bench.unpack([file("x", "1", mode), folder("d", mode)])
    finally:
        os.umask(old)
    assert stat.S_IMODE((bench.root / "x").lstat().st_mode) == kept
    assert stat.S_IMODE((bench.root / "d").lstat().st_mode) == kept | 0o700
    assert (bench.root / "x").stat().st_uid == os.geteuid()


@pytest.mark.parametrize(("written", "kept"), [(1.5, 1.5), (-5, 0), (1e15, 2**33)])
def test_times_of_files(bench: Bench, written: float, kept: float) -> None:
    bench.unpack([Item("x", mtime=written)])
    assert (bench.root / "x").stat().st_mtime == kept


def test_a_hard_link_is_one_file_and_a_copy_where_it_cannot_be(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    items = [file("x", "1", 0o755), hard_link("y", "x"), symlink("l", "x"), hard_link("m", "l")]
    bench.unpack(items)
    assert (bench.root / "x").stat().st_nlink == 2

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EMLINK, "Too many links")

    monkeypatch.setattr(unpacking, "_link", refuse)
    shutil.rmtree(bench.root)
    bench.root.mkdir()
    bench.unpack(items)
    assert bench.tree() == {"x": "1", "y": "1", "l": "-> x", "m": "-> x"}
    assert (bench.root / "x").stat().st_nlink == 1
    assert stat.S_IMODE((bench.root / "y").stat().st_mode) == 0o755
    with pytest.raises(ArchiveTooLarge):
        bench.unpack([file("x", bytes(8192)), *(hard_link(f"y{n}", "x") for n in range(10))], Caps(bytes=40_000))


CAPS: list[tuple[str, list[Item], Caps, str]] = [
    ("bytes", [file("a", bytes(5000)), file("b", bytes(5000))], Caps(bytes=9000), "bytes"),
    ("entries", [file(f"f{n}") for n in range(11)], Caps(entries=10), "entries"),
    ("entries that are only implied", [file("/".join("d" * 20))], Caps(entries=10), "entries"),
    ("depth", [folder("/".join("d" * 11))], Caps(depth=10), "depth"),
    ("paths", [file(f"{n}/" + "p" * 200) for n in range(10)], Caps(path_bytes=1000), "path_bytes"),
]


@pytest.mark.parametrize(("items", "caps", "cap"), [case[1:] for case in CAPS], ids=[case[0] for case in CAPS])
def test_caps(bench: Bench, items: list[Item], caps: Caps, cap: str) -> None:
    with pytest.raises(ArchiveTooLarge) as refusal:
        bench.unpack(items, caps)
    assert refusal.value.cap == cap
    assert bench.tree() == {}


def test_depth_cannot_be_had_through_links(bench: Bench) -> None:
    """Each path is short; what it leads to is not."""
    items = [folder("/".join("d" * 8)), symlink("l", "/".join("d" * 8)), folder("l/" + "/".join("e" * 8))]
    with pytest.raises(ArchiveInvalid, match="folders deep"):
        bench.unpack(items, Caps(depth=10))


def test_a_million_entries_are_refused_at_the_cap(bench: Bench) -> None:
    one = header(b"f")
    read = 0

    class Endless:
        def read(self, size: int) -> bytes:
            nonlocal read
            read += min(size, 512)
            return one[:size]

        def skip(self, size: int) -> int:
            raise AssertionError(size)

    with pytest.raises(ArchiveTooLarge):
        unpack(Endless(), bench.root, meter=Meter(Caps(entries=5000)), mode_of=keep)
    assert read == 5001 * 512
    assert bench.tree() == {}


@pytest.mark.parametrize("kind", ["gzip", "bzip2", "xz", "zstd"])
def test_a_bomb_is_refused_at_the_cap(bench: Bench, kind: str) -> None:
    from archives import COMPRESSORS

    bomb = COMPRESSORS[kind](header(b"zeros", size=b"%011o" % (64 * 1024**2)) + bytes(64 * 1024**2) + END)
    assert len(bomb) < 200_000
    with pytest.raises(ArchiveTooLarge):
        bench.unpack(bomb, Caps(bytes=1_000_000))
    assert bench.tree() == {}


def test_a_bomb_behind_the_end_is_refused(bench: Bench) -> None:
    import gzip

    with pytest.raises(ArchiveTooLarge):
        bench.unpack(gzip.compress(tar([file("x")]) + bytes(10**7)), Caps(bytes=1_000_000))


def test_a_sparse_giant_counts_in_full(bench: Bench) -> None:
    records = [
        ("GNU.sparse.major", b"1"),
        ("GNU.sparse.minor", b"0"),
        ("GNU.sparse.name", b"giant"),
        ("GNU.sparse.realsize", b"%d" % 2**50),
    ]
    data = padded(b"0\n")
    archive = extended(records) + header(b"GNUSparseFile.0/giant", size=b"%011o" % len(data)) + data + END
    with pytest.raises(ArchiveTooLarge):
        bench.unpack(archive)
    assert bench.tree() == {}


def test_an_archive_cut_anywhere_is_refused_or_whole() -> None:
    items = [folder("d"), file("d/x", b"x" * 700), symlink("l", "d"), hard_link("y", "d/x"), file("n" * 150, "long")]
    whole = tar(items, tarfile.GNU_FORMAT)
    needed = len(whole.rstrip(b"\0")) // 512 * 512 + 512 + 512
    for length in (*range(needed + 1), len(whole)):
        with scratch_folder("cut", memory=True) as root:
            if length < needed:
                with pytest.raises(ArchiveInvalid):
                    unpack(Bytes(whole[:length]), root, meter=Meter(CAPS_OF_A_WORKSPACE), mode_of=keep)
                assert os.listdir(root) == []
            else:
                unpack(Bytes(whole[:length]), root, meter=Meter(CAPS_OF_A_WORKSPACE), mode_of=keep)
                assert sorted(os.listdir(root)) == ["d", "l", "n" * 150, "y"]


@pytest.mark.skipif(shutil.which("tar") is None, reason="this machine has no tar")
@pytest.mark.parametrize(
    "compress", [[], ["-z"], ["-j"], ["-J"], ["--zstd"]], ids=lambda flags: "".join(flags) or "plain"
)
@pytest.mark.parametrize(
    "form",
    [
        ["--format=v7"],
        ["--format=oldgnu", "-S"],
        ["--format=gnu"],
        ["--format=ustar"],
        ["--format=pax", "-S", "--sparse-version=0.0"],
        ["--format=pax", "-S", "--sparse-version=0.1"],
        ["--format=pax", "-S", "--sparse-version=1.0"],
    ],
    ids=" ".join,
)
def test_what_tar_itself_writes(
    bench: Bench, tmp_path_factory: pytest.TempPathFactory, form: list[str], compress: list[str]
) -> None:
    made = tmp_path_factory.mktemp("made")
    (made / "folder").mkdir()
    (made / "folder" / "empty").touch()
    (made / "folder" / "text").write_text("text\n" * 1000)
    (made / "text").symlink_to("folder/text")
    os.link(made / "folder" / "text", made / "second")
    with (made / "sparse").open("wb") as sparse:
        for place in range(1, 60):
            sparse.seek(place * 100_000)
            sparse.write(b"data")
        sparse.truncate(10_000_000)
    done = subprocess.run(
        ["tar", "-cf", bench.archive, *form, *compress, "-C", made, "."], capture_output=True, text=True
    )
    if done.returncode:
        pytest.skip(f"this machine's tar cannot: {done.stderr.strip()[:100]}")
    bench.unpack(bench.archive.read_bytes())
    assert subprocess.run(["diff", "-r", "--no-dereference", made, bench.root], capture_output=True).stdout == b""
    if "-S" in form:
        assert (bench.root / "sparse").stat().st_blocks * 512 < 1_000_000


def test_what_cannot_be_written_is_the_machines_fault(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(unpacking, "_write", full)
    with pytest.raises(TargetError) as refusal:
        bench.unpack([file("a/x", "1")])
    assert refusal.value.path == "a/x"
    assert bench.tree() == {}

import os
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from assay.failures import FailureEvent
from assay.workspaces import finish_removals, scratch, scratch_folder

ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root may do what this test does")
SHM = pytest.mark.skipif(not scratch._is_tmpfs(Path("/dev/shm")), reason="/dev/shm is no writable tmpfs here")


@pytest.fixture
def place(monkeypatch):
    """A temporary folder of this test's own that others may pass, and a process that has used no scratch folder yet."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        monkeypatch.setattr(tempfile, "tempdir", folder)
        monkeypatch.setattr(scratch, "_roots", scratch._Roots())
        yield Path(folder)


def mode(path):
    return path.stat().st_mode & 0o7777


def test_a_folder_and_its_root_are_private_and_go(place):
    with scratch_folder("verify one/two") as folder:
        root = folder.parent
        assert folder.name.startswith("verify-one-two-")
        assert root.name.startswith(f"assay-{os.geteuid()}-{os.getpid()}-")
        assert root.parent == place
        assert (mode(folder), mode(root)) == (0o711, 0o711)
        (folder / "x").mkdir()
        (folder / "x" / "y").write_text("z")
    assert os.listdir(place) == []


@pytest.mark.parametrize("umask", [0, 0o077])
def test_the_umask_changes_nothing(place, umask):
    before = os.umask(umask)
    try:
        with scratch_folder("x") as folder:
            assert (mode(folder), mode(folder.parent)) == (0o711, 0o711)
    finally:
        os.umask(before)


def test_folders_of_one_process_share_a_root_until_the_last_goes(place):
    with scratch_folder("a") as first:
        with scratch_folder("a") as second:
            assert first != second
            assert first.parent == second.parent
        assert not second.exists()
        assert first.exists()
    assert os.listdir(place) == []
    with scratch_folder("a") as third:
        assert third.parent != first.parent


def test_it_goes_when_the_work_fails(place):
    with pytest.raises(ZeroDivisionError), scratch_folder("a"):
        raise ZeroDivisionError
    assert os.listdir(place) == []


def test_a_folder_that_was_removed_already_does_no_harm(place):
    with scratch_folder("a") as folder:
        folder.rmdir()
    assert os.listdir(place) == []


def test_a_root_that_a_cleaner_removed_is_made_anew(place):
    with scratch_folder("a") as first:
        first.rmdir()
        first.parent.rmdir()
        with scratch_folder("b") as second:
            assert second.is_dir()
    assert os.listdir(place) == []


@SHM
def test_memory_is_shared_memory(place):
    with scratch_folder("a", memory=True) as folder, scratch_folder("b") as other:
        assert folder.parent.parent == Path("/dev/shm")
        assert other.parent.parent == place
    assert not folder.parent.exists()


def test_without_shared_memory_it_is_the_temporary_folder(place, monkeypatch, tmp_path):
    monkeypatch.setattr(scratch, "_MEMORY", tmp_path)
    with scratch_folder("a", memory=True) as folder:
        assert folder.parent.parent == place


def test_many_threads(place):
    errors = []
    seen = set()

    def work(number):
        try:
            for _ in range(50):
                with scratch_folder("t") as folder:
                    (folder / "x").write_text(str(number))
                    seen.add(folder)
                    assert (folder / "x").read_text() == str(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert len(seen) == 400
    assert os.listdir(place) == []


def test_no_descriptor_is_left_open(place):
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with scratch_folder("a"):
            assert len(os.listdir("/proc/self/fd")) == before + 1
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_place_that_cannot_be_written_says_what_to_do(place, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(place / "none"))
    with pytest.raises(FailureEvent, match=r"provider_unavailable: cannot make a scratch folder in .*set TMPDIR"):
        scratch_folder("a").__enter__()


class Holder:
    """Another process with a scratch folder, until its stdin ends; `code` runs once it has it."""

    def __init__(self, place, code=""):
        program = f"""
import os, sys
from assay.workspaces import scratch_folder
with scratch_folder("held") as folder:
    (folder / "x").write_text("y")
    print(folder, flush=True)
    {code}
    sys.stdin.read()
"""
        self.process = subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "TMPDIR": str(place)},
        )
        self.folder = Path(self.process.stdout.readline().strip())

    def kill(self):
        self.process.kill()
        self.process.wait(60)

    def end(self):
        self.process.communicate(timeout=60)


def test_the_root_of_a_dead_process_is_swept_and_that_of_a_living_one_stays(place):
    dead, living = Holder(place), Holder(place)
    dead.kill()
    assert (dead.folder / "x").exists()
    with scratch_folder("a"):
        assert not dead.folder.parent.exists()
        assert (living.folder / "x").read_text() == "y"
    living.end()
    assert os.listdir(place) == []
    for holder in (dead, living):
        holder.process.stdin.close()
        holder.process.stdout.close()


def test_the_lock_decides_not_the_pid(place):
    mine = place / f"assay-{os.geteuid()}-{os.getpid()}-0123abcd"
    mine.mkdir()
    with scratch_folder("a"):
        assert not mine.exists()


@pytest.mark.parametrize(
    "name",
    [
        "assay-{uid}-1",
        "assay-{uid}-1-zz",
        "assay-{other}-1-abcd",
        "assay-{uid}-1-abcd-x",
        "other-{uid}-1-abcd",
        "assay-x",
    ],
)
def test_other_folders_stay(place, name):
    other = place / name.format(uid=os.geteuid(), other=os.geteuid() + 1)
    other.mkdir()
    with scratch_folder("a"):
        assert other.exists()


def test_a_link_or_a_file_with_such_a_name_stays(place):
    (place / "precious").mkdir()
    (place / "precious" / "x").touch()
    (place / f"assay-{os.geteuid()}-1-abcd").symlink_to("precious")
    (place / f"assay-{os.geteuid()}-2-abcd").touch()
    with scratch_folder("a"):
        pass
    assert (place / "precious" / "x").exists()
    assert len(os.listdir(place)) == 3


@ROOT
def test_a_folder_of_another_user_stays(place):
    planted = place / f"assay-{os.geteuid()}-1-abcd"
    planted.mkdir()
    os.chown(planted, 65534, 65534)
    with scratch_folder("a"):
        pass
    assert planted.exists()


def run(place, code):
    done = subprocess.run(
        [sys.executable, "-c", f"import os, sys\nfrom assay.workspaces import scratch_folder\n{code}"],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "TMPDIR": str(place)},
    )
    assert done.stderr == ""
    return done.stdout


def test_a_process_that_exits_within_the_block_leaves_nothing(place):
    out = run(
        place,
        """
import threading
ready = threading.Event()
def hold():
    with scratch_folder("a") as folder:
        print(folder, flush=True)
        ready.set()
        threading.Event().wait()
threading.Thread(target=hold, daemon=True).start()
ready.wait()
""",
    )
    assert Path(out.strip()).parent.parent == place
    assert os.listdir(place) == []


def test_a_forked_child_has_a_root_of_its_own(place):
    out = run(
        place,
        """
with scratch_folder("parent") as mine:
    child = os.fork()
    if child == 0:
        with scratch_folder("child") as theirs:
            print(theirs.parent == mine.parent, theirs.is_dir(), flush=True)
        sys.exit(0)  # unwinds the parent's block in the child, and runs its exit handlers
    os.waitpid(child, 0)
    print(mine.is_dir())
""",
    )
    assert out.split() == ["False", "True", "True"]
    assert os.listdir(place) == []


def test_a_child_that_outlives_its_parent_does_not_hold_its_root(place):
    holder = Holder(
        place,
        """
    if os.fork() == 0:
        print(os.getpid(), flush=True)
        sys.stdin.read()
        os._exit(0)
""",
    )
    child = int(holder.process.stdout.readline())
    holder.kill()
    try:
        with scratch_folder("a"):
            assert not holder.folder.parent.exists()
        os.kill(child, 0)
    finally:
        os.kill(child, signal.SIGKILL)
        holder.process.stdin.close()
        holder.process.stdout.close()


@ROOT
@pytest.mark.parametrize(("mode", "open_to_others"), [(0o755, True), (0o711, True), (0o700, False), (0o750, False)])
def test_roots_scratch_lies_where_a_sandboxs_own_uid_can_pass(place, mode, open_to_others):
    """`pam_tmpdir`, for one, gives root a temporary folder that is closed to everybody else."""
    above = place / "user"
    inside = above / "0"
    inside.mkdir(parents=True)
    above.chmod(mode)
    tempfile.tempdir = str(inside)
    with scratch_folder("x") as folder:
        assert (folder.parent.parent == inside) is open_to_others
        assert all(parent.stat().st_mode & 0o001 for parent in (folder, *folder.parents))


def test_what_is_removed_later_is_gone_when_asked_for_and_at_the_end(tmp_path: Path) -> None:
    with scratch_folder("one", later=True) as one:
        (one / "file").write_text("x")
    finish_removals()
    assert not one.exists()
    # Left to the end of an interpreter, in a block that only that closes.
    program = (
        "import sys; from assay.workspaces import scratch_folder\n"
        "a = scratch_folder('a', later=True); b = scratch_folder('b', later=True)\n"
        "print(a.__enter__()); print(b.__enter__()); a.__exit__(None, None, None)\n"
        "if sys.argv[1] == 'raise': raise SystemExit\n"
    )
    for how in ("end", "raise"):
        env = {**os.environ, "TMPDIR": str(tmp_path)}
        done = subprocess.run([sys.executable, "-c", program, how], capture_output=True, env=env, timeout=60, text=True)
        assert (done.returncode, done.stderr) == (0, "")
        assert [Path(line).exists() for line in done.stdout.splitlines()] == [False, False]


def test_only_so_many_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scratch, "_tidier", scratch._Tidier())
    monkeypatch.setattr(scratch, "_LATER_MOST", 2)
    monkeypatch.setattr(scratch, "_LATER_S", 60.0)
    left = []
    for number in range(4):
        with scratch_folder(str(number), later=True) as folder:
            left.append(folder)
    assert [folder.exists() for folder in left] == [True, True, False, False]
    finish_removals()
    assert not any(folder.exists() for folder in left)

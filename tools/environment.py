"""Make `.venv` from a lock file, or do nothing when it is already that: `python3 tools/environment.py runtime|dev`.

Standard library only, and written for any Python 3.6 or newer, so that a Python that is too old gets a sentence instead
of a syntax error. A stamp inside the environment says what it was made from; it is written last, and a mark that lies
there from the first step to the last one makes an interrupted install start again from nothing.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
UNFINISHED = VENV / "assay-unfinished"
LOCKS = {"runtime": "requirements.lock", "dev": "requirements-dev.lock"}
LOWEST = (3, 11)


def main(which):
    """Bring `.venv` to what `which` needs; the exit code says whether it is there."""
    if sys.version_info < LOWEST:
        found = ".".join(map(str, sys.version_info[:3]))
        sys.exit(f"assay needs Python 3.11 or newer, and `python3` is {found}: make PYTHON=/path/to/python3.11")
    folder = os.open(str(ROOT), os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)  # two makes at once: the second finds the work done
        make(which)
    finally:
        os.close(folder)


def make(which):
    """Install what is locked for `which`, unless that was done."""
    wanted = fingerprint(which)
    # What tests need includes what runs need.
    if any(is_made(name, fingerprint(name)) for name in (which, "dev")):
        return
    ready_interpreter()
    UNFINISHED.touch()
    print(f"installing what is locked in {LOCKS[which]} (into .venv)", flush=True)
    pip("--require-hashes", "-r", LOCKS[which])
    pip("--no-deps", "--no-build-isolation", "-e", ".")
    for name in LOCKS:
        if stamp(name).exists():
            stamp(name).unlink()
    stamp(which).write_text(wanted)
    UNFINISHED.unlink()


def fingerprint(which):
    """What the environment is made from, as one digest: the lock, the project file, the interpreter, the place."""
    digest = hashlib.sha256()
    for name in (LOCKS[which], "pyproject.toml", "tools/environment.py"):
        digest.update((ROOT / name).read_bytes())
    digest.update(repr((sys.version_info[:2], os.path.realpath(sys.executable), str(ROOT))).encode())
    return digest.hexdigest()


def stamp(which):
    """The file that says `.venv` is made for `which`."""
    return VENV / f"assay-{which}.stamp"


def is_made(which, wanted):
    """Whether `.venv` is whole and made from exactly this."""
    if UNFINISHED.exists() or not stamp(which).is_file() or not PYTHON.exists():
        return False
    return stamp(which).read_text() == wanted


def ready_interpreter():
    """Leave a `.venv` with a Python of this version and a pip that works; one that is there is kept if it can be."""
    if VENV.is_symlink() or (VENV.exists() and not VENV.is_dir()):
        sys.exit(f"{VENV} is not a folder: move it away, then run make again")
    probe = f"import pip, sys; sys.exit(sys.version_info[:2] != {sys.version_info[:2]!r})"
    whole = not UNFINISHED.exists() and PYTHON.exists()
    if whole and subprocess.call([str(PYTHON), "-c", probe], stderr=subprocess.DEVNULL) == 0:
        return
    ready_ensurepip()
    if VENV.exists():
        shutil.rmtree(str(VENV))
    VENV.mkdir()
    UNFINISHED.touch()
    subprocess.check_call([sys.executable, "-m", "venv", str(VENV)])


def ready_ensurepip():
    """Debian keeps the half of `venv` that brings pip in a package of its own: install it, or say how."""
    if has_ensurepip():
        return
    minor = f"python3.{sys.version_info[1]}-venv"
    advice = (
        "this Python cannot make a virtual environment: apt-get install python3-venv (as root), then run make again"
    )
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        sys.exit(advice)
    print("installing Debian's python3-venv, which this Python needs to make .venv", flush=True)
    said = install_packages(minor)
    if not has_ensurepip():
        sys.exit(f"{said}\n{advice}".strip())


def install_packages(*names):
    """Install Debian packages, quietly, as root; what the last command said."""
    quiet = dict(os.environ, DEBIAN_FRONTEND="noninteractive")
    # A configuration file that is there already stays.
    install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", "-o", "Dpkg::Options::=--force-confold"]
    for command in (["apt-get", "update", "-qq"], install + list(names)):
        done = subprocess.run(command, env=quiet, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return done.stdout.decode(errors="replace").strip()


def has_ensurepip():
    """Asked of a fresh process: an import that failed once is remembered by this one."""
    return subprocess.call([sys.executable, "-c", "import ensurepip, venv"], stderr=subprocess.DEVNULL) == 0


def pip(*arguments):
    """Install with the environment's own pip, quietly; what pip says on a failure is shown."""
    command = [str(PYTHON), "-m", "pip", "install", "-q", "--no-input", "--disable-pip-version-check"]
    subprocess.check_call(command + list(arguments), cwd=str(ROOT))


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in LOCKS:
        sys.exit("usage: python3 tools/environment.py {}".format("|".join(LOCKS)))
    try:
        main(sys.argv[1])
    except KeyboardInterrupt:
        sys.exit("interrupted; the next make starts the install again")
    except subprocess.CalledProcessError as error:
        sys.exit(f"could not install (exit code {error.returncode}), see above; the next make starts again")

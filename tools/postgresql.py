"""PostgreSQL's programs, which the tests start a server of their own from: `python3 tools/postgresql.py find|install`.

`find` prints the folder that `initdb` and `postgres` are in; exit code 1 when there is none. `install` gets them from
Debian's packages when they are not there and this is root; else it says what will not be tested, and leaves it at that.
"""

import os
import re
import shutil
import sys
from pathlib import Path

from environment import install_packages

# Debian and what is made from it, Fedora and its kin, Arch, a build of one's own.
FOLDERS = ("/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin", "/usr/bin", "/usr/local/pgsql/bin")
SETTINGS = Path("/etc/postgresql-common/createcluster.conf")


def find():
    """The folder of the newest version's programs, or None."""
    on_path = shutil.which("initdb")
    folders = [Path(on_path).resolve().parent] if on_path else []
    for pattern in FOLDERS:
        folders += sorted(Path("/").glob(pattern.lstrip("/")), key=version_of, reverse=True)
    for folder in folders:
        if all(os.access(str(folder / name), os.X_OK) for name in ("initdb", "postgres")):
            return str(folder)
    return None


def version_of(folder):
    """The numbers in a path: 9.6 comes before 15."""
    return [int(number) for number in re.findall("[0-9]+", str(folder))]


def install():
    """Have the programs there, or say that they are not."""
    if find() is not None:
        return
    said = ""
    if os.geteuid() == 0 and shutil.which("apt-get") is not None:
        print("installing Debian's postgresql, which the tests start a server of their own from", flush=True)
        if not SETTINGS.exists():
            # The package would make and start a server for this machine, which nobody asked for.
            SETTINGS.parent.mkdir(parents=True, exist_ok=True)
            SETTINGS.write_text("create_main_cluster = false\n")
        said = install_packages("postgresql")
    if find() is None:
        print(
            f"{said}\nPostgreSQL is not installed (apt-get install postgresql): nothing will be tested against it".strip()
        )


if __name__ == "__main__":
    if sys.argv[1:] == ["find"]:
        print(find() or "", end="")
        sys.exit(find() is None)
    if sys.argv[1:] != ["install"]:
        sys.exit("usage: python3 tools/postgresql.py find|install")
    install()

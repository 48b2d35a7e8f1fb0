"""The `/etc` of a sandbox on the host's base: a few generated files, and copies of what programs in `/usr` rely on.

Nothing that tells who or what this machine is, and nothing that changes how programs are loaded: `ld.so.preload`, the
host's accounts, keys, and package managers' settings stay out.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from assay.sandbox.launch import local_failure
from assay.workspaces import process_folder, remove_tree

SANDBOX_USER = "sandbox"
SANDBOX_UID = 1000
HOSTNAME = "sandbox"
_FOLDER_MODE = 0o755
_FILE_MODE = 0o644

_GENERATED = {
    "group": f"root:x:0:\n{SANDBOX_USER}:x:{SANDBOX_UID}:\nnogroup:x:65534:\n",
    "host.conf": "multi on\n",
    "hostname": f"{HOSTNAME}\n",
    "hosts": f"127.0.0.1\tlocalhost {HOSTNAME}\n::1\tlocalhost ip6-localhost ip6-loopback\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\nservices: files\nprotocols: files\n",
    "passwd": (
        "root:x:0:0:root:/root:/usr/sbin/nologin\n"
        f"{SANDBOX_USER}:x:{SANDBOX_UID}:{SANDBOX_UID}:sandbox:/tmp:/bin/sh\n"
        "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
    ),
    "resolv.conf": "",
}

_COPIED = (
    # Where Debian keeps the choice of `cc`, `awk`, `java`, `editor`.
    "alternatives",
    # The dynamic linker's list of folders and its cache.
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    # What this system calls itself; its time zone, file types, port and protocol names.
    "debian_version",
    "localtime",
    "mime.types",
    "os-release",
    "protocols",
    "redhat-release",
    "services",
    "timezone",
    # Certificate authorities and how OpenSSL finds them, on Debian and on Fedora; never `private`.
    "ca-certificates.conf",
    "crypto-policies",
    "pki/ca-trust/extracted",
    "pki/tls/cert.pem",
    "pki/tls/certs",
    "pki/tls/openssl.cnf",
    "ssl/cert.pem",
    "ssl/certs",
    "ssl/openssl.cnf",
    # Font configuration for whatever draws.
    "fonts",
)
_COPIED_PATTERNS = ("java-*",)
"""A Debian JDK's `conf` folder is a link to here; `java` does not start without it."""


def make_etc(folder: Path, *, network: bool, host: Path = Path("/etc")) -> None:
    """Fill the empty `folder`. With `network` the host's name servers and known hosts are in it."""
    folder.chmod(_FOLDER_MODE)
    for name, text in _GENERATED.items():
        _write(folder / name, text.encode())
    (folder / "mtab").symlink_to("../proc/self/mounts")
    if network:
        for name in ("hosts", "resolv.conf"):
            if (host / name).is_file():
                _write(folder / name, (host / name).read_bytes())
    names = [*_COPIED, *(found.name for pattern in _COPIED_PATTERNS for found in sorted(host.glob(pattern)))]
    for name in names:
        source, target = host / name, folder / name
        if not os.path.lexists(source):
            continue
        for parent in reversed(target.relative_to(folder).parents[:-1]):
            (folder / parent).mkdir(exist_ok=True)
            (folder / parent).chmod(_FOLDER_MODE)
        real = os.path.realpath(source)
        if source.is_symlink() and real.startswith("/usr/"):
            target.symlink_to(real)
        elif source.is_dir():
            _copy_folder(str(source), str(target))
        elif _is_open_file(source.stat()):
            _write(target, source.read_bytes())


_shared: dict[tuple[int, bool], Path] = {}


def shared_etc(network: bool) -> Path:
    """The generated `/etc`, made once per process. Raises `FailureEvent` where there is no room for it."""
    key = (os.getpid(), network)
    if key not in _shared:
        # Hundreds of small links and files: on a disk they take three times as long.
        folder = process_folder("etc", memory=True) / "etc"
        try:
            folder.mkdir()
            make_etc(folder, network=network)
        except OSError as error:
            # Or what there is of it would be in the way of another try.
            remove_tree(folder)
            raise local_failure(error, "make the /etc of sandboxes") from error
        _shared[key] = folder
    return _shared[key]


def _write(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    path.chmod(_FILE_MODE)


def _is_open_file(status: os.stat_result) -> bool:
    return stat.S_ISREG(status.st_mode) and bool(status.st_mode & stat.S_IROTH)


def _copy_folder(source: str, target: str) -> None:
    """Copy a folder of many small links and files: by text paths, since `Path` objects would take most of the time."""
    Path(target).mkdir()
    Path(target).chmod(_FOLDER_MODE)
    with os.scandir(source) as entries:
        for entry in entries:
            at = f"{target}/{entry.name}"
            if entry.is_symlink():
                os.symlink(os.readlink(entry.path), at)  # noqa: PTH115, PTH211 - see above
            elif entry.is_dir():
                _copy_folder(entry.path, at)
            elif _is_open_file(entry.stat()):
                _write(Path(at), Path(entry.path).read_bytes())

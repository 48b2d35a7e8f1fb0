"""The generated `/etc`: what programs need, nothing of the host's own affairs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from assay.failures import FailureEvent
from assay.sandbox import hostetc
from assay.sandbox.hostetc import make_etc


def host(tmp_path: Path) -> Path:
    etc = tmp_path / "host"
    for folder in ("alternatives", "ssl/certs", "ssl/private", "ssh", "java-17-openjdk/security"):
        (etc / folder).mkdir(parents=True)
    for name in ("ld.so.preload", "shadow", "ssl/private/key", "ssh/key", "passwd", "npmrc"):
        (etc / name).write_text("the host's own")
    (etc / "ssl/certs/ca.pem").write_text("ca")
    (etc / "ssl/certs/closed.pem").write_text("closed")
    (etc / "ssl/certs/closed.pem").chmod(0o600)
    (etc / "java-17-openjdk/security/policy").write_text("policy")
    (etc / "alternatives/cc").symlink_to("/usr/bin/gcc")
    (etc / "services").write_text("http 80/tcp\n")
    (etc / "resolv.conf").write_text("nameserver 192.0.2.1\n")
    (etc / "hosts").write_text("192.0.2.2 inside\n")
    return etc


def test_what_is_in_it(tmp_path: Path) -> None:
    made = tmp_path / "etc"
    made.mkdir()
    make_etc(made, network=False, host=host(tmp_path))
    found = {str(path.relative_to(made)) for path in made.rglob("*") if path.is_symlink() or path.is_file()}
    generated = {"group", "host.conf", "hostname", "hosts", "mtab", "nsswitch.conf", "passwd", "resolv.conf"}
    assert found - generated == {"alternatives/cc", "java-17-openjdk/security/policy", "services", "ssl/certs/ca.pem"}
    assert "sandbox:x:1000:1000:" in (made / "passwd").read_text()
    assert (made / "resolv.conf").read_text() == ""
    assert (made / "hosts").read_text().startswith("127.0.0.1\tlocalhost sandbox")
    assert str((made / "alternatives/cc").readlink()) == "/usr/bin/gcc"
    assert {path.stat().st_mode & 0o777 for path in made.rglob("*") if path.is_file() and not path.is_symlink()} == {
        0o644
    }


def test_with_the_network(tmp_path: Path) -> None:
    made = tmp_path / "etc"
    made.mkdir()
    make_etc(made, network=True, host=host(tmp_path))
    assert (made / "resolv.conf").read_text() == "nameserver 192.0.2.1\n"
    assert (made / "hosts").read_text() == "192.0.2.2 inside\n"


def test_one_that_could_not_be_made_is_a_failure_of_the_machine_and_made_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = [tmp_path / "first", tmp_path / "second"]
    for place in places:
        place.mkdir()
    monkeypatch.setattr(hostetc, "_shared", {})
    monkeypatch.setattr(hostetc, "process_folder", lambda *_, **__: places.pop(0))
    with monkeypatch.context() as full:

        def write(path: Path, content: bytes) -> None:
            if path.name == "services":
                raise OSError(28, os.strerror(28), str(path))
            path.write_bytes(content)

        full.setattr(hostetc, "_write", write)
        full.setattr(hostetc, "_COPIED", ("services",))
        with pytest.raises(FailureEvent, match="No space left on device") as failed:
            hostetc.shared_etc(False)
    assert failed.value.kind == "transport_local_resource"
    assert list((tmp_path / "first").iterdir()) == []
    assert (hostetc.shared_etc(False) / "hosts").is_file()

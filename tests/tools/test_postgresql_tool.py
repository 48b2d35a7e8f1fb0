"""`tools/postgresql.py`: found where it is, installed when root, else said."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest

TOOLS = Path(__file__).resolve().parent.parent.parent / "tools"


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The tool on a machine with `apt-get` and without PostgreSQL."""
    monkeypatch.syspath_prepend(TOOLS)
    spec = importlib.util.spec_from_file_location("assay_postgresql_tool", TOOLS / "postgresql.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules.pop("environment", None)
    monkeypatch.setattr(module, "FOLDERS", (str(tmp_path / "postgresql" / "*" / "bin"),))
    monkeypatch.setattr(module, "SETTINGS", tmp_path / "etc" / "createcluster.conf")
    monkeypatch.setenv("PATH", str(programs(tmp_path / "path", "apt-get")))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(module, "install_packages", lambda *names: pytest.fail(f"installed {names}"))
    return module


def programs(folder: Path, *names: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_text("#!/bin/sh\n")
        (folder / name).chmod(0o755)
    return folder


def test_the_newest_whole_one_is_found(tool: ModuleType, tmp_path: Path) -> None:
    assert tool.find() is None
    programs(tmp_path / "postgresql" / "17" / "bin", "initdb")  # without a server
    for version in ("9.6", "15", "16"):
        programs(tmp_path / "postgresql" / version / "bin", "initdb", "postgres")
    assert tool.find() == str(tmp_path / "postgresql" / "16" / "bin")


def test_what_is_there_is_left_alone(tool: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    programs(tmp_path / "postgresql" / "16" / "bin", "initdb", "postgres")
    tool.install()
    assert capsys.readouterr().out == ""


def test_root_installs_the_programs_and_no_server(
    tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def install(*names: str) -> str:
        assert names == ("postgresql",)
        assert tool.SETTINGS.read_text() == "create_main_cluster = false\n"
        programs(tmp_path / "postgresql" / "15" / "bin", "initdb", "postgres")
        return ""

    monkeypatch.setattr(tool, "install_packages", install)
    tool.install()
    assert capsys.readouterr().out == (
        "installing Debian's postgresql, which the tests start a server of their own from\n"
    )


@pytest.mark.parametrize("why", ["no root", "no apt-get", "no packages"])
def test_what_will_not_be_tested_is_said(
    tool: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], why: str
) -> None:
    if why == "no root":
        monkeypatch.setattr(os, "geteuid", lambda: 1000)
    elif why == "no apt-get":
        monkeypatch.setenv("PATH", "/nonexistent")
    else:
        monkeypatch.setattr(tool, "install_packages", lambda *_: "no network")
    tool.install()
    said = capsys.readouterr().out
    assert said.endswith(
        "PostgreSQL is not installed (apt-get install postgresql): nothing will be tested against it\n"
    )

"""Where a run's parts are, and what is said of places that are none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from assay.answers import StoreUnusable
from assay.grading import WrongArgument
from assay.runs import AgentSettings, GradingSettings, RunSettings, find_place, make_place, open_run, read_run

SETTINGS = RunSettings("/data", AgentSettings("nop"))


def test_a_run_is_in_its_folder_unless_it_says_otherwise(tmp_path: Path) -> None:
    place = make_place(tmp_path / "run")
    assert (place.store, place.snapshots) == (str(tmp_path / "run" / "run.sqlite"), str(tmp_path / "run" / "snapshots"))
    assert list((tmp_path / "run").iterdir()) == []


def test_places_are_noted_without_a_password_and_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make_place(tmp_path / "run", store="postgresql://me:secret@host/db", snapshots="elsewhere")
    assert "secret" not in (tmp_path / "run" / "places.json").read_text()
    place = find_place(tmp_path / "run")
    assert place.store == "postgresql://me@host/db"
    assert place.snapshots == str(tmp_path / "elsewhere")
    assert find_place(tmp_path / "run", store="postgresql://me:other@host/db").store == "postgresql://me:other@host/db"


@pytest.mark.parametrize("content", ["{", "[]", '{"store": 5}'])
def test_places_that_cannot_be_read(tmp_path: Path, content: str) -> None:
    (tmp_path / "places.json").write_text(content)
    with pytest.raises(StoreUnusable, match=r"places\.json: .* give --store URL again"):
        find_place(tmp_path)


@pytest.mark.parametrize(
    ("name", "namespace"),
    [
        ("night", "run_night"),
        ("My run-2", "run_my_run_2"),
        ("x" * 59, "run_" + "x" * 59),
        ("x" * 60, "run_" + "x" * 42 + "_eb4ea6194dc50c9d"),
        ("X" * 80, "run_" + "x" * 42 + "_dc0e69412c069909"),
    ],
)
def test_a_runs_schema_is_named_by_its_folder(tmp_path: Path, name: str, namespace: str) -> None:
    assert find_place(tmp_path / name).namespace == namespace


def test_settings_come_back_as_they_were(tmp_path: Path) -> None:
    settings = RunSettings(
        "/data",
        AgentSettings("command", command="x", env=("A",), network=True, timeout_s=3.0),
        GradingSettings("process", "host", True, 5.0, False, {"default": "http://h/v1"}),
        4,
    )
    place = make_place(tmp_path / "run")
    with open_run(place, who="a test", state=tmp_path / "state", settings=settings) as run:
        assert run.settings == settings
    with open_run(place, who="a test", state=tmp_path / "state") as run:
        assert run.settings == settings
    assert RunSettings.from_json(json.loads(json.dumps(settings.to_json()))) == settings


def test_a_record_of_somebody_elses_is_refused() -> None:
    with pytest.raises(StoreUnusable, match="cannot be read"):
        RunSettings.from_json({"dataset": "/data"})


@pytest.mark.parametrize("kind", ["absent", "never begun"])
def test_a_run_that_is_not_there(tmp_path: Path, kind: str) -> None:
    place = make_place(tmp_path / "run")
    if kind == "never begun":
        from assay.answers import open_store

        open_store(place.store).close()
    with pytest.raises(StoreUnusable), open_run(place, who="a test", state=tmp_path / "state"):
        pass
    if kind == "absent":
        with pytest.raises(StoreUnusable, match="there is no run"), read_run(place):
            pass


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"name": "other"}, "there is none called 'other'"),
        ({"name": "command"}, "give --command 'CMD'"),
        ({"name": "model", "model": "m"}, "give --base-url URL"),
        ({"name": "replay"}, "give --from FILE_OR_RUN"),
        ({"name": "oracle", "command": "x"}, "has no use for --command"),
        ({"name": "nop", "network": True}, "has no use for --agent-network"),
    ],
)
def test_agents_that_lack_something_or_have_too_much(given: dict[str, object], said: str) -> None:
    with pytest.raises(WrongArgument, match=said):
        AgentSettings(**given)  # type: ignore[arg-type]

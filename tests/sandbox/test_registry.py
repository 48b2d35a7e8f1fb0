"""Providers by name."""

from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest

from assay.sandbox import get_provider, provider_names, registry


def test_names() -> None:
    assert provider_names() == ("auto", "bubblewrap", "namespaces", "process")


@pytest.mark.parametrize(
    ("name", "expected", "isolated"), [("auto", "namespaces", True), ("process", "process", False)]
)
def test_one_per_process(name: str, expected: str, isolated: bool) -> None:
    provider = get_provider(name)
    assert (provider.name, provider.isolated) == (expected, isolated)
    assert get_provider(name) is get_provider(expected) is provider


def test_an_unknown_name() -> None:
    with pytest.raises(ValueError, match=r"no sandbox provider 'docker'; known: auto, bubblewrap, namespaces, process"):
        get_provider("docker")


def test_an_entry_point_that_is_no_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = EntryPoint("odd", "builtins:object", registry.GROUP)
    monkeypatch.setattr(registry, "_found", lambda: {"odd": entry})
    with pytest.raises(TypeError, match=r"'builtins:object' makes no sandbox provider: no name, isolated"):
        get_provider("odd")


def test_auto_takes_what_works(monkeypatch: pytest.MonkeyPatch) -> None:
    made = {name: provider for name, provider in registry._made.items() if name != "auto"}
    monkeypatch.setattr(registry, "_made", made)
    monkeypatch.setattr(get_provider("namespaces"), "capabilities", frozenset)
    assert get_provider("auto").name == "bubblewrap"
    del made["auto"]
    monkeypatch.setattr(get_provider("bubblewrap"), "capabilities", frozenset)
    assert get_provider("auto").name == "namespaces", "neither does: the first is the one to say why"

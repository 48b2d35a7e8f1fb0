import logging
import re
from pathlib import Path

import pytest

from assay.failures import INFRASTRUCTURE, KINDS, check_kind, is_infrastructure, kinds
from assay.failures.kinds import KIND_MAX

# As written in the specification.
SHARED = [
    "transport_unreachable",
    "transport_peer_drop",
    "transport_timeout",
    "transport_local_resource",
    "agent_run_error",
    "agent_request_failed",
    "agent_timeout",
    "agent_route_failed",
    "judge_failed",
    "judge_unparseable",
    "verifier_error",
    "provider_unavailable",
    "provider_quota_exhausted",
    "provider_oom_killed",
    "session_lost",
    "session_expired",
    "cancelled",
    "shutdown",
    "persistence_failed",
]
OURS = [
    "missing_reward",
    "invalid_reward",
    "reward_key_missing",
    "verdict_conflict",
    "verifier_contract",
    "cannot_grade",
    "verifier_timeout",
    "cpu_limit",
    "memory_limit",
    "process_limit",
    "output_limit",
    "storage_limit",
    "image_missing",
    "collect_failed",
    "healthcheck_failed",
    "guarantee_unmet",
    "not_admitted",
    "task_invalid",
    "workspace_invalid",
    "workspace_limit",
]


def test_the_kinds_are_those_of_the_specification():
    assert set(SHARED) | {f"assay:{name}" for name in OURS} == KINDS


def test_each_kind_has_a_constant_named_after_it():
    constants = {
        value: name
        for name, value in vars(kinds).items()
        if name.isupper() and isinstance(value, str) and not name.startswith("_")
    }
    assert constants == {kind: kind.removeprefix("assay:").upper() for kind in KINDS}


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("provider_unavailable", True),
        ("provider_quota_exhausted", True),
        ("provider_oom_killed", True),
        ("persistence_failed", True),
        ("shutdown", True),
        ("cancelled", True),
        ("assay:not_admitted", True),
        ("transport_timeout", True),
        ("transport_something_new", True),
        ("not_transport_timeout", False),
        ("session_lost", False),
        ("judge_failed", False),
        ("agent_route_failed", False),
        ("verifier_error", False),
        ("assay:missing_reward", False),
        ("assay:memory_limit", False),
        ("assay:workspace_limit", False),
    ],
)
def test_infrastructure(kind, expected):
    assert is_infrastructure(kind) is expected


def test_infrastructure_kinds_are_known_kinds():
    assert INFRASTRUCTURE < KINDS


@pytest.mark.parametrize("kind", ["a", "a_1", "mine:a", "m1_n:b_2", "a" * KIND_MAX])
def test_names_that_fit_the_grammar(kind):
    assert check_kind(kind) == kind


@pytest.mark.parametrize(
    "kind",
    [
        "",
        "A",
        "1a",
        "_a",
        "a-b",
        "a b",
        "a:",
        ":a",
        "a:b:c",
        "a.b",
        "é",
        "a\n",
        "mine:1",
        "a" * (KIND_MAX + 1),
        None,
        3,
    ],
)
def test_names_that_do_not(kind):
    with pytest.raises(ValueError, match="lower-case letters"):
        check_kind(kind)


def test_an_unknown_kind_is_warned_about_once(caplog):
    caplog.set_level(logging.WARNING)
    for _ in range(3):
        assert check_kind("other_tool:seen_once") == "other_tool:seen_once"
        assert check_kind("judge_failed") == "judge_failed"
    assert [record.message.split(":")[0] for record in caplog.records] == ["unknown failure kind other_tool"]


def test_the_documents_list_every_kind():
    root = Path(__file__).resolve().parents[2]
    page = (root / "docs" / "failures.md").read_text()
    rows = re.findall(
        r"`([a-z:_]+)`", "".join(line.split("|")[1] for line in page.splitlines() if line.startswith("|"))
    )
    assert set(rows) >= KINDS
    tree = (root / "src" / "assay" / "failures" / "__init__.py").read_text()
    assert [kind for kind in KINDS if kind not in tree] == []

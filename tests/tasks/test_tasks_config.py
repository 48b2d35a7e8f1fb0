from __future__ import annotations

from typing import get_args

import pytest

from assay.sandbox.base import Capability
from assay.tasks import TaskInvalid
from assay.tasks.config import deprecated_keys, line_of, parse_toml, unknown_keys, validate
from assay.tasks.tables import CAPABILITIES, DatasetSettings, EnvironmentTable, TaskConfig


def read(text: str) -> TaskConfig:
    return validate(TaskConfig, parse_toml(text.encode(), "task.toml"), "task.toml")


def problems(text: str) -> tuple[str, ...]:
    with pytest.raises(TaskInvalid) as caught:
        read(text)
    return caught.value.problems


FULL = """
schema_version = "1.4"
source = "https://example.org"
artifacts = ["/app/out", {source = "/app/log", destination = "logs/x", exclude = ["*.tmp"], service = "main"}]
multi_step_reward_strategy = "final"
[task]
name = "org/name"
version = "2"
description = "d"
authors = [{name = "A", email = "a@example.org"}, {name = "B"}]
keywords = ["k"]
[metadata]
anything = {goes = [1, "x"]}
[agent]
timeout_sec = 12
user = "agent"
network_mode = "allowlist"
allowed_hosts = ["example.org"]
[verifier]
timeout_sec = 30.5
env = {A = "1", B = "${B:-x}"}
user = 0
environment_mode = "separate"
environment = {cpus = 2, memory_mb = 512.0}
network_mode = "no-network"
allowed_hosts = []
[[verifier.collect]]
command = "true"
service = "db"
timeout_sec = 3
user = "root"
[environment]
build_timeout_sec = 1
docker_image = "python:3.12"
os = "linux"
cpus = 0.5
memory_mb = 2048
storage_mb = 10240
gpus = 0
gpu_types = ["H100"]
mcp_servers = [{name = "m", transport = "streamable-http", url = "http://m"}]
env = {X = "y"}
skills_dir = "/skills"
workdir = "/srv"
network_mode = "public"
allowed_hosts = ["x"]
[environment.healthcheck]
command = "true"
interval_sec = 1
timeout_sec = 2
start_period_sec = 0
start_interval_sec = 3
retries = 0
[solution]
env = {S = "1"}
[[steps]]
name = "one"
min_reward = 0.5
artifacts = ["/x"]
[steps.agent]
timeout_sec = 1
[steps.verifier]
timeout_sec = 2
[steps.healthcheck]
command = "true"
[[steps]]
name = "two"
min_reward = {reward = 1, other = 0.5}
[assay]
reverify_mode = "unsupported"
reward_key = "score"
reward_range = [-1, 1.0]
require = ["memory_limit", "overlay"]
rootfs = "my-image"
[assay.judges.default]
base_url = "http://judge/v1"
model = "m"
api_key_env = "KEY"
max_tokens = 100
timeout_sec = 60
"""


def test_every_key_of_the_reference_is_known() -> None:
    config = read(FULL)
    assert unknown_keys(config) == ()
    assert config.artifacts[0].source == "/app/out"
    assert config.artifacts[1].destination == "logs/x"
    assert config.verifier.environment is not None
    assert config.verifier.environment.memory_mb == 512
    assert config.steps[1].min_reward == {"reward": 1.0, "other": 0.5}
    assert config.assay.reward_range == (-1.0, 1.0)
    assert config.assay.judges["default"].max_tokens == 100


def test_defaults_are_those_of_the_reference() -> None:
    config = read("")
    assert (config.verifier.timeout_sec, config.environment.build_timeout_sec) == (600.0, 600.0)
    assert (config.environment.os, config.environment.network_mode) == ("linux", "public")
    assert (config.multi_step_reward_strategy, config.artifacts, config.steps) == ("mean", [], [])
    assert config.agent.timeout_sec is None
    assert config.verifier.environment_mode is None
    health = read('[environment.healthcheck]\ncommand = "x"').environment.healthcheck
    assert health is not None
    assert (health.interval_sec, health.timeout_sec, health.start_period_sec, health.retries) == (5.0, 30.0, 0.0, 3)
    collect = read('[[verifier.collect]]\ncommand = "x"').verifier.collect[0]
    assert (collect.service, collect.timeout_sec) == ("main", 60.0)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "[verifier]\ntimeout_sec = -5",
            "task.toml: [verifier] timeout_sec must be a positive number of seconds, got -5",
        ),
        (
            "[verifier]\ntimeout_sec = 0",
            "task.toml: [verifier] timeout_sec must be a positive number of seconds, got 0",
        ),
        ("[agent]\ntimeout_sec = inf", "task.toml: [agent] timeout_sec must be a positive number of seconds, got inf"),
        ("[agent]\ntimeout_sec = nan", "task.toml: [agent] timeout_sec must be a positive number of seconds, got nan"),
        (
            "[agent]\ntimeout_sec = true",
            "task.toml: [agent] timeout_sec must be a positive number of seconds, got true",
        ),
        (
            '[verifier]\ntimeout_sec = "soon"',
            'task.toml: [verifier] timeout_sec must be a positive number of seconds, got "soon"',
        ),
        (
            "[environment]\nmemory_mb = 1.5",
            "task.toml: [environment] memory_mb must be a positive whole number of megabytes, got 1.5",
        ),
        (
            '[environment]\nworkdir = "app"',
            'task.toml: [environment] workdir must be an absolute path, such as "/app", got "app"',
        ),
        (
            '[environment]\nnetwork_mode = "publik"',
            'task.toml: [environment] network_mode must be one of "public", "no-network", "allowlist"; '
            'did you mean "public"?, got "publik"',
        ),
        (
            '[environment]\nmemory = "lots"',
            'task.toml: [environment] memory must be text with a unit, such as "2G" or "512M", got "lots"',
        ),
        ("[verifier.env]\nA = 1", "task.toml: [verifier.env] A must be text in quotes, got 1"),
        ('[task]\nversion = "1"', "task.toml: [task] name is missing and must be given"),
        ('[task]\nname = "a/b"\nkeywords = ["x", 3]', "task.toml: [task] keywords[1] must be text in quotes, got 3"),
        ("verifier = 3", "task.toml: verifier must be a table, got 3"),
        ("[[steps]]\n", "task.toml: [[steps]] #1 name is missing and must be given"),
        (
            '[[steps]]\nname = "a"\n[[steps]]\nname = "b"\n[steps.verifier]\ntimeout_sec = 0',
            "task.toml: [[steps]] #2, [steps.verifier] timeout_sec must be a positive number of seconds, got 0",
        ),
        (
            'artifacts = [{source = "x", destination = "../y"}]',
            'task.toml: [[artifacts]] #1 destination must be a relative path without "..", got "../y"',
        ),
        (
            "artifacts = [3]",
            "task.toml: artifacts[0] must be a path, or a table with source, got 3",
        ),
        (
            '[[steps]]\nname = "a"\nmin_reward = "high"',
            'task.toml: [[steps]] #1 min_reward must be a number, or a table of numbers by reward key, got "high"',
        ),
        (
            "[assay.judges.default]\nbase_url = '127.0.0.1:8000/v1'",
            "task.toml: [assay.judges.default] base_url must be a URL that begins with http:// or https://, "
            'got "127.0.0.1:8000/v1"',
        ),
        (
            "[assay]\nreward_range = [1, 0]",
            "task.toml: [assay] reward_range must be two finite numbers, the lower one first, such as [0.0, 1.0], got [1, 0]",
        ),
        (
            '[assay]\nrequire = ["memory"]',
            'task.toml: [assay] require must be a list of capability names, and "memory" is none; '
            'did you mean "memory_limit"?, got ["memory"]',
        ),
        (
            '[assay]\nreward_kye = "x"',
            'task.toml: [assay] reward_kye is not a key of this table; did you mean "reward_key"?',
        ),
        (
            '[assay.judges.default]\nmodell = "x"',
            'task.toml: [assay.judges.default] modell is not a key of this table; did you mean "model"?',
        ),
    ],
)
def test_a_wrong_value_says_file_table_key_what_is_and_what_should_be(text: str, expected: str) -> None:
    assert problems(text)[0] == expected


def test_all_problems_are_told_at_once() -> None:
    assert len(problems("[verifier]\ntimeout_sec = 0\n[agent]\ntimeout_sec = -1\n[environment]\ncpus = 0")) == 3


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"[verifier]\ntimeout_sec = = 5", "task.toml: line 2, column 15: "),
        (b"a = 1\nb = [1,", "task.toml: line 2, at the end: "),
        (b"a = 1\nb = '\xff'", "task.toml: line 2: byte 0xff is not UTF-8"),
        (b"\xef\xbb\xbfa = 1", "task.toml: line 1: starts with a byte order mark"),
        (b"a = " + b"9" * 5000, "task.toml: holds a value that cannot be read"),
        (b"a = " + b"[" * 100_000, "task.toml: is nested too deeply to be read"),
        (b"a = 1\na = 2\n", "task.toml: line 2, column 6: "),
    ],
)
def test_a_file_that_is_no_toml_says_where(data: bytes, expected: str) -> None:
    with pytest.raises(TaskInvalid) as caught:
        parse_toml(data, "task.toml")
    assert caught.value.problems[0].startswith(expected)
    assert caught.value.kind == "assay:task_invalid"


@pytest.mark.parametrize(
    ("text", "path", "guess"),
    [
        ("[verifier]\ntimeout = 5", "verifier.timeout", "timeout_sec"),
        ('[environment]\nimage = "x"', "environment.image", "docker_image"),
        ("[environment]\nmemory-mb = 5", "environment.memory-mb", "memory_mb"),
        ("[verifier.environment]\ncpu = 5", "verifier.environment.cpu", "cpus"),
        ('[[steps]]\nname = "x"\ndir = "y"', "steps[0].dir", None),
        ("[verifer]\nx = 5", "verifer", "verifier"),
    ],
)
def test_an_unknown_key_is_kept_and_reported(text: str, path: str, guess: str | None) -> None:
    assert [(key.path, key.nearest) for key in unknown_keys(read(text))] == [(path, guess)]


@pytest.mark.parametrize(
    ("given", "field", "value"),
    [
        ({"memory": "2G"}, "memory_mb", 2048),
        ({"memory": "512M"}, "memory_mb", 512),
        ({"memory": "1.5GiB"}, "memory_mb", 1536),
        ({"memory": "2G", "memory_mb": 100}, "memory_mb", 100),
        ({"storage": "1T"}, "storage_mb", 1024 * 1024),
        ({"allow_internet": False}, "network_mode", "no-network"),
        ({"allow_internet": True}, "network_mode", "public"),
        ({"allow_internet": False, "network_mode": "allowlist"}, "network_mode", "allowlist"),
    ],
)
def test_a_deprecated_key_gives_its_successor_the_value(given: dict[str, object], field: str, value: object) -> None:
    assert getattr(validate(EnvironmentTable, given, "task.toml"), field) == value


def test_deprecated_keys_are_listed_with_their_successors() -> None:
    document = parse_toml(b'version = "1.0"\n[environment]\nmemory = "2G"\n[verifier.environment]\nstorage = "1G"', "x")
    assert [tuple(key) for key in deprecated_keys(document)] == [
        ("environment.memory", "memory_mb"),
        ("verifier.environment.storage", "storage_mb"),
        ("version", "schema_version"),
    ]
    assert validate(TaskConfig, document, "x").schema_version == "1.0"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('[assay.defaults]\nreward = "x"', "dataset.toml: [assay.defaults] reward is not a key of this table; "),
        ('[assay.tasks."a/b"]\nrewardkey = "x"', 'dataset.toml: [assay.tasks."a/b"] rewardkey is not a key'),
        ("[assay.defaults.verifier]\ntimeout_sec = 0", "dataset.toml: [assay.defaults.verifier] timeout_sec must be"),
    ],
)
def test_our_own_table_of_a_dataset_is_strict(text: str, expected: str) -> None:
    document = parse_toml(text.encode(), "dataset.toml")
    with pytest.raises(TaskInvalid) as caught:
        validate(DatasetSettings, document["assay"], "dataset.toml", ("assay",))
    assert caught.value.problems[0].startswith(expected)


def test_harbors_tables_within_ours_stay_lenient() -> None:
    ours = {"defaults": {"environment": {"colour": "red"}}, "tasks": {"environment": {"verifier": {"x": 1}}}}
    assert validate(DatasetSettings, ours, "dataset.toml", ("assay",)).defaults.environment is not None


def test_the_capability_names_are_those_of_the_sandbox() -> None:
    assert set(CAPABILITIES) == {str(capability) for capability in Capability}


def test_lines_are_found_below_their_headers() -> None:
    text = 'version = "1"\n\n[verifier]\n# timeout = 1\ntimeout = 5\n[verifier.env]\nA = "x"\n[[steps]]\ndir = "d"\n'
    assert [
        line_of(text, path) for path in ("version", "verifier.timeout", "verifier.env.A", "steps[0].dir", "no")
    ] == [
        1,
        5,
        7,
        9,
        None,
    ]


def test_literals_and_their_messages_cannot_drift() -> None:
    for field, model in (("network_mode", EnvironmentTable), ("os", EnvironmentTable)):
        annotation = model.model_fields[field].annotation
        for word in get_args(annotation):
            assert getattr(validate(model, {field: word}, "x"), field) == word

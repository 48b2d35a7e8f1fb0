"""Shared mode in real sandboxes: the agent's own filesystem, and what it cannot do there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from assay.grading import Verdict, check_task, grade
from assay.tasks import load_task
from filesystem import contents, make_bash_task, make_filesystem

REWARD = "/logs/verifier/reward.txt"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_filesystem(tmp_path / "agent")


@pytest.fixture(params=["namespaces", "bubblewrap", "process"])
def provider(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def judge(tmp_path: Path, task: Path, root: Path, workspace: Path | None = None, **options: Any) -> Verdict:
    options.setdefault("control", False)
    return await grade(task, workspace, mode="shared", rootfs=str(root), state=tmp_path / "state", **options)


async def test_the_verifier_sees_and_writes_all_of_the_agents_filesystem(
    tmp_path: Path, root: Path, provider: str
) -> None:
    (root / "etc" / "service.conf").write_text("port 80\n")
    (root / "root" / "key").write_text("k")
    (root / "app" / "answer").write_text("42\n")
    task = make_bash_task(
        tmp_path / "task",
        "set -e\ngrep -q 'port 80' /etc/service.conf\ngrep -q k /root/key\necho x >> /etc/service.conf\n"
        'touch /usr/bin/new /made /app/new\n[ "$PWD" = /app ]\ngrep -q 42 answer\n'
        f'[ -z "$(ls -A /tmp)" ]\n[ -z "$(ls -A /logs/verifier)" ]\necho 0.5 > {REWARD}',
    )
    (root / "tmp" / "left").write_text("by the agent")
    before = contents(root)
    verdict = await judge(tmp_path, task, root, sandbox=provider)
    assert (verdict.reward, verdict.trust, verdict.base) == (
        0.5,
        "none" if provider == "process" else "shared",
        str(root),
    ), verdict
    assert contents(root) == before
    again = await judge(tmp_path, task, root, sandbox=provider)
    assert again.reward == 0.5, again


async def test_a_repeat_sees_the_filesystem_as_it_was(tmp_path: Path, root: Path) -> None:
    script = f"[ -e /etc/been ] && echo 1 > {REWARD}\ntouch /etc/been /app/been\nexit 1"
    verdict = await judge(tmp_path, make_bash_task(tmp_path / "task", script), root, control=True)
    assert verdict.failure is not None
    assert (verdict.failure["kind"], verdict.flaky) == ("assay:missing_reward", False)


def a_file_for_tests(root: Path) -> None:
    (root / "tests").write_text("not a folder")


def a_link_for_tests(root: Path) -> None:
    (root / "tests").symlink_to("/app")


def planted_tests(root: Path) -> None:
    (root / "tests").mkdir()
    (root / "tests" / "test.sh").write_text(f"echo 1 > {REWARD}")


def planted_reward(root: Path) -> None:
    (root / "logs" / "verifier").mkdir(parents=True)
    (root / "logs" / "verifier" / "reward.json").write_text("1")


def linked_logs(root: Path) -> None:
    (root / "app" / "logs").mkdir()
    (root / "logs").symlink_to("/app/logs")


def files_for_folders(root: Path) -> None:
    for name in ("logs", "tmp", "proc", "dev", "sys", "run"):
        if (root / name).is_dir():
            (root / name).rmdir()
        (root / name).write_text("x")


def links_to_the_host(root: Path) -> None:
    for name in ("tmp", "proc", "dev", "sys"):
        if (root / name).is_dir():
            (root / name).rmdir()
        (root / name).symlink_to("/oldroot")


def file_for_var_tmp(root: Path) -> None:
    (root / "var" / "tmp").rmdir()
    (root / "var" / "tmp").write_text("x")


def no_workdir(root: Path) -> None:
    (root / "app").rmdir()


HOSTILE = [
    a_file_for_tests,
    a_link_for_tests,
    planted_tests,
    planted_reward,
    linked_logs,
    files_for_folders,
    links_to_the_host,
    file_for_var_tmp,
    no_workdir,
]


@pytest.mark.parametrize("plant", HOSTILE, ids=lambda plant: plant.__name__)
async def test_what_an_agent_leaves_in_a_mounts_place_changes_nothing(
    tmp_path: Path, root: Path, plant: Any, provider: str
) -> None:
    plant(root)
    task = make_bash_task(tmp_path / "task", f"[ -d /proc/1 ] && [ -c /dev/null ] && echo 0.25 > {REWARD}")
    verdict = await judge(tmp_path, task, root, sandbox=provider)
    assert verdict.reward == 0.25, verdict


@pytest.mark.parametrize("place", ["app", "var", "usr"])
async def test_a_filesystem_that_was_broken_is_worth_the_floor_once_the_verifier_is_proven(
    tmp_path: Path, root: Path, place: str
) -> None:
    """Breaking the layout must not be a way out of a bad reward."""
    task = make_bash_task(
        tmp_path / "task",
        f"grep -q 1 /app/answer && echo 1 > {REWARD} || echo 0 > {REWARD}",
        solution="echo 1 > answer",
    )
    (root / place).rename(root / "moved")
    (root / place).write_text("a file")
    if place == "usr":
        (root / "bin").unlink()
        (root / "bin").mkdir()
    verdict = await judge(tmp_path, task, root, control=True)
    assert (verdict.status, verdict.reward, verdict.proven) == ("graded", 0.0, True), verdict


async def test_a_workspace_takes_the_place_of_the_workdir(tmp_path: Path, root: Path) -> None:
    (root / "app" / "old").write_text("x")
    (tmp_path / "w").mkdir()
    (tmp_path / "w" / "new").write_text("x")
    task = make_bash_task(tmp_path / "task", f'[ "$(ls)" = new ] && echo 1 > {REWARD}')
    assert (await judge(tmp_path, task, root, tmp_path / "w")).reward == 1.0


async def test_the_controls_work_on_the_images_folder(tmp_path: Path, root: Path) -> None:
    """The solution changes the system outside the workdir; that is what the verifier looks at."""
    image = make_filesystem(tmp_path / "state" / "rootfs" / "org" / "image")
    before = contents(image)
    task = make_bash_task(
        tmp_path / "task",
        f"grep -q on /etc/feature && echo 1 > {REWARD} || echo 0 > {REWARD}",
        '[environment]\ndocker_image = "org/image"\n',
        solution="echo on > /etc/feature",
    )
    verdict = await judge(tmp_path, task, root, control=True)
    assert (verdict.reward, verdict.proven) == (0.0, True), verdict
    (root / "etc" / "feature").write_text("on")
    assert (await judge(tmp_path, task, root, control=True)).reward == 1.0
    assert contents(image) == before


async def test_what_was_replaced_of_the_image_is_named(tmp_path: Path, root: Path) -> None:
    make_filesystem(tmp_path / "state" / "rootfs" / "org" / "image")
    toml = '[environment]\ndocker_image = "org/image"\n'
    task = make_bash_task(tmp_path / "task", f"echo 1 > {REWARD}", toml)
    assert (await judge(tmp_path, task, root)).replaced == ()
    (root / "usr" / "bin" / "sh").write_text("#!/bin/bash\n")
    (root / "etc" / "ld.so.preload").write_text("/app/evil.so\n")
    verdict = await judge(tmp_path, task, root)
    assert (verdict.trust, verdict.replaced) == ("shared", ("/bin/sh", "/etc/ld.so.preload"))


async def test_without_its_image_a_task_is_graded_without_controls(tmp_path: Path, root: Path) -> None:
    toml = '[environment]\ndocker_image = "org/absent"\n'
    task = make_bash_task(tmp_path / "task", f"echo 0 > {REWARD}", toml, solution="true")
    verdict = await judge(tmp_path, task, root, control=True)
    assert (verdict.reward, verdict.proven, verdict.rule) == (0.0, False, "evidence-1:no-control")


USERS = [
    ('"agent"', "1234", "/home/agent"),
    ("1234", "1234", "/home/agent"),
    ('"root"', "0", "/root"),
    ("77", "77", "/tmp"),
]


@pytest.mark.parametrize(("user", "uid", "home"), USERS)
async def test_the_verifiers_user(tmp_path: Path, root: Path, user: str, uid: str, home: str) -> None:
    script = f'[ "$(id -u)" = {uid} ] && [ "$HOME" = {home} ] && touch $HOME/f /etc/f && echo 1 > {REWARD}'
    task = make_bash_task(tmp_path / "task", script, f"[verifier]\nuser = {user}\n")
    verdict = await judge(tmp_path, task, root)
    assert (verdict.reward, verdict.unmet) == (1.0, ()), verdict


async def test_a_provider_that_maps_no_users_says_so(tmp_path: Path, root: Path) -> None:
    task = make_bash_task(tmp_path / "task", f"echo 1 > {REWARD}", '[verifier]\nuser = "agent"\n')
    assert (await judge(tmp_path, task, root, sandbox="process")).unmet == ("user",)


HEALTH = [("true", 1.0, None), ("grep -q ready /etc/state", 1.0, None), ("exit 3", None, "assay:healthcheck_failed")]


@pytest.mark.parametrize(("command", "reward", "kind"), HEALTH)
async def test_a_healthcheck_is_asked_first(
    tmp_path: Path, root: Path, command: str, reward: float | None, kind: str | None
) -> None:
    (root / "etc" / "state").write_text("ready")
    task = make_bash_task(
        tmp_path / "task", f"echo 1 > {REWARD}", f'[environment.healthcheck]\ncommand = "{command}"\n'
    )
    verdict = await judge(tmp_path, task, root)
    assert (verdict.reward, (verdict.failure or {}).get("kind")) == (reward, kind), verdict
    if kind:
        assert "exit 3" in (verdict.failure or {})["reason"]


MODES = [
    ('[verifier]\nenvironment_mode = "shared"\n', "separate", "separate"),
    ("", "separate", "separate"),
    ("", "shared", "shared"),
    ('[verifier]\nenvironment_mode = "shared"\n', "shared", "shared"),
    ('[verifier]\nenvironment_mode = "separate"\n', "shared", None),
    ("[verifier.environment]\ncpus = 1\n", "shared", None),
]


@pytest.mark.parametrize(("toml", "asked", "trust"), MODES)
async def test_shared_only_when_asked_for_and_never_against_the_task(
    tmp_path: Path, root: Path, toml: str, asked: str, trust: str | None
) -> None:
    task = make_bash_task(tmp_path / "task", f"echo 1 > {REWARD}", toml)
    given: dict[str, Any] = {"mode": asked, "rootfs": str(root), "state": tmp_path / "state", "control": False}
    if trust is None:
        with pytest.raises(ValueError, match="separate"):
            await grade(task, None, **given)
        return
    assert (await grade(task, None, **given)).trust == trust


async def test_a_folder_that_is_no_filesystem_is_refused(tmp_path: Path) -> None:
    task = make_bash_task(tmp_path / "task", f"echo 1 > {REWARD}")
    verdict = await judge(tmp_path, task, tmp_path)
    assert verdict.failure is not None
    assert verdict.failure["kind"] == "assay:workspace_invalid"
    with pytest.raises(ValueError, match="--rootfs"):
        await grade(task, None, mode="shared", state=tmp_path / "state")


async def test_check_is_of_the_safe_mode(tmp_path: Path) -> None:
    task = make_bash_task(
        tmp_path / "task", f"grep -q 1 a && echo 1 > {REWARD} || echo 0 > {REWARD}", solution="echo 1 > a"
    )
    assert (await check_task(load_task(task), repeats=1, state=tmp_path / "state")).ok

"""`grade` from end to end on a scripted provider: which evidence is fetched, how often, and what it comes to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from assay.failures import FailureEvent
from assay.grading import Verdict, grade
from assay.sandbox import Capability, Ended, ExecResult, Overlay
from assay.sandbox.testing import Call, FakeProvider, FakeSandbox
from assay.tasks import load_task
from commands import make_task

OK = ExecResult(Ended.EXITED, 0)


class Script:
    """What the verifier does on the answer, look by look, and on the controls; and a count of what was run."""

    def __init__(
        self,
        answer: list[str | ExecResult | FailureEvent | None],
        untouched: str | None = "0",
        solution: str | None = "1",
    ) -> None:
        self.answer, self.untouched, self.solution = answer, untouched, solution
        self.looks = 0
        self.controls: list[str] = []

    def __call__(self, call: Call) -> ExecResult:
        if "/solution/solve.sh" in call.argv:
            self.controls.append("solve")
            (call.folders["/app"] / "solved").write_text("")
            return OK
        lower = next(mount.lower for mount in call.spec.mounts if isinstance(mount, Overlay))
        if (lower / "answer").exists():
            self.looks += 1
            return self._do(call, self.answer[self.looks - 1])
        solved = (lower / "solved").exists()
        self.controls.append("solution" if solved else "untouched")
        return self._do(call, self.solution if solved else self.untouched)

    def _do(self, call: Call, what: str | ExecResult | FailureEvent | None) -> ExecResult:
        if isinstance(what, FailureEvent):
            raise what
        if isinstance(what, ExecResult):
            return what
        if what is not None:
            (call.folders["/logs/verifier"] / "reward.txt").write_text(what)
        return OK


@pytest.fixture
def task(tmp_path: Path) -> Path:
    folder = make_task(tmp_path / "task", "")
    (folder / "tests" / "verifier.py").unlink()
    (folder / "tests" / "test.sh").write_text("#!/bin/bash\n")
    (folder / "solution").mkdir()
    (folder / "solution" / "solve.sh").write_text("#!/bin/bash\n")
    return folder


@pytest.fixture
def judge(tmp_path: Path, task: Path) -> Callable[..., object]:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    (workspace / "answer").write_text("")

    async def judged(script: Script, **options: object) -> Verdict:
        provider = FakeProvider(script)
        verdict = await grade(task, workspace, sandbox=provider, state=tmp_path / "state", **options)  # type: ignore[arg-type]
        assert provider.living == 0
        return verdict

    return judged


def lost() -> FailureEvent:
    return FailureEvent("provider_unavailable", "the disk is full")


async def test_above_the_floor_nothing_more_is_run(judge: Callable[..., object]) -> None:
    script = Script(["0.5"])
    verdict = await judge(script)  # type: ignore[misc]
    assert (verdict.reward, verdict.proven, script.looks, script.controls) == (0.5, True, 1, [])


async def test_a_zero_asks_for_controls_once_per_verifier(judge: Callable[..., object]) -> None:
    first, second = Script(["0"]), Script(["0"])
    assert (await judge(first)).proven is True  # type: ignore[misc]
    assert first.controls == ["untouched", "solve", "solution"]
    assert (await judge(second)).proven is True  # type: ignore[misc]
    assert second.controls == []


async def test_a_zero_of_a_verifier_that_gives_its_solution_nothing_is_not_proven(judge: Callable[..., object]) -> None:
    script = Script(["0"], solution="0")
    verdict = await judge(script)  # type: ignore[misc]
    assert (verdict.reward, verdict.proven, verdict.failure) == (0.0, False, None)


async def test_a_crash_of_a_working_verifier_is_the_submissions(judge: Callable[..., object]) -> None:
    script = Script([None, None])
    verdict = await judge(script)  # type: ignore[misc]
    assert (verdict.status, verdict.reward, verdict.caused_by, verdict.provisional) == (
        "graded",
        0.0,
        "submission",
        False,
    )
    assert verdict.failure["kind"] == "assay:missing_reward"
    assert script.looks == 2


async def test_a_crash_that_the_solution_shares_is_the_verifiers(judge: Callable[..., object]) -> None:
    script = Script([None, None], solution=None)
    verdict = await judge(script)  # type: ignore[misc]
    assert (verdict.status, verdict.reward, verdict.caused_by) == ("failed", None, "verifier")


async def test_bad_evidence_rests_before_it_is_asked_for_again(judge: Callable[..., object]) -> None:
    assert (await judge(Script([None, None], solution=None))).caused_by == "verifier"  # type: ignore[misc]
    again = Script([None, None], solution=None)
    assert (await judge(again)).caused_by == "verifier"  # type: ignore[misc]
    assert again.controls == []


async def test_another_answer_above_the_floor_is_evidence(judge: Callable[..., object], task: Path) -> None:
    (task / "solution" / "solve.sh").unlink()
    (task / "solution").rmdir()
    assert (await judge(Script([None, None]))).caused_by == "unknown"  # type: ignore[misc]
    assert (await judge(Script(["1"]))).reward == 1.0  # type: ignore[misc]
    settled = await judge(Script([None, None]))  # type: ignore[misc]
    assert (settled.reward, settled.caused_by) == (0.0, "submission")


async def test_a_mended_solution_is_asked_at_once(judge: Callable[..., object], task: Path) -> None:
    assert (await judge(Script([None, None], solution=None))).caused_by == "verifier"  # type: ignore[misc]
    (task / "solution" / "solve.sh").write_text("#!/bin/bash\n# mended\n")
    mended = Script([None, None])
    assert (await judge(mended)).caused_by == "submission"  # type: ignore[misc]
    assert mended.controls == ["untouched", "solve", "solution"]


async def test_flaky(judge: Callable[..., object]) -> None:
    script = Script([None, "0.5"])
    verdict = await judge(script)  # type: ignore[misc]
    assert (verdict.reward, verdict.flaky, verdict.failure, script.looks) == (0.5, True, None, 2)


@pytest.mark.parametrize(("faults", "reward", "looks"), [(1, 0.5, 2), (2, 0.5, 3), (3, None, 3)])
async def test_infrastructure_is_tried_three_times(
    judge: Callable[..., object], faults: int, reward: float | None, looks: int
) -> None:
    script = Script([*[lost() for _ in range(faults)], "0.5"])
    verdict = await judge(script)  # type: ignore[misc]
    assert (verdict.reward, script.looks) == (reward, looks)
    assert verdict.caused_by == (None if reward is not None else "infrastructure")


FAULTS = [
    (ExecResult(Ended.FAULT, fault="the host is away"), "provider_unavailable", "infrastructure", 3),
    (
        ExecResult(Ended.WALL_LIMIT, wall_s=10.0, cpu_s=0.5, run_delay_s=6.0),
        "provider_unavailable",
        "infrastructure",
        3,
    ),
    # A hundred busy processes of its own make each other wait: that is no starvation.
    (ExecResult(Ended.WALL_LIMIT, wall_s=10.0, cpu_s=19.0, run_delay_s=9.0), "assay:verifier_timeout", "submission", 2),
    (ExecResult(Ended.WALL_LIMIT, wall_s=10.0, cpu_s=0.5, run_delay_s=1.0), "assay:verifier_timeout", "submission", 2),
    (ExecResult(Ended.WALL_LIMIT, wall_s=10.0), "assay:verifier_timeout", "submission", 2),
    (ExecResult(Ended.CPU_LIMIT), "assay:cpu_limit", "submission", 2),
    (ExecResult(Ended.MEMORY_LIMIT), "assay:memory_limit", "submission", 2),
    (ExecResult(Ended.OUTPUT_LIMIT), "assay:output_limit", "submission", 2),
    (ExecResult(Ended.EXITED, 1, limits_hit=("process_limit",)), "assay:process_limit", "submission", 2),
    (ExecResult(Ended.EXITED, 137, limits_hit=("memory_limit",)), "assay:memory_limit", "submission", 2),
    (ExecResult(Ended.SIGNALED, signal=11), "assay:missing_reward", "submission", 2),
    (ExecResult(Ended.EXITED, 127), "assay:missing_reward", "submission", 2),
]


@pytest.mark.parametrize(("result", "kind", "caused_by", "looks"), FAULTS)
async def test_how_it_ended_and_who_is_to_blame(
    judge: Callable[..., object], result: ExecResult, kind: str, caused_by: str, looks: int
) -> None:
    script = Script([result] * 3)
    verdict = await judge(script)  # type: ignore[misc]
    assert (verdict.failure["kind"], verdict.caused_by, script.looks) == (kind, caused_by, looks)
    assert verdict.reward == (0.0 if caused_by == "submission" else None)


async def test_a_reward_before_a_limit_does_not_count_and_is_kept_for_the_record(judge: Callable[..., object]) -> None:
    def script(call: Call) -> ExecResult:
        (call.folders["/logs/verifier"] / "reward.txt").write_text("1")
        return ExecResult(Ended.WALL_LIMIT, wall_s=1.0)

    verdict = await judge(script, control=False)  # type: ignore[misc]
    assert (verdict.status, verdict.discarded_reward) == ("failed", 1.0)


async def test_a_limit_that_did_not_end_the_verifier_leaves_its_reward(judge: Callable[..., object]) -> None:
    def script(call: Call) -> ExecResult:
        (call.folders["/logs/verifier"] / "reward.txt").write_text("1")
        return ExecResult(Ended.EXITED, 3, limits_hit=("memory_limit",))

    verdict = await judge(script)  # type: ignore[misc]
    assert (verdict.reward, verdict.limits_hit, verdict.ended["code"]) == (1.0, ("memory_limit",), 3)


async def test_no_control_runs_nothing_for_evidence(judge: Callable[..., object]) -> None:
    script = Script([None])
    verdict = await judge(script, control=False)  # type: ignore[misc]
    assert (verdict.caused_by, verdict.provisional, script.looks, script.controls) == ("unknown", True, 1, [])
    assert verdict.rule == "evidence-1:no-control"


@pytest.mark.parametrize("mode", ["unsupported", "unknown"])
async def test_what_is_not_stateless_runs_once_for_an_answer(
    judge: Callable[..., object], task: Path, mode: str
) -> None:
    (task / "task.toml").write_text(f'[assay]\nreverify_mode = "{mode}"\n')
    for outcome in (None, "0", ExecResult(Ended.FAULT, fault="away")):
        script = Script([outcome])
        await judge(script)  # type: ignore[misc]
        assert (script.looks, script.controls) == (1, [])


async def test_a_verdict_says_what_it_is_about(judge: Callable[..., object], task: Path) -> None:
    verdict = await judge(Script(["1"]))  # type: ignore[misc]
    loaded = load_task(task)
    assert (verdict.task_id, verdict.task_digest) == ("task", loaded.digest)
    assert (verdict.verifier_digest, verdict.base) == (loaded.verifier_digest, "host")
    assert (verdict.trust, verdict.sandbox) == ("separate", "fake")
    record = verdict.to_dict()
    assert list(record)[:8] == [
        *("verdict_id", "answer_id", "task_id", "task_digest"),
        *("verifier_digest", "base", "status", "reward"),
    ]


WISHES = [
    ("[environment]\nmemory_mb = 64\ncpus = 1\n", frozenset(), ("memory_mb", "cpus")),
    ("[environment]\nstorage_mb = 64\ngpus = 1\n", frozenset(Capability), ("storage_mb", "gpus")),
    ('[verifier]\nuser = "root"\n', frozenset(Capability), ()),
    ('[verifier]\nuser = "nobody-here"\n', frozenset(Capability), ("user",)),
    ("[verifier]\nuser = 70000\n", frozenset(Capability), ("user",)),
    ("[verifier.environment]\nstorage_mb = 1\n[environment]\ngpus = 1\n", frozenset(Capability), ("storage_mb",)),
    (
        '[[verifier.collect]]\ncommand = "true"\nservice = "db"\n',
        frozenset(Capability),
        ("verifier.collect of service db",),
    ),
    (
        'artifacts = ["/data/x", "/app/y", {source = "/z", service = "db"}]\n',
        frozenset(Capability),
        ("artifacts of service db", "artifacts (/data/x)"),
    ),
]


@pytest.mark.parametrize(("toml", "claims", "unmet"), WISHES)
async def test_wishes_that_cannot_be_granted_are_listed(
    tmp_path: Path, task: Path, toml: str, claims: frozenset[Capability], unmet: tuple[str, ...]
) -> None:
    (task / "task.toml").write_text(toml)
    provider = FakeProvider(
        Script([]), claims=claims | frozenset(Capability) - {Capability.MEMORY_LIMIT, Capability.CPU_LIMIT}
    )
    verdict = await grade(task, None, sandbox=provider, state=tmp_path / "state", control=False)
    assert verdict.unmet == unmet


REFUSED = [
    ("[assay]\nrequire = ['memory_limit']\n", frozenset(Capability) - {Capability.MEMORY_LIMIT}, "memory_limit"),
    ("", frozenset(Capability) - {Capability.NETWORK_OFF}, "network_off"),
    ("", frozenset(Capability) - {Capability.PROOF_OF_DEATH}, "proof_of_death"),
    ('[verifier]\nnetwork_mode = "public"\n', frozenset(Capability), "--network"),
]


@pytest.mark.parametrize(("toml", "claims", "said"), REFUSED)
async def test_a_guarantee_that_cannot_be_given_is_refused_before_anything_runs(
    tmp_path: Path, task: Path, toml: str, claims: frozenset[Capability], said: str
) -> None:
    (task / "task.toml").write_text(toml)
    provider = FakeProvider(Script([]), claims=claims)
    verdict = await grade(task, None, sandbox=provider, state=tmp_path / "state")
    assert verdict.failure is not None
    assert (verdict.failure["kind"], verdict.caused_by) == ("assay:guarantee_unmet", "infrastructure")
    assert said in verdict.failure["reason"]
    assert provider.calls == []


IMAGES = [
    ('[environment]\ndocker_image = "org/name:1.0"\n', None, "org/name:1.0"),
    ("", "FROM debian\n", "/task"),
    ('[assay]\nrootfs = "mine"\n', None, "mine"),
    ('[verifier.environment]\ndocker_image = "org/verifier:1.0"\n', None, "org/verifier:1.0"),
]


@pytest.mark.parametrize(("toml", "dockerfile", "named"), IMAGES)
async def test_a_missing_image_is_refused_naming_both_ways_on(
    tmp_path: Path, task: Path, toml: str, dockerfile: str | None, named: str
) -> None:
    (task / "task.toml").write_text(toml)
    if dockerfile is not None:
        (task / "environment").mkdir()
        (task / "environment" / "Dockerfile").write_text(dockerfile)
    provider = FakeProvider(Script([], untouched="1"))
    refused = await grade(task, None, sandbox=provider, state=tmp_path / "state")
    assert refused.failure is not None
    assert (refused.failure["kind"], provider.calls) == ("assay:image_missing", [])
    for said in (named, "--rootfs host", "--rootfs DIR"):
        assert said in refused.failure["reason"]
    assert (await grade(task, None, sandbox=provider, state=tmp_path / "state", rootfs="host")).reward == 1.0
    image = tmp_path / "state" / "rootfs" / refused.failure["reason"].split("/rootfs/")[1].split(" ")[0]
    (image / "usr").mkdir(parents=True)
    assert (await grade(task, None, sandbox=provider, state=tmp_path / "state")).reward == 1.0
    assert provider.calls[-1].spec.base == image


WORKDIRS = [
    ("/app", True),
    ("/root", True),
    ("/usr/src/app", True),
    ("/home/user/project", True),
    ("/var/www/html", True),
    ("/tmp/work", True),
    ("/", False),
    ("/usr/lib", False),
    ("/tests/x", False),
    ("/tmp", False),
    ("/etc/nginx", False),
    ("/app/../etc", False),
]


@pytest.mark.parametrize(("workdir", "good"), WORKDIRS)
async def test_workdirs(tmp_path: Path, task: Path, workdir: str, good: bool) -> None:
    (task / "task.toml").write_text(f'[environment]\nworkdir = "{workdir}"\n')
    provider = FakeProvider(Script([], untouched="1"))
    verdict = await grade(task, None, sandbox=provider, state=tmp_path / "state")
    if good:
        assert provider.calls[0].cwd == workdir
        assert verdict.reward == 1.0
    else:
        assert verdict.failure is not None
        assert verdict.failure["kind"] == "assay:task_invalid"
        assert "workdir" in verdict.failure["reason"]


async def test_many_at_once_ask_for_evidence_once(tmp_path: Path, task: Path) -> None:
    import asyncio

    workspace = tmp_path / "workspace"
    workspace.mkdir()
    (workspace / "answer").write_text("")
    script = Script(["0"] * 8)
    provider = FakeProvider(script)
    verdicts = await asyncio.gather(
        *(grade(task, workspace, sandbox=provider, state=tmp_path / "state") for _ in range(8))
    )
    assert {verdict.reward for verdict in verdicts} == {0.0}
    assert script.controls == ["untouched", "solve", "solution"]


async def test_every_field_of_a_verdict_is_documented(judge: Callable[..., object]) -> None:
    verdict = await judge(Script(["1"]))  # type: ignore[misc]
    page = (Path(__file__).resolve().parent.parent.parent / "docs" / "verdict.md").read_text()
    assert [name for name in verdict.to_dict() if f"`{name}`" not in page] == []


@pytest.mark.parametrize("mode", ["stateless", "unsupported"])
async def test_what_fails_once_the_verifier_was_started_has_started_it(
    tmp_path: Path, task: Path, judge: Callable[..., object], mode: str
) -> None:
    """Whoever may not run it twice must be told, however it was lost."""
    (task / "task.toml").write_text(f'schema_version = "1.4"\n[assay]\nreverify_mode = "{mode}"\n')
    lost = FailureEvent("provider_unavailable", "the processes of a sandbox did not die")
    script = Script([lost, "0.5"])
    verdict = await judge(script)  # type: ignore[misc]
    if mode == "stateless":
        assert (verdict.reward, script.looks) == (0.5, 2)
    else:
        assert (verdict.reward, script.looks, verdict.caused_by) == (None, 1, "infrastructure")
        assert verdict.ended is not None


async def test_a_sandbox_that_cannot_be_closed_costs_no_reward_that_was_read(
    tmp_path: Path, task: Path, judge: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = FakeSandbox.close

    async def fails(self: FakeSandbox) -> None:
        await closed(self)
        raise FailureEvent("provider_unavailable", "the control group of a dead sandbox could not be removed")

    monkeypatch.setattr(FakeSandbox, "close", fails)
    script = Script(["0.5", "1"])
    verdict = await judge(script)  # type: ignore[misc]
    assert (verdict.reward, verdict.failure, script.looks) == (0.5, None, 1)

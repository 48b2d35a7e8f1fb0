"""A command beside pid 1 of its sandbox: signals, alarms and orphans behave as programs expect, and how it ended is told."""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from assay.sandbox import MIB, Ended, Limits, SandboxSpec, Writable
from assay.sandbox.namespaces import get_ready
from warm import PYTHON, is_warm

Make = Callable[..., Awaitable[Any]]
BOTH_FORMS = pytest.mark.usefixtures("form")


async def python(sandbox: Any, source: str) -> Any:
    return await sandbox.exec(["python3", "-I", "-S", "-c", source], timeout_s=30)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import os; os.kill(os.getpid(), 15)", signal.SIGTERM),
        ("import os; os.kill(os.getpid(), 9)", signal.SIGKILL),
        ("import os; os.abort()", signal.SIGABRT),
        ("import signal; signal.alarm(1); signal.pause()", signal.SIGALRM),
        ("import ctypes; ctypes.string_at(0)", signal.SIGSEGV),
        ("import resource as r\nr.setrlimit(r.RLIMIT_CPU, (1, 2))\nwhile True: pass", signal.SIGXCPU),
        (
            "import os, signal; signal.signal(signal.SIGPIPE, 0); r, w = os.pipe(); os.close(r); os.write(w, b'x')",
            signal.SIGPIPE,
        ),
    ],
)
async def test_a_signal_is_reported_as_itself(launched: Make, source: str, expected: int) -> None:
    result = await python(await launched(), source)
    assert (result.how, result.signal, result.code, result.fault) == (Ended.SIGNALED, expected, None, None)


async def test_codes_past_128_are_codes(launched: Make) -> None:
    sandbox = await launched()
    for code in (127, 128, 137, 143, 255):
        result = await sandbox.exec(["sh", "-c", f"exit {code}"], timeout_s=30)
        assert (result.how, result.code, result.signal) == (Ended.EXITED, code, None)


@pytest.mark.parametrize("interpreter", [None, PYTHON])
async def test_a_command_has_a_parent_that_is_not_in_there(form: str, launched: Make, interpreter: str | None) -> None:
    await get_ready(SandboxSpec(interpreter=interpreter))
    sandbox = await launched(interpreter=interpreter)
    assert is_warm(sandbox) is (interpreter is not None)
    source = """
import os
first = {line.partition(":")[0]: line.split() for line in open("/proc/1/status")}
print(os.getpid(), os.getppid(), first["Name"][1], first["PPid"][1], first["NoNewPrivs"][1], os.path.exists("/proc/1/exe"))
print(open("/proc/1/cmdline").read().strip("\\0"))
"""
    for _ in range(3):
        result = await sandbox.exec([PYTHON, "-I", "-c", source], timeout_s=30)
        assert result.stdout.decode().split("\n")[0] == "2 0 assay-init 0 1 False", result
    # A program has its own; a fork of the server has the server's.
    assert result.stdout.decode().split("\n")[1] == {"program": "assay-init", "fork": "assay-slot"}[form]


@BOTH_FORMS
async def test_sigterm_to_oneself_kills_a_child(launched: Make) -> None:
    result = await (await launched()).exec(["sh", "-c", "sh -c 'kill -TERM $$'; echo $?"], timeout_s=30)
    assert result.stdout == b"143\n"


@BOTH_FORMS
async def test_orphans_are_reaped(launched: Make) -> None:
    source = """
import os, time
for _ in range(20):
    if os.fork() == 0:
        if os.fork() == 0:
            os._exit(0)
        os._exit(0)
    os.wait()
def zombies():
    found = 0
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            found += open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[0] == "Z"
        except OSError:
            pass
    return found
while zombies():
    pass
try:
    os.waitpid(-1, 0)
except ChildProcessError:
    print("no strangers")
"""
    result = await python(await launched(), source)
    assert result.stdout == b"no strangers\n", result


@BOTH_FORMS
async def test_no_signal_ends_or_stops_the_init(launched: Make) -> None:
    source = """
import os, signal
for number in signal.valid_signals():
    try:
        os.kill(1, number)
    except PermissionError:  # root's init has a uid of its own
        continue
print("alive", flush=True)
raise SystemExit(7)
"""
    result = await python(await launched(), source)
    assert (result.how, result.code, result.stdout) == (Ended.EXITED, 7, b"alive\n")


@BOTH_FORMS
async def test_a_first_thread_that_ends_is_not_the_end(launched: Make) -> None:
    """A process whose first thread is gone looks dead to whoever asks for that one alone, and goes on."""

    source = """
import ctypes, os, threading, time
def later():
    time.sleep(0.3)
    open("/out/late", "w").close()
    os._exit(5)
threading.Thread(target=later).start()
ctypes.CDLL(None).pthread_exit(None)
"""
    sandbox = await launched(mounts=(Writable("/out"),))
    result = await python(sandbox, source)
    assert (result.how, result.code) == (Ended.EXITED, 5)
    assert (await sandbox.get("/out") / "late").exists()


async def test_the_end_cannot_be_forged(launched: Make) -> None:
    """Whatever a command writes to what it has, its own end is told by its parent alone, which is not in there."""
    source = """
import os, socket
for fd in range(3, 1024):
    for message in (b"ended:0 0 0", b"failed 0 0", b"started 0 0"):
        try:
            os.write(fd, message)
        except OSError:
            pass
os._exit(42)
"""
    result = await python(await launched(), source)
    assert (result.how, result.code, result.fault) == (Ended.EXITED, 42, None)


@pytest.mark.parametrize(
    ("argv", "code", "said"),
    [
        (["/no/such/program"], 127, b"/no/such/program: No such file"),
        (["no-such-program"], 127, b"no-such-program: No such file"),
        (["/etc/passwd"], 127, b"/etc/passwd: Permission denied"),
        (["/etc"], 127, b"/etc: Permission denied"),
        (["passwd-nothing"], 127, b"passwd-nothing: No such file"),
    ],
)
async def test_what_cannot_be_started(launched: Make, argv: list[str], code: int, said: bytes) -> None:
    result = await (await launched()).exec(argv, timeout_s=30)
    assert (result.how, result.code) == (Ended.EXITED, code)
    assert said in result.stderr


async def test_a_script_without_a_first_line_is_a_shells(launched: Make) -> None:
    sandbox = await launched()
    script = "printf 'echo ran $1' > /tmp/s; chmod +x /tmp/s; cp /tmp/s /dev/shm/s"
    source = f"import os, subprocess; subprocess.run(['sh', '-c', {script!r}]); os.execvp('/tmp/s', ['s', 'well'])"
    assert (await python(sandbox, source)).code != 0, "the kernel runs no such script by itself"

    other = await launched(mounts=(Writable("/out"),))
    path = await other.get("/out") / "s"
    path.write_text("echo ran $1")
    path.chmod(0o755)
    result = await other.exec(["/out/s", "well"], timeout_s=30)
    assert (result.code, result.stdout) == (0, b"ran well\n")


async def test_any_bytes_and_many_arguments(launched: Make) -> None:
    sandbox = await launched()
    odd = b"\xff\xfe x\n".decode("utf-8", "surrogateescape")
    result = await sandbox.exec(["printf", "%s", odd], env={"ODD": odd}, timeout_s=30)
    assert result.stdout == b"\xff\xfe x\n"
    many = await sandbox.exec(["sh", "-c", "echo $#", "sh", *map(str, range(9000))], timeout_s=30)
    assert many.stdout == b"9000\n"
    long = await sandbox.exec(["sh", "-c", "echo ${#A}"], env={"A": "x" * 100_000}, timeout_s=30)
    assert long.stdout == b"100000\n"
    too_long = await sandbox.exec(["true", "x" * (1 << 22)], timeout_s=30)
    assert (too_long.how, too_long.code) == (Ended.EXITED, 127)
    assert b"too long" in too_long.stderr


@BOTH_FORMS
async def test_when_memory_runs_out_the_command_goes_and_not_its_init(launched: Make) -> None:
    sandbox = await launched(limits=Limits(memory_bytes=64 * MIB))
    if sandbox._parts.group is None or not sandbox._parts.group.limits_memory:
        pytest.skip("this user may make no memory group")
    source = "import os; f = os.memfd_create('x')\nwhile True: os.write(f, bytes(1 << 20))"
    script = f'cat /proc/self/oom_score_adj; python3 -I -S -c "{source}"; echo survived'
    result = await sandbox.exec(["sh", "-c", script], timeout_s=30)
    # What fills memory without any of its own would look smaller than the init.
    assert (result.how, result.stdout, result.limits_hit) == (Ended.EXITED, b"500\nsurvived\n", ("memory_limit",))


@BOTH_FORMS
async def test_nothing_of_a_command_lives_when_it_has_ended(launched: Make) -> None:
    sandbox = await launched()
    group = sandbox._parts.group
    if group is None:
        pytest.skip("this user may make no group")
    leaves = "for n in $(seq 40); do (trap '' TERM HUP; setsid sleep 100 > /dev/null 2>&1 &) ; done"
    for _ in range(3):
        result = await sandbox.exec(["sh", "-c", leaves], timeout_s=30)
        # The init may be about to end, and the next one wait already.
        living = [Path(f"/proc/{pid}/comm") for pid in group.pids()]
        assert result.code == 0
        assert not [name for place in living if (name := _text_of(place)) in ("sh\n", "sleep\n", "setsid\n")]


def _text_of(place: Path) -> str:
    try:
        return place.read_text()
    except OSError:
        return ""

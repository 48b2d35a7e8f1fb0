"""Runs a task's `verify` inside the sandbox and hands out its verdict.

    python3 <tests>/.ng/run_verifier.py --verifier FILE --workspace DIR
        [--task-data FILE] [--response FILE] [--reward-dir DIR] [--verdict-fd N]

Exit code 0: a reward was written. 1: `verify` raised. 2: the verifier or the call is not as the contract has it. On 1 and
2 no reward file exists, and stderr ends with one line `assay: …`. The contract in full is in `docs/verifier-contract.md`.

It runs as a script, a copy of this file, with only the copies of this folder's other files beside it. Until `sys.path` is
clean it imports nothing that is searched for: not even `__future__`, which a planted `.ng/__future__.py` would be.
"""

# Paths are made absolute as they are written, with no link resolved.
# ruff: noqa: PTH100, PTH118, PTH120
# The standard library is imported as soon as `sys.path` names nothing else.
# ruff: noqa: E402

import sys

# In an interpreter that executes this file for its forks, which are then told what to do (`run_ahead`).
_ahead = globals().get("ASSAY_AHEAD", False)
_given_path = list(sys.path)
_standard_path = list(sys.path)


def _clean_path() -> None:
    """Keep the way to send a verdict from others, and `sys.path` to the standard library; note what it was."""
    global _given_path, _standard_path
    import posix

    # First of all: a program that the verifier starts must not inherit the way to send a verdict.
    for place, word in enumerate(sys.argv if __name__ == "__main__" else ()):
        name, _, value = word.partition("=")
        if name == "--verdict-fd":
            value = value or "".join(sys.argv[place + 1 : place + 2])
            if value.isdigit() and len(value) < 8:
                try:
                    posix.set_inheritable(int(value), False)
                except OSError:
                    continue  # said as a contract error when the arguments are read

    _given_path = list(sys.path)
    if sys.flags.ignore_environment:
        # Under -I nothing that PYTHONPATH names could run before this line. What it is there for comes back here.
        named = posix.environ.get(b"PYTHONPATH", b"").decode(sys.getfilesystemencoding(), "surrogateescape")
        _given_path += [entry for entry in named.split(":") if entry]
    # `encodings` is loaded from the standard library before any script starts; where it is, the rest is.
    library = str(sys.modules["encodings"].__file__).rpartition("/")[0].rpartition("/")[0]
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    platform = f"{sys.base_exec_prefix}/{getattr(sys, 'platlibdir', 'lib')}/{version}"
    own = (library, library + "/lib-dynload", platform + "/lib-dynload")
    _standard_path = [entry for entry in dict.fromkeys(sys.path) if entry in own]
    sys.path[:] = _standard_path


if __name__ in ("__main__", "__mp_main__") and not __package__ and not _ahead:
    _clean_path()

import json
import marshal
import os
from pathlib import Path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn, Optional, Union

if TYPE_CHECKING or __package__:
    from assay.verifiers import calling, delivery, imports, rewards
else:
    # From `compiled.START` alone, whose caller knows that nobody else could write beside the runner.
    _compiled = globals().get("ASSAY_COMPILED", {})

    def _beside(name):  # type: ignore[no-untyped-def] # never seen by a type checker: it takes the branch above
        # By its path, with no search and no byte-code, since both could be somebody else's.
        path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "assay", "verifiers", name + ".py")
        module = type(sys)("assay.verifiers." + name)
        module.__file__ = path
        if path in _compiled:
            code = marshal.loads(_compiled[path])  # noqa: S302 - laid with the runner
        else:
            with open(path, "rb") as source:
                code = compile(source.read(), path, "exec")
        exec(code, module.__dict__)  # noqa: S102 - a file of the runner's own
        return module

    calling, delivery, imports, rewards = map(_beside, ("calling", "delivery", "imports", "rewards"))
    imports.compiled.update(_compiled)

CHECKS_FILE = "checks.json"
DEFAULT_REWARD_DIR = "/logs/verifier"

USAGE = """usage: run_verifier.py --verifier FILE --workspace DIR
           [--task-data FILE] [--response FILE] [--reward-dir DIR] [--verdict-fd N]"""

# Modules that only a fork of an interpreter has loaded already: they are not in a verifier's way.
_loaded_ahead: "frozenset[str]" = frozenset()
_OPTIONS = ("--verifier", "--workspace", "--task-data", "--response", "--reward-dir", "--verdict-fd")
_OWN_FILES = {__file__, *(str(part.__file__) for part in (calling, delivery, imports, rewards))}

KNOWN_ARGUMENTS = calling.KNOWN_ARGUMENTS
REWARD_FILES = rewards.REWARD_FILES
place_on_path = imports.place_on_path
select_arguments = calling.select_arguments
write_reward = rewards.write_reward
clear_rewards = rewards.clear_rewards
_number = rewards.number


def load_verify(path: Path) -> "Any":
    """The `verify` of the module in the file `path`, which runs.

    `RuntimeError` with a sentence for a person when there is no such file, when it cannot be loaded, whatever it raises
    (`SystemExit` included; that is then the cause), or when it has no callable `verify`.
    """
    try:
        content = imports.read_regular(os.fspath(path))
    except OSError as error:
        raise RuntimeError(
            f"the verifier {path} cannot be read ({error}): give a Python file that has `verify`"
        ) from None
    return _load(path, content, None)


def main(argv: "Optional[list[str]]" = None) -> int:
    """Run one verification as the arguments (without the program's name) say; the exit code."""
    words = sys.argv[1:] if argv is None else list(argv)
    stream = sys.stderr
    if words in (["-h"], ["--help"]):
        sys.stdout.write(USAGE + "\n")
        sys.stdout.flush()
        return 0
    values, problem = _parse(words)
    reward_dir = Path(os.path.abspath(values.get("--reward-dir", DEFAULT_REWARD_DIR)))
    descriptor = None
    try:
        descriptor = _verdict_descriptor(values)
        if problem:
            raise RuntimeError(problem)
        # A reward that lies there already is not this verification's. (`_record` sees to it on every other way out.)
        _clear(reward_dir)
        outcome = _verification(values)
    except BaseException as error:  # an outcome like any other: the runner always says what happened
        outcome = _broken_contract(error)
    notes: "list[str]" = []
    outcome = _record(outcome, reward_dir, notes)
    if descriptor is not None:
        outcome = _send(descriptor, outcome, reward_dir, notes)
    last = [delivery.one_line(outcome.sentence)] if outcome.sentence else []
    lines = [f"assay: {line}" for line in [note for note in notes if note not in last] + last]
    delivery.last_words(stream, outcome.error, _OWN_FILES, lines)
    return outcome.code


class _Outcome:
    """What came of it: the exit code, the message for the verdict channel, and what a person is told."""

    def __init__(self, code: int, message: "dict[str, Any]", sentence: str, error: "Optional[BaseException]") -> None:
        self.code = code
        self.message = message
        self.sentence = sentence
        self.error = error


def _broken_contract(error: BaseException) -> _Outcome:
    # A `RuntimeError` here is a sentence of the runner's; the traceback worth showing is that of its cause.
    said = isinstance(error, RuntimeError) and _is_own(error)
    sentence = str(error) if said else f"the runner cannot go on: {_described(error)}; see the traceback above"
    shown = error.__cause__ if said else error
    return _Outcome(2, {"contract": delivery.one_line(sentence)}, sentence, shown)


def _is_own(error: BaseException) -> bool:
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    return place is not None and place.tb_frame.f_code.co_filename in _OWN_FILES


def _parse(words: "list[str]") -> "tuple[dict[str, str], str]":
    """The options that could be read, and what is wrong with the rest."""
    values: "dict[str, str]" = {}
    problem = ""
    rest = iter(words)
    for word in rest:
        name, given, value = word.partition("=")
        if name not in _OPTIONS:
            problem = problem or f"{word!r:.200} is no option of the runner; {' '.join(USAGE.split())}"
            continue
        if not given:
            value = next(rest, "")
        if not value:
            problem = problem or f"{name} needs a value; {' '.join(USAGE.split())}"
            continue
        values[name] = value
    missing = [name for name in ("--verifier", "--workspace") if name not in values]
    if missing and not problem:
        problem = f"{' and '.join(missing)} must be given; {' '.join(USAGE.split())}"
    return values, problem


def _verdict_descriptor(values: "dict[str, str]") -> "Optional[int]":
    text = values.get("--verdict-fd")
    if text is None:
        return None
    try:
        descriptor = int(text)
        os.set_inheritable(descriptor, False)
    except (ValueError, OverflowError, OSError):
        raise RuntimeError(f"--verdict-fd must be the number of an open descriptor, got {text!r:.200}") from None
    return descriptor


def _clear(reward_dir: Path) -> None:
    clear_rewards(reward_dir)
    rewards.remove(os.path.join(reward_dir, CHECKS_FILE))


def _verification(values: "dict[str, str]") -> _Outcome:
    """Load and call `verify`. Raises for what is wrong before the call; everything after it is in the outcome."""
    workspace = Path(os.path.abspath(values["--workspace"]))
    if not workspace.is_dir():
        raise RuntimeError(f"--workspace must be a folder, and {workspace} is not one")
    verifier = Path(os.path.abspath(values["--verifier"]))
    manifest, verify = _prepared(verifier, workspace)
    available = {"workspace": workspace, "task_data": {}, "state": {"workspace": workspace}}
    if "--task-data" in values:
        available["task_data"] = _object("--task-data", values["--task-data"], manifest)
    if "--response" in values:
        available["response"] = _object("--response", values["--response"], manifest)
    positional, keywords = select_arguments(verify, available)
    process = os.getpid()
    try:
        result = calling.settled(verify(*positional, **keywords))
    except BaseException as error:
        _end_copies(process)
        return _raised(error)
    _end_copies(process)
    return _Outcome(0, {"result": rewards.checked(result)}, "", None)


def _end_copies(process: int) -> None:
    # `verify` forked and the child came back from it as well: only the process that was asked gives a verdict.
    if os.getpid() != process:
        delivery.leave(1)


def _raised(error: BaseException) -> _Outcome:
    errors = sys.modules.get("assay.verifiers.errors")
    if errors is not None and isinstance(error, errors.CannotGrade):
        reason = _text_of(error) or "no reason given"
        sentence = f"verify cannot grade this answer: {reason}; verify it again when that is mended"
        return _Outcome(1, {"cannot_grade": delivery.one_line(reason)}, sentence, error)
    raised = _described(error)
    sentence = f"verify raised {raised}; correct the verifier (see the traceback above), no reward was written"
    return _Outcome(1, {"raised": delivery.one_line(raised)}, sentence, error)


def _prepared(verifier: Path, workspace: Path) -> "tuple[Any, Any]":
    """The manifest, if there is one, and `verify`, loaded with its imports in order."""
    if __package__:
        place_on_path(verifier.parent)
        return None, load_verify(verifier)
    home = os.path.dirname(os.path.abspath(__file__))
    tests = os.path.dirname(home)
    manifest = imports.read_manifest(home)
    if __name__ == "__main__":
        imports.tidy_path(_given_path, _standard_path, os.fspath(workspace))
    place_on_path(home, verifier.parent, tests)
    if __name__ == "__main__":
        imports.unload(_loaded_ahead, os.fspath(verifier.parent), tests)
    imports.guard(home, manifest)
    return manifest, _load(verifier, _laid(verifier, manifest, "the verifier", listed=True), manifest)


def _laid(path: "Union[str, Path]", manifest: "Any", what: str, *, listed: bool) -> bytes:
    """The content of a file; `RuntimeError` when it is not what the shim laid. `listed`: the manifest must have it."""
    key = manifest.key(os.fspath(path)) if manifest is not None else None
    if key is not None and (listed or key in manifest.digests):
        content = manifest.content(key)
        if content is None:
            raise RuntimeError(f"{what} {path} is not the file that the shim laid in {manifest.root}: lay it again")
        return bytes(content)
    try:
        return bytes(imports.read_regular(os.fspath(path)))
    except OSError as error:
        raise RuntimeError(f"{what} {path} cannot be read ({error}): give a regular file") from None


def _load(path: Path, content: bytes, manifest: "Any") -> "Any":
    # A module that is imported under that name already must stay what it is.
    name = path.stem if path.stem.isidentifier() and path.stem not in sys.modules else "assay_task_verifier"
    try:
        module, code = imports.new_module(name, os.fspath(path), content)
        sys.modules[name] = module
        exec(code, module.__dict__)  # noqa: S102 - running the verifier is what the runner is for
    except BaseException as error:  # `sys.exit(0)` at the top of a module is no way to load it
        sys.modules.pop(name, None)
        refused = imports.refused(manifest, error.name) if isinstance(error, ImportError) else ""
        raise RuntimeError(
            f"{path} cannot be loaded: {_described(error)}{refused}; correct the module, or add what it needs to the image"
        ) from error
    verify = getattr(module, "verify", None)
    if verify is None:
        raise RuntimeError(f"{path} has no function `verify`: define `def verify(workspace)` that returns the reward")
    if not callable(verify):
        raise RuntimeError(  # noqa: TRY004 - the contract's
            f"{path}: `verify` must be a function, got {rewards.shown(verify)}"
        )
    return verify


def _object(option: str, path: str, manifest: "Any") -> "dict[str, Any]":
    """The JSON object in the file that an option names; plain text in a response becomes one."""
    content = _laid(path, manifest, option, listed=False)
    try:
        value = json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise RuntimeError(f"{option} {path} must hold a JSON object, and is not JSON: {error}") from None
    if option == "--response" and isinstance(value, str):
        return {"output_text": value}
    if not isinstance(value, dict):
        raise RuntimeError(  # noqa: TRY004 - the contract's
            f"{option} {path} must hold a JSON object, got {rewards.shown(value)}"
        )
    return value


def _record(outcome: _Outcome, reward_dir: Path, notes: "list[str]") -> _Outcome:
    """Write what is to be written; a reward that cannot be is a contract error."""
    checks = _checks()
    try:
        if checks:
            rewards.remove(os.path.join(reward_dir, CHECKS_FILE))
            rewards.replace_file(os.fspath(reward_dir), CHECKS_FILE, json.dumps(checks) + "\n")
        if outcome.code == 0:
            write_reward(outcome.message["result"], reward_dir)
            return outcome
    except (RuntimeError, OSError) as error:
        if outcome.code == 0:
            sentence = f"the reward cannot be written to {reward_dir} ({error}): make room, or make it writable"
            outcome = _Outcome(2, {"contract": delivery.one_line(sentence)}, sentence, None)
        else:
            notes.append(delivery.one_line(f"the checks cannot be written to {reward_dir} ({error})"))
    _withdraw(reward_dir, notes)
    return outcome


def _withdraw(reward_dir: Path, notes: "list[str]") -> None:
    try:
        clear_rewards(reward_dir)
    except RuntimeError as error:
        notes.append(delivery.one_line(str(error)))


def _send(descriptor: int, outcome: _Outcome, reward_dir: Path, notes: "list[str]") -> _Outcome:
    """Send the outcome; one that does not fit a message is a contract error, and its files are taken back."""
    try:
        left_out = delivery.send(descriptor, outcome.message, _checks())
        if left_out:
            notes.append(f"{left_out}; they are in {reward_dir / CHECKS_FILE}")
    except delivery.TooLarge:
        if outcome.code != 0 or not isinstance(outcome.message["result"], dict):
            notes.append(f"descriptor {descriptor} takes no message of the size of a verdict")
            return outcome
        sentence = f"`verify` returned {len(outcome.message['result'])} numbers, too many for one message: return fewer"
        outcome = _Outcome(2, {"contract": sentence}, sentence, None)
        _withdraw(reward_dir, notes)
        return _send(descriptor, outcome, reward_dir, notes)
    except OSError as error:
        notes.append(delivery.one_line(f"the verdict could not be sent on descriptor {descriptor}: {error}"))
    return outcome


def _checks() -> "list[dict[str, Any]]":
    checks = sys.modules.get("assay.verifiers.checks")
    return list(checks.recorded) if checks is not None else []


def _described(error: BaseException) -> str:
    text = _text_of(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException:  # the text is the verifier's own code
        return "(its text cannot be shown)"


def _run() -> "NoReturn":
    code = 2
    try:
        code = main()
    finally:
        delivery.leave(code)


def run_ahead(loaded: "frozenset[str]") -> "NoReturn":
    """What a script does, in a fork that has its arguments by now, and whose memory is closed (`close_memory`).

    `loaded`: modules that no script finds loaded.
    """
    global _loaded_ahead
    _loaded_ahead = loaded
    _clean_path()
    _run()


if __name__ == "__mp_main__" and not __package__:
    # A worker process of a verifier that uses multiprocessing: what it imports obeys the same rules.
    sys.path[:] = _given_path
    _home = os.path.dirname(os.path.abspath(__file__))
    imports.guard(_home, imports.read_manifest(_home))
elif __name__ == "__main__" and not _ahead:
    delivery.close_memory()
    _run()

"""Where the imports of a verification come from: the order of `sys.path`, and what may be imported from the tests folder.

An agent may have been able to write beside the tests before they were graded. So only what the shim listed in
`.ng/manifest.json`, unchanged since, can be imported from the tests folder; anything else there is as if it did not
exist, and `import json` finds the standard library's. Modules of the names in `OWN_PACKAGES` come from the runner's folder
or from nowhere.

The runner executes this file before anything may be searched for on `sys.path`, so it imports only what every interpreter
has loaded by then, and no name from `__future__` or `typing`.
"""

# A path entry is text, and pathlib would take longer to load than everything here.
# ruff: noqa: PTH100, PTH112, PTH208, PTH113, PTH117, PTH118, PTH120

import _frozen_importlib_external as machinery
import _imp
import marshal
import os
import stat
import sys
from _frozen_importlib import ModuleSpec

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import CodeType, ModuleType
    from typing import Any, Optional, Union

    PathText = Union[str, os.PathLike[str]]

OWN_PACKAGES = ("assay", "nemo_gym")
compiled: "dict[str, Union[bytes, CodeType]]" = {}
"""The code of files by their paths, marshalled or not, where whoever started the runner laid it with them."""
MANIFEST = "manifest.json"


def place_on_path(*folders: "PathText") -> None:
    """Make `folders` the front of `sys.path`, in this order; an entry that is one of them already is moved."""
    front = list(dict.fromkeys(os.path.abspath(folder) for folder in folders))
    same = {real_path(folder) for folder in front}
    sys.path[:] = front + [entry for entry in sys.path if real_path(entry) not in same]


def tidy_path(given: "list[str]", standard: "list[str]", workspace: str) -> None:
    """Make `sys.path` what was `given` without the current directory and the workspace, `standard` in front of it.

    `PYTHONPATH` comes before the standard library when an interpreter starts; here it comes after, so that nothing on it
    takes the place of a standard module.
    """
    here, inside = real_path(os.curdir), real_path(workspace)
    prefix = real_path(sys.base_prefix)

    def allowed(entry: str) -> bool:
        place = real_path(entry)
        if not os.path.isabs(entry) or place in (here, inside):
            return False
        # With a workspace such as / or /root, the interpreter itself is in it.
        own = _is_within(prefix, inside) and _is_within(place, prefix)
        return own or inside == os.sep or not _is_within(place, inside)

    rest = dict.fromkeys(entry for entry in given if isinstance(entry, str) and entry not in standard)
    sys.path[:] = standard + [entry for entry in rest if allowed(entry)]


class Manifest:
    """The files of a tests folder as the shim laid them."""

    def __init__(self, root: str, digests: "dict[str, str]") -> None:
        """`root` is the tests folder; `digests` maps a path below it, with `/`, to the SHA-256 of its content in hex."""
        self.root = os.path.abspath(root)
        self.digests = digests
        self.altered: "list[str]" = []
        self._real_root = real_path(root)
        self._sha256 = sha256()

    def key(self, path: str) -> "Optional[str]":
        """The path below the tests folder, empty for the folder itself; None for a path outside it."""
        place = os.path.abspath(path)
        if not _is_within(place, self.root):
            place = real_path(path)
            if not _is_within(place, self._real_root):
                return None
            return place[len(self._real_root) :].lstrip(os.sep)
        return place[len(self.root) :].lstrip(os.sep)

    def content(self, key: str) -> "Optional[bytes]":
        """What the listed file holds; None when it is not listed, is not there, or is not what it was."""
        digest = self.digests.get(key)
        if digest is None:
            return None
        try:
            content = read_regular(os.path.join(self.root, key))
        except OSError:
            return None
        if self._sha256(content).hexdigest() == digest:
            return content
        self.altered.append(key)
        return None

    def holds_below(self, key: str) -> bool:
        """Whether a listed file lies somewhere below this folder."""
        return any(listed.startswith(key + "/") for listed in self.digests)


def read_manifest(home: str) -> "Optional[Manifest]":
    """The manifest in the runner's folder, or None when there is none: the runner was then started by hand.

    Raises `RuntimeError` for one that cannot be understood: without it nothing here could be told from a planted file.
    """
    path = os.path.join(home, MANIFEST)
    if not os.path.lexists(path):
        return None
    import json

    try:
        digests = json.loads(read_regular(path).decode("utf-8"))["files"]
        if not all(isinstance(key, str) and isinstance(value, str) for key, value in digests.items()):
            raise ValueError("files must map paths to digests")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise RuntimeError(
            f"{path} cannot be used ({type(error).__name__}: {error}): lay the shim again, or remove the file"
        ) from None
    return Manifest(os.path.dirname(home), digests)


def read_regular(path: str) -> bytes:
    """The content of a regular file; `OSError` for anything else, without waiting for a writer."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as opened:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(f"{path} is not a regular file")
        return opened.read()


def new_module(name: str, path: str, content: bytes) -> "tuple[ModuleType, CodeType]":
    """A module for the source `content` of the file `path`, not yet run, and its code. Raises what compiling raises."""
    loader = ListedSource(name, path, content)
    module = type(sys)(name)
    module.__spec__ = machinery.spec_from_file_location(name, path, loader=loader)
    module.__loader__ = loader
    module.__file__ = path
    return module, loader.get_code(name)


def guard(home: str, manifest: "Optional[Manifest]") -> None:
    """Let the imports of this process obey the rules above, from here on."""
    sys.dont_write_bytecode = True
    _ignore_bytecode(os.path.dirname(home))
    for name in [name for name in sys.modules if name.partition(".")[0] in OWN_PACKAGES]:
        del sys.modules[name]
    sys.meta_path.insert(0, OwnPackages(home))
    if manifest is not None:
        listed = manifest
        for entry in [entry for entry in sys.path_importer_cache if listed.key(entry) is not None]:
            del sys.path_importer_cache[entry]
        sys.path_hooks.insert(0, lambda entry: _finder(listed, entry))


def unload(ready: "frozenset[str]", *folders: str) -> None:
    """Forget the modules in `ready`, loaded before anybody asked for them, whose names the files of these folders have.

    An interpreter that was just started would find those files.
    """
    names: "set[str]" = set()
    for folder in folders:
        try:
            names.update(entry.partition(".")[0] for entry in os.listdir(folder))
        except OSError:
            continue
    for module in [module for module in ready if module.partition(".")[0] in names]:
        sys.modules.pop(module, None)


class OwnPackages:
    """Finds Assay's helpers and their alias in the runner's folder, whatever else has these names."""

    def __init__(self, home: str) -> None:
        """`home` is the runner's folder."""
        self.home = home

    def find_spec(
        self, fullname: str, path: "Optional[Sequence[str]]" = None, target: "Optional[ModuleType]" = None
    ) -> "Optional[ModuleSpec]":
        """Where the module is, None for one of another name; `ModuleNotFoundError` when it is not in the folder."""
        if fullname.partition(".")[0] not in OWN_PACKAGES:
            return None
        spec = machinery.PathFinder.find_spec(fullname, [self.home] if path is None else path, target)
        if spec is None:
            raise ModuleNotFoundError(f"No module named {fullname!r} beside the runner in {self.home}", name=fullname)
        return spec


class ListedSource(machinery.SourceFileLoader):
    """A source file whose content was compared with the manifest: it is that content that runs."""

    def __init__(self, fullname: str, path: str, content: bytes) -> None:
        """`content` is the file's, already compared."""
        super().__init__(fullname, path)
        self._content = content

    def get_code(self, fullname: str) -> "CodeType":
        """The code, compiled anew: a compiled copy beside the file may be anybody's, but for those in `compiled`."""
        ahead = compiled.get(self.path)
        if isinstance(ahead, bytes):
            code: "CodeType" = marshal.loads(ahead)  # noqa: S302 - laid with the runner
            return code
        if ahead is not None:
            return ahead
        return self.source_to_code(self._content, self.path)


class ListedFinder(machinery.FileFinder):
    """Finds, in one folder of the tests, the modules that the manifest lists."""

    def __init__(self, manifest: Manifest, folder: str, key: str) -> None:
        """`key` is the folder's path below the tests folder."""
        super().__init__(folder)
        self._manifest = manifest
        self._prefix = key + "/" if key else ""

    def find_spec(self, fullname: str, target: "Optional[ModuleType]" = None) -> "Optional[ModuleSpec]":
        """A package before a module, and extension, source, byte-code in this order, as the usual finder has it."""
        name = fullname.rpartition(".")[2]
        folder = os.path.join(self.path, name)
        return (
            self._file(fullname, name + "/__init__", [folder])
            or self._file(fullname, name, None)
            or self._namespace(fullname, name, folder)
        )

    def _file(self, fullname: str, stem: str, search: "Optional[list[str]]") -> "Optional[ModuleSpec]":
        for suffix in (*_imp.extension_suffixes(), ".py", ".pyc"):
            content = self._manifest.content(self._prefix + stem + suffix)
            if content is None:
                continue
            path = os.path.join(self.path, stem + suffix)
            loader = _loader(fullname, path, suffix, content)
            return machinery.spec_from_file_location(fullname, path, loader=loader, submodule_search_locations=search)
        return None

    def _namespace(self, fullname: str, name: str, folder: str) -> "Optional[ModuleSpec]":
        if not os.path.isdir(folder) or not self._manifest.holds_below(self._prefix + name):
            return None
        spec = ModuleSpec(fullname, None)
        spec.submodule_search_locations = [folder]
        return spec


def refused(manifest: "Optional[Manifest]", module: "Optional[str]") -> str:
    """What to add to an import error: the files of that name that the guard passed over, or an empty text."""
    if manifest is None:
        return ""
    planted = []
    if module:
        stem = os.path.join(manifest.root, *module.split("."))
        for suffix in (*_imp.extension_suffixes(), ".py", ".pyc", ""):
            key = manifest.key(stem + suffix)
            if key and key not in manifest.digests and os.path.lexists(stem + suffix):
                planted.append(key)
    passed_over = [key for key in (*manifest.altered, *planted) if not manifest.holds_below(key)]
    if not passed_over:
        return ""
    return f" (not what the shim laid in {manifest.root}, so never imported: {', '.join(sorted(set(passed_over)))})"


def _loader(fullname: str, path: str, suffix: str, content: bytes) -> "Any":
    if suffix == ".py":
        return ListedSource(fullname, path, content)
    if suffix == ".pyc":
        return machinery.SourcelessFileLoader(fullname, path)
    return machinery.ExtensionFileLoader(fullname, path)


def _finder(manifest: Manifest, entry: str) -> ListedFinder:
    key = manifest.key(entry)
    if key is None:
        raise ImportError(f"{entry} is not in the tests folder")
    archive = key
    while archive and not os.path.lexists(os.path.join(manifest.root, archive)):
        archive = os.path.dirname(archive)
    if os.path.isfile(os.path.join(manifest.root, archive)) and manifest.content(archive) is not None:
        raise ImportError(f"{entry} is an archive the shim listed, for the importer of archives")
    return ListedFinder(manifest, entry, key)


def _ignore_bytecode(root: str) -> None:
    """Keep every loader of source files, an author's own included, from a `__pycache__` below the tests folder.

    A loader that is told that there is no place for byte-code neither reads nor writes any.
    """
    usual = machinery.cache_from_source
    roots = (os.path.abspath(root), real_path(root))

    def cache_from_source(path: "Any", *options: "Any", **named: "Any") -> str:
        for place in (os.path.abspath(path), real_path(path)):
            if any(_is_within(place, folder) for folder in roots):
                raise NotImplementedError("no byte-code for what lies in the tests folder")
        return usual(path, *options, **named)

    machinery.cache_from_source = cache_from_source


def _is_within(place: str, folder: str) -> bool:
    return place == folder or place.startswith(folder.rstrip(os.sep) + os.sep)


def real_path(path: "PathText") -> str:
    """`os.path.realpath`, asked of the kernel where that can be: it is asked for often, and before anybody's patience counts."""
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except (OSError, ValueError):
        return os.path.realpath(path)
    try:
        found = os.readlink(f"/proc/self/fd/{descriptor}")  # noqa: PTH115 - see above
    except OSError:
        found = ""
    finally:
        os.close(descriptor)
    # Without a /proc, or for what has been removed meanwhile.
    return found if found.startswith(os.sep) and not found.endswith(" (deleted)") else os.path.realpath(path)


def sha256() -> "Any":
    """The constructor of SHA-256 digests."""
    # hashlib loads OpenSSL, which takes longer than everything else here.
    for name in ("_sha2", "_sha256") if sys.version_info >= (3, 12) else ("_sha256", "_sha2"):
        try:
            return __import__(name).sha256
        except ImportError:
            continue
    import hashlib

    return hashlib.sha256

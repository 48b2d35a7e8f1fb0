"""What every provider must do: what a check is, and the checks of the protocol itself, one each."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from assay.sandbox.base import (
    BaseUse,
    Mount,
    Overlay,
    Provider,
    ReadOnly,
    SandboxSpec,
    Socket,
    Writable,
)
from assay.sandbox.probes import sandbox_of
from assay.workspaces import scratch_folder

_GONE_S = 10.0


class Broken(Exception):
    """A check saw something else than the contract says."""


Check = Callable[[Provider], Awaitable[str]]
PROTOCOL: list[Check] = []
"""Checks of the protocol alone: no command has to run."""


def _protocol(check: Check) -> Check:
    PROTOCOL.append(check)
    return check


def expect(true: object, otherwise: str) -> None:
    """Raise `Broken`, saying `otherwise`, unless something is true."""
    if not true:
        raise Broken(otherwise)


@_protocol
async def refuses_impossible_specs(provider: Provider) -> str:
    """A spec that no machine could satisfy is a `ValueError`."""
    bad: list[tuple[Mount, ...]] = [
        (Writable("/a"), Writable("/a")),
        (Writable("relative"),),
        (Writable("/a/../b"),),
        (Writable("/"),),
        (Writable("/proc/x"),),
        (Writable("/a"), Writable("/a/b")),
        (ReadOnly(Path("/nonexistent/assay"), "/a"),),
        (Overlay(Path("/nonexistent/assay"), "/a"),),
        (Socket(Path("/nonexistent/assay"), "/a"),),
    ]
    specs = [SandboxSpec(mounts=mounts) for mounts in bad]
    # The host's own files are no base to write to.
    specs += [SandboxSpec(base_use=use) for use in (BaseUse.OVERLAID, BaseUse.WRITTEN)]
    for spec in specs:
        try:
            sandbox = await provider.create(spec)
        except ValueError:
            continue
        await sandbox.close()
        raise Broken(f"took {spec}")
    return f"{len(specs)} specs refused"


@_protocol
async def refuses_impossible_commands(provider: Provider) -> str:
    """A command that cannot be passed on is a `ValueError`, and so is a place where no `Writable` is."""
    async with sandbox_of(provider, SandboxSpec()) as sandbox:
        asked: list[Callable[[], Awaitable[object]]] = [
            lambda: sandbox.exec([]),
            lambda: sandbox.exec(["a\0b"]),
            lambda: sandbox.exec(["true"], cwd="relative"),
            lambda: sandbox.exec(["true"], env={"A=B": "c"}),
            lambda: sandbox.exec(["true"], timeout_s=-1),
            lambda: sandbox.exec(["true"], pass_fds=(1,)),
            lambda: sandbox.get("/nowhere"),
        ]
        for ask in asked:
            try:
                await ask()
            except ValueError:
                continue
            raise Broken("an impossible command was taken")
    return f"{len(asked)} refused"


@_protocol
async def puts_and_gets(provider: Provider) -> str:
    """`put` copies into a writable folder, over what is there, through no link; `get` shows it."""
    with scratch_folder("probe") as source:
        (source / "sub").mkdir()
        (source / "sub" / "file").write_text("one")
        async with sandbox_of(
            provider, SandboxSpec(mounts=(Writable("/out"), Writable("/big", on_disk=True)))
        ) as sandbox:
            for at in ("/out", "/big"):
                await sandbox.put(source, at)
                (source / "sub" / "file").write_text("two")
                await sandbox.put(source, at)
                folder = await sandbox.get(at)
                text = (folder / "sub" / "file").read_text()
                expect(text == "two", f"after the second put the file holds {text!r}")
                (folder / "sub" / "own").write_text("own")
                (folder / "sub" / "file").unlink()
                (folder / "sub" / "file").symlink_to(source / "sub" / "file")
                (source / "sub" / "file").write_text("one")
                await sandbox.put(source, at)
                expect((folder / "sub" / "own").exists(), "put removed what was beside the file in its folder")
                expect(not (folder / "sub" / "file").is_symlink(), "put left a link where its file belongs")
                (folder / "sub").rename(folder / "moved")
                (folder / "sub").symlink_to("moved")
                (folder / "moved" / "file").write_text("three")
                await sandbox.put(source, at)
                text = (folder / "moved" / "file").read_text()
                expect(text == "three" and not (folder / "sub").is_symlink(), "put wrote through a link")
    return "in memory and on disk, merged"


@_protocol
async def says_who_is_quicker(provider: Provider) -> str:
    """A sandbox says whether another is had sooner than it is ready for a second command, told of one or not."""
    said = []
    for again in (False, True):
        async with sandbox_of(provider, SandboxSpec(again=again)) as sandbox:
            expect(isinstance(sandbox.for_one, bool), f"for_one is {sandbox.for_one!r}")
            said.append("another" if sandbox.for_one else "the same")
    return f"{said[0]}, and {said[1]} when told"


@_protocol
async def close_is_idempotent(provider: Provider) -> str:
    """`close` may be repeated; a closed sandbox runs nothing, and its folders go, at the latest a moment later."""
    sandbox = await provider.create(SandboxSpec(mounts=(Writable("/out"),)))
    folder = await sandbox.get("/out")
    await sandbox.close()
    await sandbox.close()
    await sandbox.kill()
    expect(await asyncio.to_thread(_goes, folder), f"{folder} is still there after {_GONE_S:g} s")
    try:
        await sandbox.exec(["true"])
    except RuntimeError:
        return "twice"
    raise Broken("a closed sandbox ran a command")


def _goes(folder: Path) -> bool:
    deadline = time.monotonic() + _GONE_S
    while folder.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    return not folder.exists()

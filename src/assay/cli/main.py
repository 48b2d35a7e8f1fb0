"""The entry point: commands found by name and imported only when they are run.

Exit codes: 0 done (for `verify`: graded, whatever the reward); 3 no verdict, or something is wrong with what was checked;
2 wrong usage, or a task or workspace that cannot be used; 1 a bug in Assay; 130 Ctrl-C, 143 SIGTERM.
"""

from __future__ import annotations

import importlib
import sys

import click

import assay

_BROKEN_PIPE = 128 + 13
"""As a shell reports a program that SIGPIPE ended: never 0, which would say "graded"."""
_COMMANDS = {
    "verify": "Grade a workspace: one verdict.",
    "check": "Does a verifier work? Grades its solution and the untouched environment.",
    "init": "Make a task folder that grades at once.",
    "lint": "Say what is wrong with a task or a dataset, before it runs.",
    "publish": "Write a dataset as Harbor tasks that any Harbor runs.",
    "serve": "Verify over HTTP, each answer exactly once.",
    "run": "Let an agent work on every task of a dataset, and grade what it left.",
    "resume": "Go on with a run: what it had left to do.",
    "recover": "Verify answers again that were masked by something that may have passed.",
    "regrade": "Verify kept answers again with today's verifiers.",
    "status": "How far a run is.",
    "report": "What a run came to, and what its mean leaves out.",
    "compare": "What differs between two runs.",
    "export": "Write a run as JSONL.",
    "rootfs": "Import, list and remove images as folders to grade on.",
    "doctor": "Try which guarantees hold on this machine.",
}


class _Commands(click.Group):
    """Lists its commands from `_COMMANDS`, so that help imports none of them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command = importlib.import_module(f"assay.cli.{cmd_name}").command
        assert isinstance(command, click.Command)  # noqa: S101 - what each command's module calls so
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in _COMMANDS and not args[0].startswith("-"):
            import difflib

            near = difflib.get_close_matches(args[0], _COMMANDS, n=1)
            meant = f" Did you mean {near[0]!r}?" if near else f" The commands are: {', '.join(_COMMANDS)}."
            ctx.fail(f"No such command {args[0]!r}.{meant}")
        return super().resolve_command(ctx, args)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(assay.__version__, prog_name="assay")
def cli() -> None:
    """Assay grades what an AI agent did: a task and a workspace in, an honest reward or a typed failure out."""


def main() -> None:
    """Run the command line and end the process with its exit code."""
    try:
        code = cli.main(prog_name="assay", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        code = 130
    except SystemExit as end:
        # click and rich end with 1 when the reader of our output went away. Nothing else ends so: commands return.
        code = _BROKEN_PIPE if end.code == 1 else end.code
    except Exception as error:
        if type(error).__name__ == "TaskInvalid":
            # By name: `assay.tasks` is too heavy to import for every command.
            click.echo(f"Error: {error.reason}", err=True)  # type: ignore[attr-defined] # what every such failure has
            sys.exit(2)
        import traceback

        traceback.print_exc()
        click.echo(
            "This is a bug in Assay, not in your task or workspace. Please report it to the project's issue tracker "
            "with the lines above and the command you ran.",
            err=True,
        )
        code = 1
    sys.exit(code if isinstance(code, int) else 0)


if __name__ == "__main__":
    main()

"""The `rlrun` command.

Exit codes are in rlrun.runner.contracts.exit_codes.

Commands are the entry points `rlrun.commands` of installed distributions:

    [project.entry-points."rlrun.commands"]
    hello = "acme.commands:hello"       # a function, as typer takes it
    cluster = "acme.commands:cluster"   # a typer.Typer, whose commands become `rlrun cluster …`

rlrun announces its own commands the same way. Other distributions are looked at only where the first word is
not one of rlrun's own commands, and they cannot replace one.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import EntryPoint, distribution, entry_points
from typing import Annotated

import typer

from rlrun.cli.error_report import print_error, print_problems
from rlrun.runner.contracts.exit_codes import ExitCode
from rlrun.runner.host.instruction_sets import limit_libraries
from rlrun.runner.host.printed_text import print_text
from rlrun.specs.problems.codes import Code
from rlrun.specs.problems.findings import SpecError
from rlrun.specs.problems.spelling import nearest
from rlrun.specs.safe_python import protect_processes

ENTRY_POINTS = "rlrun.commands"
OTHER_NAMES = {
    **dict.fromkeys(("train", "run", "start", "fit", "grpo", "sft", "rl"), "launch"),
    **dict.fromkeys(("check", "lint"), "validate"),
    **dict.fromkeys(("ls", "list", "ps"), "runs"),
    **dict.fromkeys(("kill", "cancel"), "stop"),
    **dict.fromkeys(("ui", "dashboard", "board"), "view"),
    **dict.fromkeys(("evaluate", "test", "bench"), "eval"),
}
"""What the commands of other programs are called in rlrun."""


def make_app(arguments: Sequence[str]) -> typer.Typer:
    """Returns the application with the command that the arguments begin with, or with all commands.

    Importing only this command takes a third of the time of importing them all.
    """
    commands = commands_for(arguments[0] if arguments else "")
    app = typer.Typer(
        help="Post-train language models by reinforcement learning: one TOML file is the whole job.",
        add_completion=len(commands) > 1,
        rich_markup_mode=None,  # rich would read [profiles.NAME] in a help text as a style
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    )
    app.callback()(_top)
    for entry in commands:
        add_command(app, entry)
    return app


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print_text(f"rlrun {version('rlrun')}")
        raise typer.Exit


def _top(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Post-train language models by reinforcement learning: one TOML file is the whole job."""


def run() -> None:
    """Runs the command line. Reports a user's mistakes as messages, without a traceback."""
    protect_processes()
    try:
        limit_libraries()
        make_app(sys.argv[1:])()
    except SpecError as error:
        print_problems(error.problems)
        sys.exit(ExitCode.WRONG)
    except ValueError as error:
        print_error(str(error), getattr(error, "code", None))
        sys.exit(ExitCode.WRONG)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "rlrun":
            raise
        message = f"{error.name} is not installed; rlrun needs it to run jobs: pip install 'rlrun[run]'"
        print_error(message, Code.PACKAGE)
        sys.exit(ExitCode.WRONG)
    except OSError as error:
        print_error(f"{error.filename or 'rlrun'}: {error.strerror or error}")
        sys.exit(ExitCode.WRONG)
    except KeyboardInterrupt:
        sys.exit(ExitCode.INTERRUPTED)


def commands_for(word: str) -> Sequence[EntryPoint]:
    """Returns the command that a command line begins with, or all commands where it is none of rlrun's own.

    Raises ValueError if two packages announce the same command, or none announces this one.
    """
    built_in = own_commands()
    if word in built_in:
        return [built_in[word]]
    commands = [*built_in.values(), *_commands_of_packages(built_in)]
    names = [entry.name for entry in commands]
    if word and not word.startswith("-") and word not in names:
        meant = OTHER_NAMES.get(word) or nearest(word, names)
        guess = f"did you mean `rlrun {meant}`?" if meant else f"commands: {', '.join(names)}"
        raise ValueError(f"there is no command {word!r}; {guess}")
    return commands


def own_commands() -> Mapping[str, EntryPoint]:
    """Returns rlrun's commands by name, in the order of the names, whatever order the installer wrote."""
    commands = distribution("rlrun").entry_points.select(group=ENTRY_POINTS)
    return {entry.name: entry for entry in sorted(commands, key=lambda entry: entry.name)}


def _commands_of_packages(built_in: Mapping[str, EntryPoint]) -> Iterator[EntryPoint]:
    """Yields the commands of all packages except rlrun."""
    announced: dict[str, EntryPoint] = {}
    for entry in sorted(entry_points(group=ENTRY_POINTS), key=lambda entry: entry.name):
        if entry.name in built_in:
            continue
        if entry.name in announced:
            both = f"{_package_of(announced[entry.name])} and {_package_of(entry)}"
            raise ValueError(f"the command {entry.name!r} is announced by {both}; uninstall one of them")
        announced[entry.name] = entry
        yield entry


def add_command(app: typer.Typer, entry: EntryPoint) -> None:
    """Adds a command, or a group of commands, to the application.

    A package's command that cannot be imported is reported and left out, so that it breaks no other command.
    """
    try:
        command = entry.load()
    except Exception as error:  # importing a module of another package may raise anything
        if _package_of(entry) == "rlrun":
            raise
        reason = f"{type(error).__name__}: {error}"
        print_text(f"rlrun {entry.name} of {_package_of(entry)} fails to import: {reason}", file=sys.stderr)
        return
    if isinstance(command, typer.Typer):
        app.add_typer(command, name=entry.name)
    else:
        app.command(entry.name)(command)


def _package_of(entry: EntryPoint) -> str:
    return "an unknown package" if entry.dist is None else entry.dist.name

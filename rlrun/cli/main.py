"""The `rlrun` command.

Exit codes: 0 for success, 2 if the spec or the command is wrong, 3 if the job failed, 130 if it was
interrupted.
"""

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from rlrun.cli.commands import add_command, commands_for
from rlrun.cli.error_report import print_error, print_problems
from rlrun.runner.host.instruction_sets import limit_libraries
from rlrun.runner.host.printed_text import print_text
from rlrun.specs.problems.codes import Code
from rlrun.specs.problems.findings import SpecError
from rlrun.specs.safe_python import protect_processes

WRONG = 2
INTERRUPTED = 130


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
        sys.exit(WRONG)
    except ValueError as error:
        print_error(str(error), getattr(error, "code", None))
        sys.exit(WRONG)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "rlrun":
            raise
        message = f"{error.name} is not installed; rlrun needs it to run jobs: pip install 'rlrun[run]'"
        print_error(message, Code.PACKAGE)
        sys.exit(WRONG)
    except OSError as error:
        print_error(f"{error.filename or 'rlrun'}: {error.strerror or error}")
        sys.exit(WRONG)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)

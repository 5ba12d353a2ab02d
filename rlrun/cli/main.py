"""The `rlrun` command.

Exit codes: 0 done, 2 the spec or the command is wrong, 3 the job failed, 130 interrupted.
"""

import sys

import typer

from rlrun.cli import (
    convert,
    importing,
    init,
    launch,
    logs,
    plan,
    plugins,
    runs,
    schema,
    score,
    status,
    stop,
    validate,
)
from rlrun.cli.report import print_error, print_problems
from rlrun.specs.problems import SpecError

WRONG = 2
INTERRUPTED = 130

app = typer.Typer(
    help="Post-train language models by reinforcement learning: one TOML file is the whole job.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (launch, validate, plan, init, score, runs, status, stop, logs, schema):
    app.command(command.__name__.rpartition(".")[2])(command.command)
app.add_typer(plugins.app, name="plugins")
app.add_typer(convert.app, name="convert")
app.add_typer(importing.app, name="import")


def run() -> None:
    """Entry point of the console script: what a user got wrong is told in words, without a traceback."""
    try:
        app()
    except SpecError as error:
        print_problems(error.problems)
        sys.exit(WRONG)
    except ValueError as error:
        print_error(str(error))
        sys.exit(WRONG)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "rlrun":
            raise
        print_error(f"{error.name} is not installed; running jobs needs more: pip install 'rlrun[run]'")
        sys.exit(WRONG)
    except OSError as error:
        print_error(f"{error.filename or 'rlrun'}: {error.strerror or error}")
        sys.exit(WRONG)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)

"""`rlrun debug`: follows one prompt of a spec from its row to the loss."""

from typing import Annotated

import typer

from rlrun.cli.arguments import AllowLocalPlugins, Overrides, Profiles, Specs, load
from rlrun.cli.error_report import print_error
from rlrun.runner.contracts.exit_codes import ExitCode
from rlrun.runner.host.printed_text import print_text
from rlrun.specs.problems.findings import SpecError


def command(
    specs: Specs,
    *,
    overrides: Overrides = None,
    profiles: Profiles = None,
    row: Annotated[int, typer.Option(min=0, help="Number of the prompt in the order of the run.")] = 0,
    sample: Annotated[int, typer.Option(min=0, help="Number of the sample whose tokens are shown.")] = 0,
    tokens: Annotated[int, typer.Option(min=2, help="Number of tokens that are shown.")] = 100,
    allow_local_plugins: AllowLocalPlugins = False,
) -> None:
    """Follow one prompt from its row to the loss.

    Starts the engines, rewards and trainer of the spec, takes one step on one prompt, and prints the rendered
    prompt, the answers, each reward, the advantages, a table of tokens with the log-probs of engine and
    trainer, and the loss. Keeps no run.
    """
    loaded = load(specs, overrides, profiles)
    if unset := loaded.unset_references():
        raise SpecError(unset)
    from rlrun.cli.trace_text import describe_trace
    from rlrun.runner.contracts.errors import JobError
    from rlrun.runner.job.debugging.prompt_trace import trace_prompt

    try:
        trace = trace_prompt(loaded, row)
    except JobError as error:
        print_error(f"{error}\n{error.details}".rstrip())
        raise typer.Exit(ExitCode.FAILED) from None
    for line in describe_trace(trace, sample, tokens):
        print_text(line)

"""`rlrun launch`: run the job of a spec."""

import json
from typing import Annotated

import typer

from rlrun.cli.arguments import Overrides, Profiles, Specs, load
from rlrun.specs.problems import SpecError


def command(
    specs: Specs,
    *,
    overrides: Overrides = None,
    profiles: Profiles = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the run's newest checkpoint.")] = False,
    new: Annotated[
        bool,
        typer.Option("--new", help="Where the name is in use, take the next free one: NAME-2, NAME-3, …"),
    ] = False,
    name: Annotated[str | None, typer.Option(help="Name of the run, instead of the spec's.")] = None,
) -> None:
    """Run a job to its end; Ctrl-C stops it cleanly."""
    if resume and new:
        raise ValueError("--resume goes on with a run and --new starts another: give one of them")
    if name is not None:
        overrides = [*(overrides or ()), f"name={json.dumps(name)}"]
    loaded = load(specs, overrides, profiles)
    if unset := loaded.unset_references():
        raise SpecError(unset)
    from rlrun.runner.launch import launch

    raise typer.Exit(launch(loaded, resume=resume, new=new))

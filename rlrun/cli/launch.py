"""`rlrun launch`: run the job of a spec."""

import gc
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rlrun.cli.arguments import AllowLocalPlugins, Overrides, Profiles, Specs, load
from rlrun.specs.problems.findings import SpecError

if TYPE_CHECKING:
    from rlrun.specs.reading.loading import LoadedSpec


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
    locked: Annotated[
        Path | None,
        typer.Option(
            help="A run's spec.lock.json: launch only what is the same, versions and files included."
        ),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the run, instead of the spec's.")] = None,
    allow_local_plugins: AllowLocalPlugins = False,
) -> None:
    """Run a job to its end; Ctrl-C stops it cleanly."""
    if resume and new:
        raise ValueError("--resume goes on with a run and --new starts another: give one of them")
    if name is not None:
        overrides = [*(overrides or ()), f"name={json.dumps(name)}"]
    loaded = load(specs, overrides, profiles)
    if unset := loaded.unset_references():
        raise SpecError(unset)
    if locked is not None:
        _refuse_drift(loaded, locked)
    from rlrun.runner.job.launch import launch

    code = launch(loaded, resume=resume, new=new)
    gc.freeze()  # the interpreter's end would look once more through all that was imported: a second and more
    raise typer.Exit(code)


def _refuse_drift(loaded: "LoadedSpec", locked: Path) -> None:
    """ValueError, with every difference, where this launch would not be the locked one."""
    from rlrun.runner.contracts.errors import JobError
    from rlrun.runner.host.model_files import fetch_model
    from rlrun.runner.records.lock import lock_differences, make_lock, read_lock

    before = read_lock(locked)
    try:
        now = make_lock(loaded, fetch_model(loaded.spec.model))
    except JobError as error:
        raise ValueError(str(error)) from None
    if found := lock_differences(before, now):
        lines = "\n  ".join(map(str, found))
        raise ValueError(
            f"this launch would differ from {locked}:\n  {lines}\nput these back, or launch without --locked"
        )

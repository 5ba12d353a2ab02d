"""`rlrun launch`: runs the job of a spec."""

import atexit
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from rlrun.cli.arguments import (
    AllowLocalPlugins,
    LaunchRunsDir,
    NewName,
    NextFreeName,
    Overrides,
    Profiles,
    Quiet,
    ShowLog,
    Specs,
    launch_settings,
    load,
    run_argument,
)
from rlrun.cli.run_states import checkpoint_at
from rlrun.runner.host.printed_text import print_text
from rlrun.specs.problems.findings import SpecError
from rlrun.specs.reading.reference import as_toml

if TYPE_CHECKING:
    from rlrun.specs.reading.loading import LoadedSpec
    from rlrun.specs.sections.job import Spec


_Resume = Annotated[bool, typer.Option("--resume", help="Continue from the run's newest checkpoint.")]
_ResumeIfExists = Annotated[
    bool,
    typer.Option(
        "--resume-if-exists", help="Continue the run if its name is in use, and start it otherwise."
    ),
]
_Start = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="RUN@STEP",
        help="Begin with the weights and the optimizer of another run's checkpoint; RUN@latest: its "
        "newest; RUN@best: the one of checkpoint.keep_best. Sets checkpoint.start_from.",
    ),
]
_Locked = Annotated[
    Path | None,
    typer.Option(
        help="A run's spec.lock.json: refuse to launch if a value, a version or a file differs from it."
    ),
]
_Detach = Annotated[
    bool, typer.Option("--detach", help="Return as soon as the run's folder exists; the job continues.")
]


def command(
    specs: Specs,
    *,
    overrides: Overrides = None,
    profiles: Profiles = None,
    resume: _Resume = False,
    resume_if_exists: _ResumeIfExists = False,
    new: NextFreeName = False,
    start: _Start = None,
    locked: _Locked = None,
    name: NewName = None,
    runs_dir: LaunchRunsDir = None,
    allow_local_plugins: AllowLocalPlugins = False,
    detach: _Detach = False,
    quiet: Quiet = False,
    verbose: ShowLog = False,
) -> None:
    """Run a job to its end; Ctrl-C stops it cleanly."""
    if (resume or resume_if_exists) and new:
        raise ValueError("--resume continues a run and --new starts another: give only one of them")
    if detach and "-" in specs:
        raise ValueError("a spec that is piped in cannot be read twice: write it to a file to use --detach")
    settings = launch_settings(overrides, runs_dir, name)
    if start is not None:
        checkpoint = checkpoint_at(start, runs_dir or Path("runs"))
        settings.append(f"checkpoint.start_from={as_toml(str(checkpoint))}")
    loaded = load(specs, settings, profiles)
    _check_launchable(loaded, locked)
    if detach:
        _detach(Path(loaded.spec.runs_dir))
        return
    resume = resume or (resume_if_exists and _exists(loaded.spec))
    end_process(run_job(loaded, resume=resume, new=new, quiet=quiet, verbose=verbose))


def run_job(
    loaded: "LoadedSpec", *, resume: bool, new: bool = False, quiet: bool = False, verbose: bool = False
) -> int:
    """Runs the job in this process, which is there for nothing else; returns the exit code of `launch`."""
    from rlrun.runner.job.launch import launch
    from rlrun.runner.prompts.tokenizer_import import need_only_tokenizers

    need_only_tokenizers()
    return launch(loaded, resume=resume, new=new, quiet=quiet, verbose=verbose)


def _check_launchable(loaded: "LoadedSpec", locked: Path | None) -> None:
    """Raises SpecError for references that are not set, and ValueError for a job that needs the nodes of its
    scheduler, or differs from the locked one.
    """
    if unset := loaded.unset_references():
        raise SpecError(unset)
    cluster = loaded.spec.cluster
    if cluster.nodes > 1 and cluster.address is None:
        raise ValueError(
            f"cluster.nodes = {cluster.nodes}, and rlrun launch without cluster.address only uses this "
            "host: rlrun submit SPEC hands the job to the scheduler of [submit]"
        )
    if locked is not None:
        _refuse_drift(loaded, locked)


def _exists(spec: "Spec") -> bool:
    """Returns whether the spec's run was launched, here or on a machine that mirrored it."""
    from rlrun.runner.records.run_folder import run_folder
    from rlrun.runner.storage.restore import is_unstored

    return run_folder(spec).was_launched or not is_unstored(spec, spec.name)


def end_process(code: int) -> NoReturn:
    """Ends this process without ending the interpreter.

    That would take a second, wait for threads, and abort the process (exit code 134, "exception not
    rethrown") where it ends a thread that is in Ray's C++ code.
    """
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _detach(runs_dir: Path) -> None:
    """Starts the same command without `--detach`. Raises ValueError with its output if it ends at once."""
    from rlrun.cli.detached import start_detached
    from rlrun.runner.contracts.errors import JobError

    try:
        folder, process = start_detached([word for word in sys.argv[2:] if word != "--detach"], runs_dir)
    except JobError as error:
        raise ValueError(str(error)) from None
    run = run_argument(folder.name, runs_dir)
    print_text(f"{folder.name} runs as process {process.pid}")
    print_text(f"next: rlrun status {run}, rlrun logs -f {run}, rlrun stop {run}")


def _refuse_drift(loaded: "LoadedSpec", locked: Path) -> None:
    """Raises ValueError, with every difference, if this launch would differ from the locked one."""
    from rlrun.runner.host.model_files import fetch_model
    from rlrun.runner.records.lock import lock_differences, make_lock, read_lock

    before = read_lock(locked)
    now = make_lock(loaded, fetch_model(loaded.spec.model))
    if differences := lock_differences(before, now):
        lines = "\n  ".join(map(str, differences))
        raise ValueError(
            f"this launch would differ from {locked}:\n  {lines}\n"
            "revert these changes, or launch without --locked"
        )

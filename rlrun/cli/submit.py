"""`rlrun submit`: hands a job to a scheduler."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rlrun.cli.arguments import (
    AllowLocalPlugins,
    LaunchRunsDir,
    NewName,
    Overrides,
    Profiles,
    Specs,
    launch_settings,
    load,
    run_argument,
)
from rlrun.cli.error_report import print_warnings
from rlrun.runner.host.printed_text import print_text
from rlrun.specs.problems.findings import SpecError

if TYPE_CHECKING:
    from rlrun.runner.submission.folder import SubmissionFolder


def command(
    specs: Specs,
    *,
    overrides: Overrides = None,
    profiles: Profiles = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue a run that exists, from its newest checkpoint.")
    ] = False,
    name: NewName = None,
    runs_dir: LaunchRunsDir = None,
    allow_local_plugins: AllowLocalPlugins = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the files for the scheduler, and submit nothing.")
    ] = False,
) -> None:
    """Hand a job to the scheduler of [submit], which runs it on other machines.

    The job continues after preemptions, lost nodes and its time limit. rlrun status, logs and stop work on it
    as on a job of this host.
    """
    from rlrun.plugins.registry import build
    from rlrun.runner.host.atomic_files import write_text
    from rlrun.runner.job.preflight import check_files
    from rlrun.runner.submission.folder import SubmissionFolder, SubmittedJob
    from rlrun.runner.submission.prepare import prepare, submitted_spec

    loaded = load(specs, launch_settings(overrides, runs_dir, name), profiles, other_host=True)
    print_warnings(check_files(loaded))
    folder = SubmissionFolder(Path(loaded.spec.runs_dir), loaded.spec.name)
    job = prepare(loaded, folder, Path.cwd())
    assert loaded.spec.submit is not None, "prepare refuses a spec without it"
    section = loaded.spec.submit
    launcher = build("launchers", section.type, section.params)
    files = {folder.spec.name: submitted_spec(loaded), **launcher.files(job)}
    if dry_run:
        for file, text in files.items():
            print_text(f"== {folder.path / file}")
            print_text(text)
        return
    if unset := loaded.unset_references([*job.secrets, *job.environment]):
        raise SpecError(unset)
    _check_unused(folder, resume=resume)
    folder.make()
    folder.stop.unlink(missing_ok=True)
    folder.attempts.unlink(missing_ok=True)
    for file, text in files.items():
        write_text(folder.path / file, text)
    submitted = SubmittedJob(launcher=section.type, params=section.params, id=launcher.submit(job))
    folder.write_job(submitted)
    run = run_argument(job.name, Path(loaded.spec.runs_dir))
    print_text(f"{job.name} is job {submitted.id} of {section.type}; its files are in {folder.path}")
    print_text(f"next: rlrun status {run}, rlrun logs -f {run}, rlrun stop {run}")


def _check_unused(folder: "SubmissionFolder", *, resume: bool) -> None:
    """Raises ValueError if the name belongs to another run, or the job is still with its scheduler."""
    from rlrun.cli.submitted import find_submitted

    before = find_submitted(folder.run.path.parent, folder.run.name)
    if before is not None and (state := before.state).phase != "ended":
        raise ValueError(
            f"{folder.run.name} is already submitted: {state.about}; rlrun stop {folder.run.argument} ends it"
        )
    if folder.run.was_launched and not resume:
        raise ValueError(
            f"the run {folder.run.shown} exists: continue it (--resume), or choose another name (--name)"
        )

"""`rlrun resume`: continues a run as it was launched."""

from pathlib import Path

from rlrun.cli import launch
from rlrun.cli.arguments import AllowLocalPlugins, NeededRunName, Overrides, Quiet, RunsDir, ShowLog
from rlrun.cli.error_report import print_warnings
from rlrun.specs.problems.findings import SpecError


def command(
    name: NeededRunName,
    runs_dir: RunsDir = Path("runs"),
    *,
    overrides: Overrides = None,
    allow_local_plugins: AllowLocalPlugins = False,
    quiet: Quiet = False,
    verbose: ShowLog = False,
) -> None:
    """Continue a run from its newest checkpoint, with the spec that it was launched with.

    The spec is the run's own (spec.lock.json), with every --set and profile of its launch; the file may have
    changed since. To continue with a changed file: rlrun launch SPEC --resume.
    """
    from rlrun.cli.run_states import find_run
    from rlrun.plugins.validation import load_checked_spec
    from rlrun.runner.records.lock import launched_spec, read_lock
    from rlrun.specs.reading.reference import as_toml

    folder = find_run(runs_dir, name)
    own = [f"name={as_toml(folder.name)}", f"runs_dir={as_toml(str(folder.path.parent.resolve()))}"]
    loaded = load_checked_spec([launched_spec(read_lock(folder.lock))], [*(overrides or ()), *own])
    print_warnings(loaded.warnings())
    if unset := loaded.unset_references():
        raise SpecError(unset)
    launch.end_process(launch.run_job(loaded, resume=True, quiet=quiet, verbose=verbose))

"""`rlrun sweep`: runs a job several times with other values for some keys, and compares the runs."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rlrun.cli.arguments import (
    AllowLocalPlugins,
    AsJson,
    LaunchRunsDir,
    Overrides,
    Profiles,
    RunsDir,
    Specs,
    complete_sweep,
    launch_settings,
    load,
    run_argument,
    spec_path,
)
from rlrun.runner.host.printed_text import print_text
from rlrun.specs.problems.findings import SpecError, SpecText, format_value
from rlrun.specs.reading.reference import as_toml

if TYPE_CHECKING:
    from rlrun.runner.sweeps.sweep_folder import SweepFolder
    from rlrun.specs.reading.loading import LoadedSpec
    from rlrun.specs.sections.job import Spec

app = typer.Typer(help="Run a job with several values for some keys, and compare.", no_args_is_help=True)
Keys = Annotated[
    list[str] | None,
    typer.Option("--sweep", metavar="KEY=VALUES", help="Vary a key, as in trainer.lr=1e-6,1e-5; repeatable."),
]
Name = Annotated[
    str | None,
    typer.Option(help="Name of the sweep's folder in runs_dir. Default: the spec's name and -sweep."),
]


@app.command()
def launch(
    specs: Specs,
    *,
    keys: Keys = None,
    overrides: Overrides = None,
    profiles: Profiles = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Continue: run the trials that are not done, from their checkpoints."),
    ] = False,
    name: Name = None,
    runs_dir: LaunchRunsDir = None,
    allow_local_plugins: AllowLocalPlugins = False,
) -> None:
    """Run the trials of [sweep] or --sweep, one after the other or side by side.

    Each trial is an ordinary run in the sweep's folder. Ctrl-C saves and ends the trials that run.
    """
    from rlrun.runner.sweeps.room import slots_for
    from rlrun.runner.sweeps.run_sweep import LaunchArguments, prepare_search, run_sweep
    from rlrun.runner.sweeps.sweep_folder import SweepFolder

    settings = _settings(launch_settings(overrides, runs_dir), keys)
    loaded = load_sweep(specs, settings, profiles)
    spec = loaded.spec
    if unset := loaded.unset_references():
        raise SpecError(unset)
    slots = slots_for(spec)
    folder = SweepFolder(Path(spec.runs_dir).absolute() / (name or f"{spec.name}-sweep"))
    options = [f"--set={setting}" for setting in (*settings, *_mirror(spec, folder))]
    options += [f"--profile={profile}" for profile in profiles or ()]
    arguments = LaunchArguments(specs, options, _document(loaded, specs))
    with folder.claimed(resume=resume):
        next_trial = prepare_search(folder, spec)
        count = spec.sweep.trials if spec.sweep and spec.sweep.trials else len(folder.trials())
        _say(f"{folder.path.name}: {count} trials, {len(slots)} at a time; their runs go to {folder.shown}")
        code = run_sweep(folder, arguments, next_trial, slots, _say)
    _print_table(folder)
    raise typer.Exit(code)


@app.command()
def plan(
    specs: Specs,
    *,
    keys: Keys = None,
    overrides: Overrides = None,
    profiles: Profiles = None,
    as_json: AsJson = False,
    allow_local_plugins: AllowLocalPlugins = False,
) -> None:
    """List the trials of a grid, after checking the spec of each, without starting anything."""
    from rlrun.runner.sweeps.trials import objective, trials_of

    spec = load_sweep(specs, _settings(overrides, keys), profiles).spec
    assert spec.sweep is not None
    if spec.sweep.search != "grid":
        raise ValueError(
            "Optuna chooses the values of a trial when the earlier ones have ended: nothing to list"
        )
    trials, metric = trials_of(spec.sweep), objective(spec)[0]
    if as_json:
        rows = [{"name": trial.name, "values": trial.values} for trial in trials]
        print(json.dumps({"metric": metric, "trials": rows}))
        return
    print_text(*(trial.name for trial in trials), sep="\n")
    print_text(f"{len(trials)} trials, compared by {metric}")


@app.command()
def status(
    name: Annotated[str, typer.Argument(help="Name or folder of the sweep.", autocompletion=complete_sweep)],
    runs_dir: RunsDir = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Show every trial of a sweep: its values, status, step and metric, the best one marked."""
    from rlrun.cli.run_states import split_folder
    from rlrun.runner.sweeps.sweep_folder import SweepFolder

    folder = SweepFolder(Path(*split_folder(runs_dir, name)).absolute())
    if not as_json:
        _print_table(folder)
        return
    print(json.dumps(folder.table()))


def load_sweep(specs: list[str], settings: list[str], profiles: list[str] | None) -> "LoadedSpec":
    """Returns the spec of a sweep. Raises SpecError with the problems of all its trials, ValueError without
    `[sweep]`.
    """
    from rlrun.runner.sweeps.optuna_search import missing_optuna
    from rlrun.runner.sweeps.trials import check_trials, trials_of

    loaded = load(specs, settings, profiles)
    sweep = loaded.spec.sweep
    if sweep is None:
        raise ValueError("the spec has no [sweep]: add the table, or vary keys with --sweep KEY=VALUE,VALUE")
    if sweep.search == "optuna":
        if (finding := missing_optuna()) is not None:
            raise SpecError([loaded.composition.locate(finding)])
        return loaded
    document = _document(loaded, specs)
    files = [SpecText("-", document, Path.cwd()) if name == "-" else spec_path(name) for name in specs]
    check_trials(trials_of(sweep), files, settings, profiles or ())
    return loaded


def _settings(overrides: list[str] | None, keys: list[str] | None) -> list[str]:
    from rlrun.runner.sweeps.trials import sweep_setting

    return [*(overrides or ()), *map(sweep_setting, keys or ())]


def _mirror(spec: "Spec", folder: "SweepFolder") -> list[str]:
    """Returns the setting that mirrors the trials to a folder of their sweep: other sweeps have trials of the
    same names.
    """
    mirror = spec.checkpoint.mirror
    if mirror is None:
        return []
    address = as_toml(f"{mirror.rstrip('/')}/{folder.path.name}")
    return [f"checkpoint.mirror={address}"]


def _document(loaded: "LoadedSpec", specs: list[str]) -> str:
    """Returns the text of the spec that was piped in."""
    from rlrun.specs.paths import display_path
    from rlrun.specs.reading.compose import STANDARD_INPUT

    name = display_path(STANDARD_INPUT)
    texts = [source.text for source in loaded.composition.files if source.name == name]
    return texts[0] if "-" in specs and texts else ""


def _say(text: str) -> None:
    print_text(text, flush=True)


def _print_table(folder: "SweepFolder") -> None:
    from rlrun.cli.output import plain_table, table_console

    states = folder.states()
    keys = list(dict.fromkeys(key for state in states for key in state.trial.values))
    table = plain_table("trial", *keys, "status", "step", folder.metric(), "")
    for state in states:
        values = [format_value(state.trial.values[key]) if key in state.trial.values else "" for key in keys]
        score = "" if state.score is None else f"{state.score:.4g}"
        step = f"{state.step}/{state.steps or '?'}"
        number = state.trial.name.partition("-")[0]
        table.add_row(number, *values, state.status, step, score, "best" if state.is_best else "")
    table_console().print(table)
    print_text(f"to compare the trials: rlrun view {run_argument(folder.path.name, folder.path.parent)}")

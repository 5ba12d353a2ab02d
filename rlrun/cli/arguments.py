"""Arguments that several commands share."""

import glob
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rlrun.specs.local_code import ALLOW_LOCAL
from rlrun.specs.problems.spelling import nearest

if TYPE_CHECKING:
    from rlrun.specs.reading.loading import LoadedSpec


def finite(value: float | None) -> float | None:
    """The callback of an option whose value is a number other than `inf` and `nan`."""
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter("must be a finite number")
    return value


def _complete_spec(start: str) -> list[str]:
    """Returns the recipes and the TOML files that begin with what is typed."""
    from rlrun.specs.paths import RECIPES

    names = [*(path.stem for path in RECIPES.glob("*.toml")), *map(str, Path().glob("*.toml"))]
    return sorted(name for name in names if name.startswith(start))


def _complete_run(start: str) -> list[str]:
    """Returns the names in `runs/` that begin with what is typed."""
    return _names(f"{glob.escape(start)}*/state.json")


def complete_sweep(start: str) -> list[str]:
    """Returns the names of sweeps in `runs/` that begin with what is typed."""
    return _names(f"{glob.escape(start)}*/sweep.json")


def _names(pattern: str) -> list[str]:
    """Returns the names of folders in `runs/` that a shell may print."""
    names = sorted(path.parent.name for path in Path("runs").glob(pattern))
    return [name for name in names if name.isprintable()]


def complete_run_or_sweep(start: str) -> list[str]:
    """Returns the names of runs and sweeps in `runs/` that begin with what is typed."""
    return sorted([*_complete_run(start), *complete_sweep(start)])


Specs = Annotated[
    list[str],
    typer.Argument(
        metavar="SPEC",
        autocompletion=_complete_spec,
        help="TOML files (later ones override earlier ones), the name of a shipped recipe, or - for stdin.",
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Set a key, as in trainer.lr=1e-5; repeatable. No secrets: other users see it in `ps`.",
    ),
]
Profiles = Annotated[
    list[str] | None,
    typer.Option("--profile", metavar="NAME", help="Apply the table [profiles.NAME] on top; repeatable."),
]
Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="Print only problems and warnings.")]
Verbose = Annotated[
    bool, typer.Option("-v", "--verbose", help="Also print every key that the spec sets, with its origin.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts and editors.")]


def _allow_local_plugins(allowed: bool) -> bool:
    """Allows local code, also in the processes of the job, which inherit the environment."""
    if allowed:
        os.environ[ALLOW_LOCAL] = "1"
    return allowed


AllowLocalPlugins = Annotated[
    bool,
    typer.Option(
        "--allow-local-plugins",
        callback=_allow_local_plugins,
        help="Let `type` name a class or function in a file (path/to/file.py:Class), and run engine.python "
        "to check its arguments.",
    ),
]
_RUNS_DIR = "--runs-dir"
RunsDir = Annotated[Path, typer.Option(_RUNS_DIR, help="Folder that holds the run folders.")]
LaunchRunsDir = Annotated[
    Path | None,
    typer.Option(_RUNS_DIR, help="Folder that holds the run folders. Default: runs_dir of the spec."),
]
NewName = Annotated[str | None, typer.Option("--name", help="Name of the run; overrides the spec's `name`.")]
NextFreeName = Annotated[
    bool, typer.Option("--new", help="If the name is in use, take the next free one: NAME-2, NAME-3, …")
]
ShowLog = Annotated[
    bool, typer.Option("-v", "--verbose", help="Also print the messages of the driver's log.")
]
PromptKey = Annotated[
    str | None, typer.Option(help="Column of --data with the prompt. Default: chosen by name.")
]
LabelKey = Annotated[
    str | None, typer.Option(help="Column of --data with the right answer. Default: chosen by name.")
]
RowsReward = Annotated[
    str,
    typer.Option(
        help="The reward that grades answers to rows of --data: see rlrun plugins list, or FILE.py:NAME."
    ),
]
RunName = Annotated[
    str | None,
    typer.Argument(help="Name or folder of the run. Default: the newest run.", autocompletion=_complete_run),
]
NeededRunName = Annotated[
    str, typer.Argument(help="Name or folder of the run.", autocompletion=_complete_run)
]


def load(
    specs: list[str],
    overrides: list[str] | None,
    profiles: list[str] | None = None,
    *,
    planning: bool = False,
    other_host: bool = False,
) -> "LoadedSpec":
    """Returns the checked spec that the arguments name, and prints its warnings.

    Raises SpecError with every problem. `planning` means that nothing will be launched, and `other_host` that
    another host would run the job (see `load_spec`).
    """
    from rlrun.cli.error_report import print_warnings
    from rlrun.plugins.validation import load_checked_spec

    refuse_value_as_spec(specs, overrides or ())
    paths = [spec_path(spec) for spec in specs]
    loaded = load_checked_spec(
        paths, overrides or (), profiles or (), planning=planning, other_host=other_host
    )
    print_warnings(loaded.warnings())
    return loaded


def refuse_value_as_spec(specs: Sequence[str], overrides: Sequence[str]) -> None:
    """Raises SpecError for `--set KEY VALUE`, whose value the command line takes for a spec."""
    from rlrun.specs.paths import RECIPES
    from rlrun.specs.problems.codes import Code
    from rlrun.specs.problems.findings import SpecError, problem_without_place

    keys = [override for override in overrides if "=" not in override]
    values = [
        name
        for name in specs
        if name != "-" and not (Path(name).exists() or (RECIPES / f"{name}.toml").exists())
    ]
    if len(keys) == len(values) == 1:
        message, cure = f"{keys[0]!r} has no value", f"write --set {keys[0]}={values[0]}"
        raise SpecError([problem_without_place(message, "--set", Code.OVERRIDE, cure)])


def launch_settings(overrides: list[str] | None, runs_dir: Path | None, name: str | None = None) -> list[str]:
    """Returns the settings of a launch, with its --runs-dir and --name as the keys that they override."""
    from rlrun.specs.reading.reference import as_toml

    keys = {"runs_dir": runs_dir and str(runs_dir), "name": name}
    given = [f"{key}={as_toml(value)}" for key, value in keys.items() if value is not None]
    return [*(overrides or ()), *given]


def run_argument(name: str, runs_dir: Path) -> str:
    """Returns a run's name as commands take it, with the folder of runs unless it is the default."""
    from rlrun.runner.records.run_folder import RunFolder

    return RunFolder(runs_dir / name).argument


def spec_path(name: str) -> Path:
    """Returns the file that a SPEC argument names. Raises ValueError for a recipe that is not shipped."""
    from rlrun.specs.reading.compose import STANDARD_INPUT

    path = STANDARD_INPUT if name == "-" else Path(name)
    if path == STANDARD_INPUT or "." in name or os.sep in name or path.is_file():
        return path
    from rlrun.specs.paths import RECIPES

    recipe = RECIPES / f"{name}.toml"
    if recipe.is_file():
        return recipe
    recipes = sorted(path.stem for path in RECIPES.glob("*.toml"))
    meant = nearest(name, recipes)
    guess = f'did you mean "{meant}"? ' if meant else ""
    raise ValueError(
        f'no recipe is named "{name}"; {guess}recipes: {", ".join(recipes)}; the name of a file ends in .toml'
    )

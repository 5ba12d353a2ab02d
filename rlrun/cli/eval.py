"""`rlrun eval`: measures a model on held-out rows, without training it."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from rlrun.cli.arguments import (
    AllowLocalPlugins,
    LabelKey,
    LaunchRunsDir,
    NextFreeName,
    Overrides,
    Profiles,
    PromptKey,
    Quiet,
    RowsReward,
    ShowLog,
    launch_settings,
)
from rlrun.runner.contracts.exit_codes import ExitCode
from rlrun.runner.host.printed_text import print_text
from rlrun.specs.problems.findings import SpecError

Target = Annotated[
    str,
    typer.Argument(
        metavar="TARGET",
        help="A spec or recipe: its own model. A run: the model that it exported. RUN@STEP, RUN@latest, "
        "RUN@best: a checkpoint of the run. With --spec or --data also a model's folder or HF id.",
    ),
]
Spec = Annotated[
    str | None,
    typer.Option(metavar="SPEC", help="The spec with the [[eval.datasets]], rewards and engines to use."),
]
Data = Annotated[
    Path | None,
    typer.Option(
        help="Rows to evaluate on: JSON lines, CSV, Parquet, or the folder of a dataset of Hugging Face. "
        "--reward grades the answers."
    ),
]


def command(
    target: Target,
    *,
    spec: Spec = None,
    data: Data = None,
    reward: RowsReward = "math",
    prompt_key: PromptKey = None,
    label_key: LabelKey = None,
    samples: Annotated[int, typer.Option(min=1, help="Samples per prompt of --data.")] = 1,
    overrides: Overrides = None,
    profiles: Profiles = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue an evaluation with the samples that it has.")
    ] = False,
    new: NextFreeName = False,
    name: Annotated[
        str | None, typer.Option(help="Name of the evaluation's run. Default: NAME-eval.")
    ] = None,
    runs_dir: LaunchRunsDir = None,
    allow_local_plugins: AllowLocalPlugins = False,
    quiet: Quiet = False,
    verbose: ShowLog = False,
) -> None:
    """Measure a model on the [[eval.datasets]] of a spec, without training.

    Starts the engines and the rewards, and keeps every sample in a run's folder: rlrun view shows them, rlrun
    compare compares two evaluations. Prints each rate with its 95 % interval.
    """
    from rlrun.cli.error_report import print_warnings
    from rlrun.cli.evaluated_model import (
        Rows,
        convert_checkpoint,
        find_model,
        remove_converted,
        sources_of,
    )
    from rlrun.cli.launch import end_process, run_job
    from rlrun.plugins.validation import load_checked_spec

    if resume and new:
        raise ValueError("--resume continues an evaluation and --new starts another: give only one of them")
    describes_rows = bool(prompt_key or label_key or reward != "math" or samples != 1)
    _check_rows(spec, data, describes_rows=describes_rows)
    runs = runs_dir or Path("runs")
    model = find_model(target, runs, has_rows=spec is not None or data is not None)
    rows = None if data is None else Rows(data, reward, samples, prompt_key, label_key)
    converted = runs / f".{name or model.name + '-eval'}.model"
    if model.checkpoint:
        convert_checkpoint(model, converted)
    sources = sources_of(target, model, spec, rows, converted)
    settings = [*launch_settings(overrides, runs_dir), 'debug.mode="eval"']
    loaded = load_checked_spec(sources, settings, profiles or ())
    own = name or f"{model.name or loaded.spec.name}-eval"
    loaded = replace(loaded, spec=loaded.spec.with_sections(name=own))
    print_warnings(loaded.warnings())
    if unset := loaded.unset_references():
        raise SpecError(unset)
    if not quiet:
        print_text(f"{own}: evaluates {model.shown}")
    code = run_job(loaded, resume=resume, new=new, quiet=quiet, verbose=verbose)
    if code == ExitCode.DONE and model.checkpoint:
        remove_converted(converted)
    end_process(code)


def _check_rows(spec: str | None, data: Path | None, *, describes_rows: bool) -> None:
    """Raises ValueError where the options do not say in one way what to evaluate on."""
    if spec is not None and data is not None:
        raise ValueError("--spec and --data both name what to evaluate on: give only one of them")
    if data is None and describes_rows:
        raise ValueError(
            "--prompt-key, --label-key, --reward and --samples apply to the rows of --data: add --data, or "
            "set keys of the spec (--set)"
        )

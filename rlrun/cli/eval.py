"""`rlrun eval`: measures a model on held-out rows, without training it."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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

if TYPE_CHECKING:
    from rlrun.cli.evaluated_model import EvaluatedModel

Target = Annotated[
    str,
    typer.Argument(
        metavar="TARGET",
        help="A spec or recipe: its own model. A run: the model that it exported. RUN@STEP, RUN@latest, "
        "RUN@best: a checkpoint of the run. With --spec or --data also a model's folder or HF id, or the "
        "address of a server with /chat/completions: http://host:8000/v1.",
    ),
]
Spec = Annotated[
    str | None,
    typer.Option(metavar="SPEC", help="The spec with the [[eval.datasets]], rewards and engines to use."),
]
ServedModel = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Name of the model at the address TARGET. Default: the only one that the server lists.",
    ),
]
ApiKeyEnv = Annotated[
    str | None,
    typer.Option(metavar="VARIABLE", help="The environment variable with the key of the address TARGET."),
]
Data = Annotated[
    Path | None,
    typer.Option(
        help="Rows to evaluate on: JSON lines, CSV, Parquet, or the folder of a dataset of Hugging Face. "
        "--reward grades the answers."
    ),
]


Benchmarks = Annotated[
    list[str] | None,
    typer.Option(
        "--benchmark",
        metavar="SET",
        help="A published set to evaluate on, with its prompt and its reward: gsm8k, math-500, aime24, "
        "aime25, aime26, gpqa-diamond, mmlu-pro, ifeval, ifbench, humaneval-plus, livecodebench-v6. May be "
        "repeated.",
    ),
]


def command(
    target: Target,
    *,
    spec: Spec = None,
    data: Data = None,
    benchmark: Benchmarks = None,
    served_model: ServedModel = None,
    api_key_env: ApiKeyEnv = None,
    reward: RowsReward = "math",
    prompt_key: PromptKey = None,
    label_key: LabelKey = None,
    samples: Annotated[int, typer.Option(min=1, help="Samples per prompt of --data or --benchmark.")] = 1,
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

    Starts the engines (none for a server that runs already) and the rewards, and keeps every sample in a
    run's folder: rlrun view shows them, rlrun compare compares two evaluations. Prints each rate with its
    95 % interval.
    """
    from rlrun.cli.error_report import print_warnings
    from rlrun.cli.evaluated_model import (
        Rows,
        Sets,
        convert_checkpoint,
        remove_converted,
        sources_of,
    )
    from rlrun.cli.launch import end_process, run_job
    from rlrun.plugins.validation import load_checked_spec

    if resume and new:
        raise ValueError("--resume continues an evaluation and --new starts another: give only one of them")
    describes_rows = bool(prompt_key or label_key or reward != "math")
    _check_rows(spec, data, benchmark, describes_rows=describes_rows, samples=samples)
    has_rows = spec is not None or data is not None or bool(benchmark)
    runs = runs_dir or Path("runs")
    model = _model(target, runs, served_model, api_key_env, has_rows=has_rows)
    rows: Rows | Sets | None = None
    if data is not None:
        rows = Rows(data, reward, samples, prompt_key, label_key)
    elif benchmark:
        rows = Sets(tuple(benchmark), samples)
    converted = runs / f".{name or model.name + '-eval'}.model"
    if model.checkpoint:
        convert_checkpoint(model, converted)
    sources = sources_of(target, model, spec, rows, converted)
    settings = [*launch_settings(overrides, runs_dir), 'debug.mode="eval"', *model.settings]
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


def _model(
    target: str, runs: Path, served_model: str | None, api_key_env: str | None, *, has_rows: bool
) -> "EvaluatedModel":
    """Returns the model at an address, of a run, or in a folder. Raises ValueError where the options do not
    fit it.
    """
    from rlrun.cli.evaluated_model import find_model, find_served, is_server

    if is_server(target):
        model = find_served(target, served_model, api_key_env)
        if not has_rows:
            raise ValueError(
                f"{target} is a server: say what to evaluate on, with --spec, --data or --benchmark"
            )
        return model
    if served_model is not None or api_key_env is not None:
        raise ValueError("--served-model and --api-key-env describe a server: give its address as TARGET")
    return find_model(target, runs, has_rows=has_rows)


def _check_rows(
    spec: str | None, data: Path | None, benchmark: list[str] | None, *, describes_rows: bool, samples: int
) -> None:
    """Raises ValueError where the options do not say in one way what to evaluate on."""
    given = [
        name
        for name, value in (("--spec", spec), ("--data", data), ("--benchmark", benchmark))
        if value is not None
    ]
    if len(given) > 1:
        raise ValueError(f"{' and '.join(given)} name what to evaluate on: give only one of them")
    if data is None and (describes_rows or (samples != 1 and not benchmark)):
        raise ValueError(
            "--prompt-key, --label-key, --reward and --samples apply to the rows of --data: add --data, or "
            "set keys of the spec (--set)"
        )

"""`rlrun plan`: shows what a job would do and where, without starting anything."""

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlrun.cli.arguments import (
    AllowLocalPlugins,
    AsJson,
    Overrides,
    Profiles,
    Quiet,
    Specs,
    Verbose,
    finite,
    load,
)
from rlrun.runner.host.printed_text import print_text

if TYPE_CHECKING:
    from rlrun.models.architecture import Architecture
    from rlrun.models.low_precision import LowPrecision
    from rlrun.runner.planning.plan import Plan
    from rlrun.runner.planning.saving_interval import NodeFailures
    from rlrun.runner.planning.step_time import PlannedJob
    from rlrun.specs.derived.shared_prefixes import SharingChoice
    from rlrun.specs.reading.loading import LoadedSpec
    from rlrun.specs.sections.job import Spec

_JSON_KEYS = {
    "location": "place",
    "locations": "places",
    "named_engines": "others",
    "requested_tokens": "wanted_tokens",
}
"""Maps fields to their keys in `--json` where the names differ; scripts depend on these keys."""
Gpu = Annotated[
    str | None,
    typer.Option(help="GPU to plan for, as in H100-80GB. Default: this host's GPU, or else H100-80GB."),
]
PromptTokens = Annotated[
    float | None,
    typer.Option(min=1, callback=finite, help="Mean length of prompts. Default: a quarter of the longest."),
]
ResponseTokens = Annotated[
    float | None,
    typer.Option(min=1, callback=finite, help="Mean length of responses. Default: half of the longest."),
]
Sweep = Annotated[bool, typer.Option("--sweep", help="Compare all layouts on these GPUs, fastest first.")]
Simulate = Annotated[
    bool,
    typer.Option("--simulate", help="Simulate a few steps for the best layout of each split of the GPUs."),
]
Spread = Annotated[
    float,
    typer.Option(
        min=0, callback=finite, help="Standard deviation of response lengths over their mean, for --simulate."
    ),
]
Deep = Annotated[
    bool,
    typer.Option("--deep", help="Trace the memory of one trainer rank, with the trainer's own model."),
]
Rank = Annotated[
    int | None,
    typer.Option(min=0, help="Rank that --deep traces. Default: 0, which holds the most in a pipeline."),
]
Price = Annotated[
    float | None,
    typer.Option(min=0, callback=finite, help="Price per GPU-hour; also show the price of the job."),
]

NodeFailureHours = Annotated[
    float | None,
    typer.Option(
        "--node-failures",
        min=0.01,
        callback=finite,
        help="Mean hours between failures of a node; also show how often to save.",
    ),
]
RestartSeconds = Annotated[
    float,
    typer.Option("--restart", min=0, callback=finite, help="Seconds from a failure until training goes on."),
]


def command(
    specs: Specs,
    *,
    overrides: Overrides = None,
    profiles: Profiles = None,
    gpu: Gpu = None,
    prompt_tokens: PromptTokens = None,
    response_tokens: ResponseTokens = None,
    sweep: Sweep = False,
    simulate: Simulate = False,
    spread: Spread = 0.8,
    deep: Deep = False,
    rank: Rank = None,
    price: Price = None,
    node_failures: NodeFailureHours = None,
    restart: RestartSeconds = 300.0,
    allow_local_plugins: AllowLocalPlugins = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Show what a job would do, where, and what it would need, without starting anything.

    Shows the batch equation, the device of every rank and engine, memory, disk and time.
    """
    from rlrun.runner.planning.saving_interval import NodeFailures

    if deep and (sweep or simulate):
        raise ValueError("--deep traces the spec's own layout: omit --sweep and --simulate")
    if node_failures is not None and (deep or sweep or simulate):
        raise ValueError(
            "--node-failures is about the spec's own layout: omit --deep, --sweep and --simulate"
        )
    if rank is not None and not deep:
        raise ValueError("--rank only applies to a trace: add --deep")
    loaded = load(specs, overrides, profiles, planning=True, other_host=gpu is not None)
    if loaded.spec.eval.server is not None:
        _show_served(loaded, as_json=as_json, quiet=quiet)
        return
    planned = _make_plan(loaded, gpu, (prompt_tokens, response_tokens))
    failures = None if node_failures is None else NodeFailures(node_failures, restart)
    if deep:
        _trace(planned, rank or 0, as_json=as_json)
    elif sweep or simulate:
        _compare(planned, as_json, sweep=sweep, spread=spread if simulate else None, price=price)
    elif as_json:
        print(json.dumps(_as_dict(planned, failures)))
    elif not quiet:
        _show(planned, price, failures)
        if verbose:
            from rlrun.cli.validate import given_keys

            print_text(*given_keys(loaded), sep="\n")


def _show_served(loaded: "LoadedSpec", *, as_json: bool, quiet: bool) -> None:
    """Shows an evaluation of a model that a server elsewhere answers for: it has no ranks and no engines."""
    from rlrun.runner.planning.planned_model import resolve_for_plan
    from rlrun.specs.derived.sample_limits import sample_limits

    spec, server = resolve_for_plan(loaded.spec, None).spec, loaded.spec.eval.server
    assert server is not None
    samples = {dataset.name: dataset.samples_per_prompt for dataset in spec.eval.datasets}
    if as_json:
        print(json.dumps({"ranks": [], "engines": [], "model": server.model, "samples_per_prompt": samples}))
    elif not quiet:
        print_text(*loaded.choices(None), sample_limits(spec, rollout=True), sep="\n")
        print_text(*(f"{name}: {number} samples per row" for name, number in samples.items()), sep="\n")
        print_text(f"no GPUs, no engines; at most {server.concurrency} samples are requested at a time")


def plan_as_dict(loaded: "LoadedSpec", gpu: str | None = None) -> dict[str, Any]:
    """Returns what `rlrun plan --json` prints."""
    return _as_dict(_make_plan(loaded, gpu, (None, None)))


@dataclass(frozen=True, slots=True)
class _JobPlan:
    """A job's plan, and the job that memory and time are estimated for."""

    spec: "Spec"
    """The resolved spec."""
    plan: "Plan"
    job: "PlannedJob | None"
    """None if the model is not known."""
    reason: str
    """The reason why memory and time cannot be estimated; empty if they can."""
    loaded: "LoadedSpec"
    sharing: "SharingChoice | None"
    """Whether prefixes are shared, and why, if the spec leaves it open and the models are known."""


def _make_plan(loaded: "LoadedSpec", gpu: str | None, lengths: tuple[float | None, float | None]) -> _JobPlan:
    from rlrun.runner.planning.plan import make_plan
    from rlrun.runner.planning.planned_model import resolve_for_plan

    model = _model(loaded.spec)
    resolved = resolve_for_plan(loaded.spec, None if isinstance(model, ValueError) else model)
    spec, plan = resolved.spec, make_plan(resolved.spec)
    return _JobPlan(spec, plan, *_case(spec, plan, model, gpu, lengths), loaded, resolved.sharing)


def _trace(planned: _JobPlan, rank: int, *, as_json: bool) -> None:
    from rlrun.cli.plan.deep import print_deep

    if planned.job is None:
        raise ValueError(planned.reason)
    print_deep(planned.job, rank, as_json)


def _compare(
    planned: _JobPlan, as_json: bool, *, sweep: bool, spread: float | None, price: float | None
) -> None:
    """Compares layouts, and with `spread` also simulates them."""
    from rlrun.cli.plan.sweep import print_simulations, print_sweep

    job = planned.job
    if job is None or not planned.spec.cluster.gpus_per_node:
        raise ValueError(planned.reason or "only layouts on GPUs can be compared: set cluster.gpus_per_node")
    if sweep:
        print_sweep(job, as_json, price)
    if spread is not None:
        print_simulations(job, spread, as_json)


def _show(planned: _JobPlan, price: float | None, failures: "NodeFailures | None") -> None:
    from rich.text import Text

    from rlrun.cli.output import table_console
    from rlrun.cli.plan.picture import groups_table, numbers_table, placement_table, placement_title
    from rlrun.cli.plan.sizing import sizing_report
    from rlrun.runner.cluster.elastic_ranks import layouts_in_words

    spec, plan, job = planned.spec, planned.plan, planned.job
    console = table_console()
    console.print(numbers_table(spec, plan))
    console.print(Text(placement_title(spec, plan), style="italic"), soft_wrap=True)
    console.print(placement_table(spec, plan))
    if spec.engine.groups and plan.engines:
        console.print(groups_table(spec, plan))
    if spec.trainer.parallel.min_fsdp is not None:
        console.print(Text(layouts_in_words(planned.loaded.spec)), soft_wrap=True)
    for line in planned.loaded.choices(planned.sharing):
        console.print(Text(line), soft_wrap=True)
    if job is None:
        console.print(f"memory and time are not planned: {planned.reason}")
        return
    for part in sizing_report(job, price, failures):
        console.print(part, soft_wrap=isinstance(part, Text))


def _model(spec: "Spec") -> "Architecture | ValueError":
    """Returns the policy's architecture, or the reason why it is not known."""
    from rlrun.plugins.validation import needs_of
    from rlrun.runner.planning.planned_model import planned_architecture
    from rlrun.specs.derived.policy_model import policy_model

    try:
        return policy_model(planned_architecture(spec.model), spec, needs_of(spec))
    except ValueError as error:
        return error


def _case(
    spec: "Spec",
    plan: "Plan",
    model: "Architecture | ValueError",
    gpu: str | None,
    lengths: tuple[float | None, float | None],
) -> tuple["PlannedJob | None", str]:
    """Returns the job to estimate, or None and the reason if its model is not known."""
    from rlrun.plugins.validation import needs_of
    from rlrun.runner.planning.hardware import DEFAULT_GPU, find_gpu, local_cpu, local_gpu
    from rlrun.runner.planning.planned_model import (
        draft_models,
        named_engine_adapters,
        named_engine_architectures,
        planned_architecture,
    )
    from rlrun.runner.planning.step_time import PlannedJob, Workload, default_workload
    from rlrun.specs.sections.model import ModelSpec

    if gpu is not None:
        device = find_gpu(gpu)
    elif spec.cluster.gpus_per_node:
        device = local_gpu() or find_gpu(DEFAULT_GPU)
    else:
        device = local_cpu(sum(rank.threads for rank in plan.ranks if rank.location.node == 0))
    if isinstance(model, ValueError):
        return None, str(model)
    try:
        path = spec.teacher.path if spec.teacher else None
        teacher = planned_architecture(ModelSpec(path=path)) if path else None
        named_engines, adapters = named_engine_architectures(spec), named_engine_adapters(spec)
        drafts = draft_models(spec, model, named_engines)
    except (OSError, ValueError) as error:
        return None, str(error)
    defaults = default_workload(spec)
    load = Workload(lengths[0] or defaults.prompt, lengths[1] or defaults.response)
    needs = needs_of(spec)
    job = PlannedJob(spec, plan, needs, model, device, load, teacher, named_engines, adapters, drafts)
    return job, ""


def _as_dict(planned: _JobPlan, failures: "NodeFailures | None" = None) -> dict[str, Any]:
    plan, job = planned.plan, planned.job
    values = asdict(plan, dict_factory=_with_json_keys) | {
        "optimizer_steps": plan.optimizer_steps,
        "engine_type": planned.spec.engine.type,
        "engine_reasons": planned.loaded.engine_reasons(),
        "dtype_reasons": planned.loaded.dtype_reasons(),
        "shared_prefixes": [] if planned.sharing is None else [str(planned.sharing)],
    }
    if job is None:
        return values | {"sizing": None, "sizing_reason": planned.reason}
    from rlrun.runner.planning.saving_interval import plan_saving
    from rlrun.runner.planning.sizing import size_job

    sizing = size_job(job)
    estimate = asdict(sizing.estimate) | {
        "step_seconds": sizing.estimate.step_seconds,
        "device_hours": sizing.estimate.device_hours,
    }
    if (precision := planned.spec.trainer.low_precision) is not None:
        values["matrices"] = _matrices(job, precision)
    sizing_values = asdict(sizing, dict_factory=_with_json_keys) | {
        "estimate": estimate,
        "device": asdict(job.device),
        "lengths": asdict(job.load),
    }
    if failures is not None:
        saving = plan_saving(job, sizing.estimate.step_seconds, failures)
        values["saving"] = asdict(saving) | saving.chosen(job.spec.checkpoint.interval)
    return values | {"sizing": sizing_values}


def _matrices(job: "PlannedJob", precision: "LowPrecision") -> dict[str, str]:
    """Returns the precision of each kind of matrix, or the reason why it is not converted."""
    from rlrun.models.low_precision import kinds_of_matrices, layer_matrices

    parallel = job.spec.trainer.parallel
    matrices = layer_matrices(job.model, precision, tensor=parallel.tensor, expert=parallel.expert)
    return {matrix.pattern: matrix.reason or str(precision) for matrix in kinds_of_matrices(matrices)}


def _with_json_keys(fields: list[tuple[str, Any]]) -> dict[str, Any]:
    return {_JSON_KEYS.get(name, name): value for name, value in fields}

"""Shows the memory, disk and time that a job needs in a terminal."""

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from rlrun.cli.plan.picture import table
from rlrun.models.low_precision import kinds_of_matrices, layer_matrices, note_on
from rlrun.models.object_store import is_address
from rlrun.runner.planning.hardware import format_bytes
from rlrun.runner.planning.memory import Phase
from rlrun.runner.planning.saving_interval import NodeFailures, SavingPlan, plan_saving
from rlrun.runner.planning.sizing import Sizing, size_job
from rlrun.runner.planning.step_time import (
    DECODE_EFFICIENCY,
    HOST_LINK,
    LOW_PRECISION_SPEEDUP,
    NETWORK,
    PREFILL_EFFICIENCY,
    TRAIN_EFFICIENCY,
    PlannedJob,
    training_tokens,
)
from rlrun.runner.planning.storage import export_bytes
from rlrun.runner.planning.sync_time import DISK, sync_bytes, sync_time
from rlrun.specs.derived.shared_prefixes import NOT_SHARED

Row = tuple[str, str, str]
"""Quantity, value, and where the value is from."""


def sizing_report(
    job: PlannedJob, price: float | None = None, failures: NodeFailures | None = None
) -> Iterator[RenderableType]:
    """Yields tables of what a job needs, of what it costs at a price per device-hour, and of what it loses on
    nodes that fail; warnings come last.
    """
    sizing = size_job(job)
    for phase in sizing.phases:
        yield _phase_table(job, phase)
    yield _capacity_table(job, sizing, price)
    if failures is not None:
        saving = plan_saving(job, sizing.estimate.step_seconds, failures)
        yield table("failures", ("quantity", "value", "from"), list(_saving_rows(job, saving)))
    if job.spec.trainer.precision is not None:
        yield _precision_table(job)
    for line in _assumptions(job):
        yield Text(f"assumed: {line}", style="dim")
    for warning in sizing.warnings:
        yield Text(f"warning: {warning}", style="bold yellow")


def _phase_table(job: PlannedJob, phase: Phase) -> RenderableType:
    rows = [(part.name, format_bytes(part.bytes), part.how) for part in phase.parts]
    share = phase.bytes / job.device.memory
    where = "on the GPU that holds the most" if job.spec.cluster.gpus_per_node else "on one host"
    device = f"{job.device.name} ({format_bytes(job.device.memory)})"
    title = f"{phase.name}: {format_bytes(phase.bytes)} {where}, {share:.0%} of {device}"
    return table(title, ("memory", "size", "from"), rows)


def _capacity_table(job: PlannedJob, sizing: Sizing, price: float | None) -> RenderableType:
    rows = [*_memory_rows(job, sizing), *_amount_rows(job, sizing), *_time_rows(job, sizing, price)]
    return table("capacity, disk, time", ("quantity", "value", "from"), rows)


def _memory_rows(job: PlannedJob, sizing: Sizing) -> Iterator[Row]:
    """Yields the engine's room for samples, and what hosts hold."""
    if (engine := sizing.engine) is not None:
        source = f"of full length, in {engine.cache_tokens:,} tokens of cache; more if shorter"
        yield "samples decoded at a time by an engine", f"{engine.concurrent}", source
    if sizing.reference:
        size = format_bytes(sizing.reference)
        yield "reference policy, host memory per rank", size, "kept there between its passes"
    if sizing.teacher:
        size = format_bytes(sizing.teacher)
        yield "teacher, host memory per rank", size, "the policy's other weights, between passes"
    if sizing.top_tokens:
        source = f"{job.needs.compared_tokens} per token of a step's responses of full length"
        yield "teacher's top tokens, host memory of the driver", format_bytes(sizing.top_tokens), source
    if sizing.offloaded:
        yield "training state, host memory per rank", format_bytes(sizing.offloaded), "trainer.offload"
    if sizing.staged:
        size = format_bytes(sizing.staged)
        yield "copy for the checkpoint, host memory per rank", size, "checkpoint.asynchronous"
    if sizing.held:
        size = format_bytes(sizing.held)
        yield "weights that engines have, host memory of the first rank", size, "engine.weight_delta"
    if sizing.host_copy:
        place, source = "server", "kept there while the server sleeps"
        if job.spec.engine.type == "native":
            place, source = "node", "which engines merge adapters with"
        yield f"frozen model, host memory per {place}", format_bytes(sizing.host_copy), source


def _amount_rows(job: PlannedJob, sizing: Sizing) -> Iterator[Row]:
    """Yields what is written, sent and computed."""
    disk = format_bytes(sizing.disk)
    if sizing.checkpoints is None:
        yield "disk for one checkpoint and the model", disk, "checkpoint.keep keeps one per interval"
    else:
        checkpoints = "checkpoint" if sizing.checkpoints == 1 else "checkpoints"
        source = f"{sizing.checkpoints:,} {checkpoints} at once (checkpoint.keep)"
        yield "disk for checkpoints and the model", disk, source
    if is_address(job.spec.model.path):
        source = "~/.cache/rlrun; data in object stores is added to it"
        yield "disk for a copy of model.path", format_bytes(export_bytes(job.model)), source
    if job.spec.checkpoint.mirror is not None:
        size = format_bytes(job.checkpoint_bytes)
        yield "upload of a checkpoint", size, "checkpoint.mirror; samples are added to it"
    if sizing.engine is not None:
        yield "bytes of a weight update", format_bytes(sizing.sync_bytes), sync_bytes(job)[1]
    if job.spec.trainer.share_prefixes:
        shared, separate = (training_tokens(job, share=share) for share in (True, False))
        source = f"each prompt once; {separate:,.0f} without trainer.share_prefixes"
        if shared == separate:
            source = NOT_SHARED
        yield "tokens that training computes, per step", f"{shared:,.0f}", source


def _time_rows(job: PlannedJob, sizing: Sizing, price: float | None) -> Iterator[Row]:
    """Yields the time of a step and of the job, and the job's price."""
    estimate = sizing.estimate
    for name, seconds in estimate.parts.items():
        source = sync_time(job).way if name == "weight sync" else "roofline"
        yield f"{name}, per step", show_duration(seconds), source
    yield "step", show_duration(estimate.step_seconds), "without rewards and evaluation"
    if (hours := estimate.device_hours) is not None:
        unit = "GPU-hours" if job.spec.cluster.gpus_per_node else "host-hours"
        yield f"job, {unit}", show_hours(hours), f"{estimate.steps} steps"
        if price is not None:
            yield "job, price", f"{hours * price:,.2f}", f"{price:g} per {unit.removesuffix('s')}"


def _saving_rows(job: PlannedJob, saving: SavingPlan) -> Iterator[Row]:
    """Yields how often nodes fail, what a checkpoint costs, and how often to save."""
    nodes = "1 node" if saving.nodes == 1 else f"{saving.nodes:,} nodes"
    often = f"{nodes} with trainer ranks, each fails after {show_duration(saving.node_seconds)}"
    yield "time between failures", show_duration(saving.failure_seconds), f"{often} (--node-failures)"
    way = "checkpoint.asynchronous" if saving.writing_seconds else "written before training goes on"
    yield "training waits for a checkpoint", show_duration(saving.waiting_seconds), way
    if saving.writing_seconds:
        yield (
            "a checkpoint is complete after",
            show_duration(saving.writing_seconds),
            "while training goes on",
        )
    yield "training goes on after a failure", show_duration(saving.restart_seconds), "--restart"
    interval, best = job.spec.checkpoint.interval, saving.best_interval
    if interval is not None:
        yield "goodput", f"{saving.goodput(interval):.1%}", f"checkpoint.interval = {interval}"
    yield "largest goodput", f"{saving.goodput(best):.1%}", f"checkpoint.interval = {best}"


def _precision_table(job: PlannedJob) -> RenderableType:
    """Returns a table of the matrices that are multiplied in low precision, and of those that are not."""
    trainer = job.spec.trainer
    precision = trainer.low_precision
    assert precision is not None
    degrees = {"tensor": trainer.parallel.tensor, "expert": trainer.parallel.expert}
    rows = [
        (matrix.pattern, trainer.dtype if matrix.reason else str(precision), matrix.reason or "")
        for matrix in kinds_of_matrices(layer_matrices(job.model, precision, **degrees))
    ]
    rows.append(("embeddings, head, norms, routers", trainer.dtype, "always"))
    return table(note_on(precision, on_cpu=not job.on_gpu), ("matrix", "precision", "why"), rows)


def _assumptions(job: PlannedJob) -> Iterator[str]:
    yield (
        f"prompts of {job.load.prompt:,.0f} and responses of {job.load.response:,.0f} tokens on average "
        "(--prompt-tokens, --response-tokens)"
    )
    yield (
        f"{job.device.name}: {job.device.flops / 1e12:,.3g} TFLOP/s and {job.device.bandwidth / 1e9:,.0f} "
        f"GB/s, of which training reaches {TRAIN_EFFICIENCY:.0%}, prefill {PREFILL_EFFICIENCY:.0%}, "
        f"decoding {DECODE_EFFICIENCY:.0%}"
    )
    precision = job.spec.trainer.low_precision
    if job.on_gpu and precision is not None and not precision.rounds_weights_alone:
        yield f"training is {LOW_PRECISION_SPEEDUP:g} times as fast in {precision}"
    if job.spec.cluster.gpus_per_node:
        yield (
            f"{NETWORK / 1e9:.0f} GB/s between nodes for each GPU, {HOST_LINK / 1e9:.0f} GB/s between a GPU "
            f"and its host, {DISK / 1e9:.0f} GB/s of a shared disk"
        )
    yield "activations are estimated from shapes, not measured; allocators need some memory on top"


def show_duration(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds * 1000:.3g} ms"
    for name, unit in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * unit:
            return f"{seconds / unit:,.3g} {name}"
    return f"{seconds:.3g} s"


def show_hours(hours: float) -> str:
    """Returns hours with three digits, and large numbers whole."""
    return f"{hours:,.0f}" if hours >= 100 else f"{hours:.3g}"

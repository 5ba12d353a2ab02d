"""Shows the memory, disk and time that a job needs in a terminal."""

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from rlrun.cli.plan.picture import table
from rlrun.models.low_precision import kinds_of_matrices, layer_matrices, note_on
from rlrun.runner.planning.hardware import format_bytes
from rlrun.runner.planning.memory import Phase
from rlrun.runner.planning.sizing import Sizing, size_job
from rlrun.runner.planning.step_time import (
    DECODE_EFFICIENCY,
    HOST_LINK,
    LOW_PRECISION_SPEEDUP,
    NETWORK,
    PREFILL_EFFICIENCY,
    TRAIN_EFFICIENCY,
    PlannedJob,
)
from rlrun.runner.planning.sync_time import DISK, sync_bytes, sync_time


def sizing_report(job: PlannedJob, price: float | None = None) -> Iterator[RenderableType]:
    """Yields tables of what a job needs, and costs at a price per device-hour; warnings come last."""
    sizing = size_job(job)
    for phase in sizing.phases:
        yield _phase_table(job, phase)
    yield _capacity_table(job, sizing, price)
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
    rows: list[tuple[str, str, str]] = []
    if sizing.engine is not None:
        rows.append(
            (
                "samples decoded at a time by an engine",
                f"{sizing.engine.concurrent}",
                f"of full length, in {sizing.engine.cache_tokens:,} tokens of cache; more if shorter",
            )
        )
    if sizing.reference:
        rows.append(
            (
                "reference policy, host memory per rank",
                format_bytes(sizing.reference),
                "kept there between its passes",
            )
        )
    if sizing.offloaded:
        rows.append(
            ("training state, host memory per rank", format_bytes(sizing.offloaded), "trainer.offload")
        )
    if sizing.staged:
        rows.append(
            (
                "copy for the checkpoint, host memory per rank",
                format_bytes(sizing.staged),
                "checkpoint.asynchronous",
            )
        )
    rows.append(
        (
            "disk for checkpoints and the model",
            format_bytes(sizing.disk),
            "checkpoint.keep, and one being written",
        )
    )
    if sizing.engine is not None:
        rows.append(("bytes of a weight update", format_bytes(sizing.sync_bytes), sync_bytes(job)[1]))
    for name, seconds in sizing.estimate.parts.items():
        source = sync_time(job).way if name == "weight sync" else "roofline"
        rows.append((f"{name}, per step", _duration(seconds), source))
    rows.append(("step", _duration(sizing.estimate.step_seconds), "without rewards and evaluation"))
    if (hours := sizing.estimate.device_hours) is not None:
        unit = "GPU-hours" if job.spec.cluster.gpus_per_node else "host-hours"
        rows.append((f"job, {unit}", f"{hours:,.3g}", f"{sizing.estimate.steps} steps"))
        if price is not None:
            rows.append(("job, price", f"{hours * price:,.2f}", f"{price:g} per {unit.removesuffix('s')}"))
    return table("capacity, disk, time", ("quantity", "value", "from"), rows)


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
    if job.on_gpu and job.spec.trainer.precision is not None:
        yield f"training is {LOW_PRECISION_SPEEDUP:g} times as fast in {job.spec.trainer.low_precision}"
    if job.spec.cluster.gpus_per_node:
        yield (
            f"{NETWORK / 1e9:.0f} GB/s between nodes for each GPU, {HOST_LINK / 1e9:.0f} GB/s between a GPU "
            f"and its host, {DISK / 1e9:.0f} GB/s of a shared disk"
        )
    yield "activations are estimated from shapes, not measured; allocators need some memory on top"


def _duration(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds * 1000:.3g} ms"
    return f"{seconds:.3g} s" if seconds < 120 else f"{seconds / 60:.3g} min"

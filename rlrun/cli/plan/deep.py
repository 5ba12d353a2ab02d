"""`rlrun plan --deep`: compares the traced memory of one trainer rank with the plan."""

import json
from collections.abc import Iterator
from dataclasses import asdict

from rich.table import Table
from rich.text import Text

from rlrun.cli.output import show_waiting, table_console
from rlrun.cli.plan.picture import table
from rlrun.runner.planning.deep_plan import OFFLOADED_PURPOSES, RankTrace, trace_rank
from rlrun.runner.planning.hardware import format_bytes
from rlrun.runner.planning.memory import training_phase
from rlrun.runner.planning.rank_layout import coordinates
from rlrun.runner.planning.step_time import PlannedJob
from rlrun.specs.derived.on_policy_target import rounds_as_target
from rlrun.specs.derived.sampling_mask import candidates_of

HOW = {
    "parameters": "float32, as trained",
    "parameter copies": "which the rank computes with",
    "gradients": "float32",
    "optimizer": "state",
    "activations": "of forward passes",
    "logits": "and the gradient of the head",
    "gathered layers": "of FSDP, and their gradients",
    "temporaries": "of backward passes and the optimizer",
}
PLANNED = ("parameters", "gradients", "optimizer", "activations", "logits", "gathered layers")


def print_deep(job: PlannedJob, rank: int, as_json: bool) -> None:
    """Traces a rank and prints its bytes by purpose. Raises ValueError if it cannot be traced."""
    with show_waiting(f"tracing rank {rank}"):
        traced = trace_rank(job, rank)
    if as_json:
        print(json.dumps(_as_dict(job, traced)))
        return
    console = table_console()
    console.print(_table(job, traced))
    for line in _assumptions(job, traced):
        console.print(Text(f"assumed: {line}", style="dim"), soft_wrap=True)


def _table(job: PlannedJob, traced: RankTrace) -> Table:
    candidates = candidates_of(job.spec)
    planned = training_phase(
        job.model,
        job.spec.trainer,
        job.plan.max_sample_tokens,
        gpu=False,
        candidates=candidates,
        compared=job.needs.compared_tokens,
        wide_stream=rounds_as_target(job.spec),
    )
    away = OFFLOADED_PURPOSES[job.spec.trainer.offload]
    rows = [
        (
            f"{name}, host memory" if name in away else name,
            format_bytes(traced.most[name]),
            "" if name in away else format_bytes(traced.peak.get(name, 0)),
            format_bytes(planned.part_bytes(name)) if name in PLANNED else "",
            how,
        )
        for name, how in HOW.items()
        if traced.most.get(name)
    ]
    rows.append(
        (
            "total",
            "",
            format_bytes(device_peak(job, traced)),
            format_bytes(planned.bytes - sum(map(planned.part_bytes, away))),
            "at any one time",
        )
    )
    return table(_title(job, traced), ("memory", "most", "at the peak", "planned", "contents"), rows)


def device_peak(job: PlannedJob, traced: RankTrace) -> int:
    """Returns the peak of the bytes on the rank's device."""
    away = OFFLOADED_PURPOSES[job.spec.trainer.offload]
    return sum(size for name, size in traced.peak.items() if name not in away)


def _title(job: PlannedJob, traced: RankTrace) -> str:
    rank, ranks = traced.request.rank, len(job.plan.ranks)
    rank_coordinates = asdict(coordinates(rank, job.spec.trainer.parallel)).items()
    where = ", ".join(
        f"{name} {coordinate}"
        for name, coordinate in rank_coordinates
        if getattr(job.spec.trainer.parallel, name) > 1
    )
    return f"rank {rank} of {ranks}{f' ({where})' if where else ''}, traced"


def _assumptions(job: PlannedJob, traced: RankTrace) -> Iterator[str]:
    [first, *later] = traced.request.micro_batches
    tokens = sum(map(sum, first))
    yield f"{1 + len(later)} micro-batches of {tokens:,} tokens in {len(first)} samples; not the first step"
    if job.model.experts is not None:
        yield "all experts get the same number of tokens"
    if job.spec.trainer.compile:
        yield "compiled layers keep the same tensors as uncompiled ones"
    yield (
        "gaps between the blocks of torch's allocator, the memory of CUDA and NCCL, exchange buffers, a "
        "critic, a teacher and engines are not included"
    )


def _as_dict(job: PlannedJob, traced: RankTrace) -> dict[str, object]:
    return {
        "rank": traced.request.rank,
        "ranks": len(job.plan.ranks),
        "micro_batches": traced.request.micro_batches,
        "most": dict(traced.most),
        "peak": dict(traced.peak),
        "on_host": OFFLOADED_PURPOSES[job.spec.trainer.offload],
        "device_peak": device_peak(job, traced),
    }

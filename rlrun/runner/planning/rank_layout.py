"""Which place a rank has in the parallel layout, which layers its stages hold, and which models divide by it;
needs no torch.

Ranks are numbered with the pipeline outermost, then replicas, shards, context and, varying fastest, tensor:
neighbours talk most.
"""

from dataclasses import dataclass

from rlrun.models.architecture import Architecture
from rlrun.specs.sections.trainer import ParallelSpec

V_SCHEDULES = ("ZBVZeroBubble", "DualPipeV")
"""The first and the last stage lie on the same rank."""


@dataclass(frozen=True, slots=True)
class Coordinates:
    """A rank's place in the mesh [pipeline, replicate, fsdp, context, tensor]."""

    pipeline: int
    replicate: int
    fsdp: int
    context: int
    tensor: int


def coordinates(rank: int, parallel: ParallelSpec) -> Coordinates:
    """Where rank `rank` lies."""
    rest, tensor = divmod(rank, parallel.tensor)
    rest, context = divmod(rest, parallel.context)
    rest, fsdp = divmod(rest, parallel.fsdp)
    pipeline, replicate = divmod(rest, parallel.replicate)
    return Coordinates(pipeline, replicate, fsdp, context, tensor)


def data_rank(rank: int, parallel: ParallelSpec) -> int:
    """Which data-parallel slice rank `rank` trains on; ranks that differ in pipeline, context or tensor alone
    share one.
    """
    place = coordinates(rank, parallel)
    return place.replicate * parallel.fsdp + place.fsdp


def is_data_rank_leader(rank: int, parallel: ParallelSpec) -> bool:
    """Whether a rank answers for its data rank: the first of its context- and tensor-parallel groups on the
    pipeline's last stage.
    """
    place = coordinates(rank, parallel)
    last = parallel.stages - 1 in stages_of(place.pipeline, parallel)
    return place.context == place.tensor == 0 and last


def stages_of(place: int, parallel: ParallelSpec) -> tuple[int, ...]:
    """Which stages lie on the pipeline's rank number `place`, in the order of the layers."""
    if parallel.stages == parallel.pipeline:
        return (place,)
    if parallel.pipeline_schedule in V_SCHEDULES:
        return place, parallel.stages - 1 - place
    return place, place + parallel.pipeline


def stage_layers(layers: int, stages: int) -> list[range]:
    """Layers of each stage: as even as can be, with the last stage and then the first, which also have the
    head and the embedding, among the smaller ones.
    """
    sizes = [layers // stages] * stages
    for stage in [*range(1, stages - 1), 0, stages - 1][: layers % stages]:
        sizes[stage] += 1
    ends = [sum(sizes[: stage + 1]) for stage in range(stages)]
    return [range(end - size, end) for size, end in zip(sizes, ends, strict=True)]


def schedulable(micro_batches: int, parallel: ParallelSpec) -> int:
    """The number of micro-batches, at least `micro_batches`, that the schedule can run."""
    if parallel.pipeline_schedule in ("1F1B", "DualPipeV"):
        return max(micro_batches, parallel.stages)
    interleaved = parallel.pipeline_schedule.startswith("Interleaved")
    if interleaved and micro_batches > parallel.pipeline:
        return -(-micro_batches // parallel.pipeline) * parallel.pipeline
    return micro_batches


def token_multiple(parallel: ParallelSpec) -> int:
    """A micro-batch's tokens must divide by this: context parallelism cuts them into pieces of one size, and
    sequence and expert parallelism each piece once more.
    """
    pieces = 2 * parallel.context if balanced(parallel) else parallel.context
    return pieces * parallel.tensor


def balanced(parallel: ParallelSpec) -> bool:
    """Whether each context-parallel rank holds an early and a late piece."""
    return parallel.context > 1 and parallel.context_balance == "head_tail"


def check_layout(model: Architecture, parallel: ParallelSpec, section: str = "trainer") -> None:
    """ValueError where the architecture does not divide by the degrees of `[section.parallel]`."""
    sizes = {
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "vocab_size": model.vocab,
        "intermediate_size": model.intermediate,
    }
    if model.experts is not None:
        if parallel.expert == 1:
            sizes["moe_intermediate_size"] = model.experts.intermediate
        if model.experts.count % parallel.expert:
            count = model.experts.count
            raise ValueError(f"trainer.parallel.expert = {parallel.expert} does not divide {count} experts")
    for name, size in sizes.items():
        if size % parallel.tensor:
            raise ValueError(f"{section}.parallel.tensor = {parallel.tensor} does not divide {name} = {size}")
    if parallel.stages > model.layers:
        raise ValueError(
            f"trainer.parallel.pipeline = {parallel.pipeline} with {parallel.pipeline_schedule} needs "
            f"{parallel.stages} layers, the model has {model.layers}"
        )

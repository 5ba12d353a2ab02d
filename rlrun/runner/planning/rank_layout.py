"""Maps ranks to their coordinates in the parallel layout, and layers to pipeline stages; needs no torch.

Ranks are numbered with the pipeline outermost, then replicas, shards, context and, varying fastest, tensor,
so that ranks that communicate most have neighbouring numbers.
"""

from dataclasses import dataclass
from math import lcm
from typing import TypeVar

from rlrun.models.architecture import Architecture
from rlrun.models.low_precision import LowPrecision
from rlrun.specs.derived.conflicts.features import CONTEXT
from rlrun.specs.derived.conflicts.reading import reason_against_model
from rlrun.specs.derived.pipeline_stages import stage_without_choice
from rlrun.specs.sections.trainer import ParallelSpec, TrainerSpec

Tokens = TypeVar("Tokens", int, float)
"""A number of tokens; a mean is not whole."""
V_SCHEDULES = ("ZBVZeroBubble", "DualPipeV")
"""Schedules that put the first and the last stage on the same rank."""


@dataclass(frozen=True, slots=True)
class Coordinates:
    """A rank's coordinates in the mesh [pipeline, replicate, fsdp, context, tensor]."""

    pipeline: int
    replicate: int
    fsdp: int
    context: int
    tensor: int


def coordinates(rank: int, parallel: ParallelSpec) -> Coordinates:
    """Returns the coordinates of a rank."""
    quotient, tensor = divmod(rank, parallel.tensor)
    quotient, context = divmod(quotient, parallel.context)
    quotient, fsdp = divmod(quotient, parallel.fsdp)
    pipeline, replicate = divmod(quotient, parallel.replicate)
    return Coordinates(pipeline, replicate, fsdp, context, tensor)


def data_rank(rank: int, parallel: ParallelSpec) -> int:
    """Returns the data rank of a rank; ranks that differ only in pipeline, context or tensor share one."""
    position = coordinates(rank, parallel)
    return position.replicate * parallel.fsdp + position.fsdp


def is_data_rank_leader(rank: int, parallel: ParallelSpec) -> bool:
    """Returns whether a rank reports the results of its data rank.

    It is the first of its context- and tensor-parallel groups on the pipeline's last stage.
    """
    position = coordinates(rank, parallel)
    has_last_stage = parallel.stages - 1 in stages_of_rank(position.pipeline, parallel)
    return position.context == position.tensor == 0 and has_last_stage


def stages_of_rank(pipeline_rank: int, parallel: ParallelSpec) -> tuple[int, ...]:
    """Returns the stages that a pipeline rank has, in the order of the layers."""
    if parallel.stages == parallel.pipeline:
        return (pipeline_rank,)
    if parallel.pipeline_schedule in V_SCHEDULES:
        return pipeline_rank, parallel.stages - 1 - pipeline_rank
    return pipeline_rank, pipeline_rank + parallel.pipeline


def schedulable_micro_batches(micro_batches: int, parallel: ParallelSpec) -> int:
    """Returns the smallest number of micro-batches, at least `micro_batches`, that the schedule can run."""
    if parallel.pipeline_schedule in ("1F1B", "DualPipeV"):
        return max(micro_batches, parallel.stages)
    interleaved = parallel.pipeline_schedule.startswith("Interleaved")
    if interleaved and micro_batches > parallel.pipeline:
        return -(-micro_batches // parallel.pipeline) * parallel.pipeline
    return micro_batches


def token_multiple(parallel: ParallelSpec, precision: LowPrecision | None = None) -> int:
    """Returns the number that must divide a micro-batch's tokens.

    Context parallelism cuts them into equal pieces, and sequence and expert parallelism cut each piece again.
    Products in low precision need a multiple of tokens on every rank.
    """
    pieces = 2 * parallel.context if uses_balanced_context(parallel) else parallel.context
    on_rank = parallel.context * parallel.tensor * (precision.token_multiple if precision else 1)
    return lcm(pieces * parallel.tensor, on_rank)


def full_micro_batch(trainer: TrainerSpec, longest: Tokens) -> Tokens:
    """Returns the number of tokens that a micro-batch is filled up to, over all context-parallel ranks.

    If `micro_batch_size` counts samples, each of them has `longest` tokens.
    """
    if trainer.micro_batch_size is not None:
        return trainer.micro_batch_size * longest
    return trainer.max_tokens_per_rank * trainer.parallel.context


def largest_micro_batch(trainer: TrainerSpec, longest: int) -> int:
    """Returns the greatest number of tokens of a micro-batch, over all context-parallel ranks.

    That is a full one, or a single sample of `longest` tokens if it is longer.
    """
    return max(full_micro_batch(trainer, longest), longest)


def largest_forward_batch(trainer: TrainerSpec, longest: int) -> int:
    """Returns the greatest number of tokens of a micro-batch of a pass without gradients, as
    `largest_micro_batch`.
    """
    if trainer.max_logprob_tokens_per_rank is None:
        return largest_micro_batch(trainer, longest)
    return max(trainer.max_logprob_tokens_per_rank * trainer.parallel.context, longest)


def largest_pass(trainer: TrainerSpec, longest: int) -> int:
    """Returns the greatest number of tokens of a micro-batch of any pass."""
    return max(largest_micro_batch(trainer, longest), largest_forward_batch(trainer, longest))


def most_routed_tokens(trainer: TrainerSpec, longest: int) -> int:
    """Returns the greatest number of tokens of a micro-batch that one rank sends to experts.

    Context-parallel ranks each have a piece of the tokens, and so have tensor-parallel ranks when they choose
    experts.
    """
    multiple = token_multiple(trainer.parallel, trainer.low_precision)
    padded = -(-largest_pass(trainer, longest) // multiple) * multiple
    return padded // (trainer.parallel.context * trainer.parallel.tensor)


def uses_balanced_context(parallel: ParallelSpec) -> bool:
    """Returns whether each context-parallel rank holds an early and a late piece of the tokens.

    With causal attention late tokens cost more, so that the pairing balances the work.
    """
    return parallel.context > 1 and parallel.context_balance == "head_tail"


def divides_delta_heads(model: Architecture, tensor: int, context: int) -> bool:
    """Returns whether the ranks can have equal shares of Gated DeltaNet's heads, if the model has it.

    Tensor-parallel ranks split them, and context-parallel ranks split each share again around the recurrence.
    """
    return model.delta is None or model.delta.key_heads % (tensor * context) == 0


def check_layout(model: Architecture, parallel: ParallelSpec, section: str = "trainer") -> None:
    """Raises ValueError if the architecture does not divide by the degrees of `[section.parallel]`."""
    sizes = {
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "vocab_size": model.vocab,
        "intermediate_size": model.intermediate,
    }
    if model.delta is not None:
        sizes["linear_num_key_heads"] = model.delta.key_heads
    if parallel.context > 1 and (reason := reason_against_model(CONTEXT, model)):
        raise ValueError(
            f"{section}.parallel.context = {parallel.context} is not supported for {model.family}: {reason}; "
            "use 1"
        )
    if model.experts is not None:
        if parallel.expert == 1:
            sizes["moe_intermediate_size"] = model.experts.intermediate
        if model.experts.count % parallel.expert:
            count = model.experts.count
            raise ValueError(f"{section}.parallel.expert = {parallel.expert} does not divide {count} experts")
    for name, size in sizes.items():
        if size % parallel.tensor:
            raise ValueError(f"{section}.parallel.tensor = {parallel.tensor} does not divide {name} = {size}")
    if not divides_delta_heads(model, parallel.tensor, parallel.context):
        raise ValueError(
            f"{section}.parallel: tensor = {parallel.tensor} × context = {parallel.context} does not divide "
            f"linear_num_key_heads = {sizes['linear_num_key_heads']}"
        )
    if parallel.stages > model.layers:
        raise ValueError(
            f"{section}.parallel.pipeline = {parallel.pipeline} with {parallel.pipeline_schedule} needs at "
            f"least {parallel.stages} layers, and the model has {model.layers}"
        )
    layers = sum(parallel.pipeline_layers or [model.layers])
    if layers != model.layers:
        raise ValueError(
            f"{section}.parallel.pipeline_layers has {layers} layers, and the model has {model.layers}"
        )
    if (refusal := stage_without_choice(model, parallel)) is not None:
        raise ValueError(f"{section}.parallel: {': '.join(refusal)}")

"""Counts a model's parameters, and how many of them each trainer rank holds, from its config.json.

The count goes tensor by tensor and does not need torch.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cache
from math import prod

from rlrun.models.adapters import (
    LoraShape,
    adapter_tensors,
    adapters,
    check_base,
    check_ranks,
    quantised_matrices,
)
from rlrun.models.architecture import Architecture
from rlrun.models.low_precision import check_low_precision
from rlrun.models.tensor_names import HfTensor, hf_tensors
from rlrun.runner.planning.rank_layout import stage_layers, stages_of_rank
from rlrun.specs.sections.trainer import ONE_STAGE_SCHEDULES, ParallelSpec, PipelineSchedule, TrainerSpec

_WHOLE = (".router.", ".wq_a.", ".wkv_a.")
"""Matrices that tensor parallelism does not split: routers, and the projections to latent vectors."""
_SPLIT_BY_INPUTS = (".wo.", ".w2.", "_down")
"""Matrices that tensor parallelism splits by inputs, and with them the first factor of their adapters."""
_SHARE_KEYS = frozenset(
    ("fsdp", "context", "tensor", "pipeline", "pipeline_schedule", "pipeline_layers", "expert")
)
"""The keys of `[trainer.parallel]` that a rank's share depends on."""
WORTHWHILE = 0.01
"""The share of the busiest stage's work that an uneven division of the layers has to save."""
_EMBEDDINGS = ("tok_embeddings.weight", "model.embed_tokens.weight")


@dataclass(frozen=True, slots=True)
class RankShare:
    """The part of a model that one rank holds."""

    parameters: int
    """Number of parameters."""
    trained: int
    """Number of parameters that have a gradient."""
    hidden: int
    """Number of trained parameters in the layers' matrices, without experts: those that Muon updates."""
    layers: int
    """Number of layers that the rank computes."""
    block: int
    """Number of parameters in the largest block that FSDP gathers at once: a layer, the embedding or the
    head.
    """
    gathered: int
    """Number of parameters that the rank computes with, which FSDP gathers from the shards."""
    first: bool
    """Whether it has the embedding."""
    last: bool
    """Whether it has the head."""
    quantised: int = 0
    """Number of parameters that `trainer.lora.base` holds in 4 or 8 bits."""


@dataclass(frozen=True, slots=True)
class _Stack:
    """One tensor, or the `count` equal tensors of a layer's experts."""

    tensor: HfTensor
    count: int

    @property
    def size(self) -> int:
        return prod(self.tensor.shape) * self.count


@cache
def parameter_count(model: Architecture) -> int:
    """Returns the number of parameters of the whole model."""
    return sum(stack.size for stack in _stacks(model))


@cache
def active_parameters(model: Architecture) -> int:
    """Returns the number of parameters that each token is multiplied by.

    Only those experts count that a token is routed to. The embedding is a lookup, so it does not count.
    """
    return sum(_active_size(stack, model) for stack in _multiplied(model))


def token_operations(model: Architecture, trainer: TrainerSpec) -> int:
    """Returns the operations of matrix products per token in a forward and backward pass of the policy.

    Each parameter takes two operations in the forward pass, two for the gradient of its input, and another
    two for its own gradient unless it is frozen.
    """
    if trainer.lora is not None:
        tensors = adapter_tensors(adapters(model, trainer.lora.shape))
        factors = sum(_active_size(_Stack(tensor, 1), model) for tensor in tensors)
        return 4 * active_parameters(model) + 6 * factors
    trained = [stack for stack in _multiplied(model) if not _is_frozen(stack.tensor, trainer.freeze)]
    return 4 * active_parameters(model) + 2 * sum(_active_size(stack, model) for stack in trained)


def adapter_parameters(model: Architecture, lora: LoraShape) -> int:
    """Returns the number of parameters of the model's adapters."""
    return sum(prod(tensor.shape) for tensor in adapter_tensors(adapters(model, lora)))


def _multiplied(model: Architecture) -> list[_Stack]:
    """Returns the tensors that tokens are multiplied by."""
    stacks = _stacks(model)
    return [stack for stack in stacks if model.tied or stack.tensor.parameter not in _EMBEDDINGS]


def _is_frozen(tensor: HfTensor, patterns: Sequence[str]) -> bool:
    """Returns whether a pattern of `trainer.freeze` matches the tensor."""
    return any(fnmatchcase(tensor.name, pattern) for pattern in patterns)


def _active_size(stack: _Stack, model: Architecture) -> int:
    """Returns the number of a tensor's parameters that each token is multiplied by."""
    if stack.tensor.is_routed_expert and model.experts:
        return stack.size * model.experts.per_token // model.experts.count
    return stack.size


@cache
def pipeline_imbalance(model: Architecture, parallel: ParallelSpec) -> float:
    """Returns the work of the busiest pipeline rank, relative to an equal share of the model's work.

    The head is work of the last stage. The embedding is only a lookup, unless it is the head too.
    """
    work = [
        sum(
            _active_size(stack, model)
            for stack in _stacks(model)
            if _belongs(stack.tensor, layers, model.tied and last, last)
        )
        for layers, _, last in _pipeline_ranks(model, parallel)
    ]
    return max(work) * parallel.pipeline / active_parameters(model)


@cache
def balanced_layers(model: Architecture, pipeline: int, schedule: PipelineSchedule) -> tuple[int, ...] | None:
    """Returns the numbers of layers of the stages that relieve the last one of its head's work.

    None if equal numbers are as good, and for schedules whose ranks have two stages.
    """
    if pipeline == 1 or schedule not in ONE_STAGE_SCHEDULES:
        return None
    layout = ParallelSpec(pipeline=pipeline, pipeline_schedule=schedule)
    best, least = None, pipeline_imbalance(model, layout) * (1 - WORTHWHILE)
    for last in range(model.layers // pipeline - 1, 0, -1):
        smaller, larger = divmod(model.layers - last, pipeline - 1)
        sizes = (*(smaller + (stage < larger) for stage in range(pipeline - 1)), last)
        work = pipeline_imbalance(model, layout.model_copy(update={"pipeline_layers": sizes}))
        if work >= least:
            break
        best, least = sizes, work
    return best


@cache
def _stacks(model: Architecture) -> tuple[_Stack, ...]:
    stacks: dict[tuple[str, tuple[int, ...], str], list[HfTensor]] = {}
    for tensor in hf_tensors(model):
        kind = tensor.name.rsplit(".", 2)[-2] if tensor.expert is not None else tensor.name
        stacks.setdefault((tensor.parameter, tensor.shape, kind), []).append(tensor)
    return tuple(_Stack(tensors[0], len(tensors)) for tensors in stacks.values())


def policy_share(model: Architecture, trainer: TrainerSpec) -> RankShare:
    """Returns the share of the policy's rank that holds most."""
    lora = trainer.lora.shape if trainer.lora else None
    if lora is not None:
        check_ranks(model, trainer.parallel.world_size)
        if lora.base is not None:
            check_base(model, lora.base, trainer.parallel.tensor)
    if (precision := trainer.low_precision) is not None:
        parallel = trainer.parallel
        check_low_precision(model, precision, tensor=parallel.tensor, expert=parallel.expert)
    return largest_share(model, trainer.parallel, trainer.freeze, lora)


def largest_share(
    model: Architecture, parallel: ParallelSpec, frozen: Sequence[str] = (), lora: LoraShape | None = None
) -> RankShare:
    """Returns the share of the rank that holds most.

    `frozen` has patterns of HF names (`trainer.freeze`). With `lora` only adapters are trained. Raises
    ValueError if the model has no such adapters.
    """
    layout = ParallelSpec(**parallel.model_dump(include=set(_SHARE_KEYS)))
    return _largest_share(model, layout, tuple(frozen), lora)


@cache
def _largest_share(
    model: Architecture, parallel: ParallelSpec, frozen: tuple[str, ...], lora: LoraShape | None
) -> RankShare:
    """Computes `largest_share` once for all layouts that differ in other keys: a sweep has thousands."""
    return max(rank_shares(model, parallel, frozen, lora), key=lambda share: share.parameters)


def rank_shares(
    model: Architecture, parallel: ParallelSpec, frozen: Sequence[str] = (), lora: LoraShape | None = None
) -> Iterator[RankShare]:
    """Yields the share of each pipeline rank; ranks that differ only in other dimensions hold as much."""
    factors = [] if lora is None else [_Stack(tensor, 1) for tensor in adapter_tensors(adapters(model, lora))]
    for layers, first, last in _pipeline_ranks(model, parallel):
        embedding = first or (model.tied and last)  # a tied head away from the embedding has a copy of it
        stacks = [stack for stack in _stacks(model) if _belongs(stack.tensor, layers, embedding, last)]
        share = _share(stacks, parallel, frozen, len(layers), first=first, last=last)
        own_factors = [stack for stack in factors if _belongs(stack.tensor, layers, embedding, last)]
        if lora is not None and lora.base is not None:
            names = {matrix.name for matrix in quantised_matrices(model)}
            own = [stack for stack in stacks if stack.tensor.name in names]
            share = replace(share, quantised=sum(_sharded_size(stack, parallel) for stack in own))
        yield share if lora is None else _with_adapters(share, own_factors, parallel)


def _with_adapters(share: RankShare, factors: Sequence[_Stack], parallel: ParallelSpec) -> RankShare:
    """Returns the share of a rank with these adapters, which alone are trained."""
    size = sum(_sharded_size(factor, parallel) for factor in factors)
    return replace(
        share, parameters=share.parameters + size, trained=size, hidden=0, block=share.block + size
    )


def _pipeline_ranks(model: Architecture, parallel: ParallelSpec) -> Iterator[tuple[set[int], bool, bool]]:
    """Yields the layers of each pipeline rank, whether it has the first stage, and whether the last."""
    layers_of_stage = stage_layers(model.layers, parallel)
    for pipeline_rank in range(parallel.pipeline):
        stages = stages_of_rank(pipeline_rank, parallel)
        layers = {layer for stage in stages for layer in layers_of_stage[stage]}
        yield layers, 0 in stages, parallel.stages - 1 in stages


def _share(
    stacks: Sequence[_Stack],
    parallel: ParallelSpec,
    frozen: Sequence[str],
    layers: int,
    *,
    first: bool,
    last: bool,
) -> RankShare:
    sizes = [_sharded_size(stack, parallel) for stack in stacks]
    trained = [not _is_frozen(stack.tensor, frozen) for stack in stacks]
    blocks: dict[str, int] = {}
    for stack in stacks:
        name = ".".join(_decoder_name(stack.tensor).split(".")[:2])
        blocks[name] = blocks.get(name, 0) + _gathered_size(stack, parallel)
    return RankShare(
        parameters=sum(sizes),
        trained=sum(size for size, is_trained in zip(sizes, trained, strict=True) if is_trained),
        hidden=sum(
            size
            for size, is_trained, stack in zip(sizes, trained, stacks, strict=True)
            if is_trained and _is_hidden(stack.tensor)
        ),
        layers=layers,
        block=max(blocks.values()),
        gathered=sum(blocks.values()),
        first=first,
        last=last,
    )


def _belongs(tensor: HfTensor, layers: set[int], embedding: bool, last: bool) -> bool:
    """Returns whether a tensor is on a rank with the given layers, and with or without embedding and head."""
    kind, _, inner_name = _decoder_name(tensor).partition(".")
    if kind == "layers":
        return int(inner_name.partition(".")[0]) in layers
    return embedding if kind == "tok_embeddings" else last


def _sharded_size(stack: _Stack, parallel: ParallelSpec) -> int:
    """Returns the numbers that one rank keeps between passes.

    FSDP shards over the context ranks too, and experts also over the tensor ranks.
    """
    shards = parallel.fsdp * parallel.context
    if stack.tensor.is_routed_expert:
        tensor = parallel.tensor if parallel.expert > 1 or _is_split(stack.tensor) else 1
        return -(-stack.size // (shards * tensor))
    return -(-_gathered_size(stack, parallel) // shards)


def _gathered_size(stack: _Stack, parallel: ParallelSpec) -> int:
    """Returns the numbers that one rank computes with: its tensor-parallel slice, or its experts."""
    tensor = stack.tensor
    if tensor.is_routed_expert:
        return -(-stack.size // parallel.expert)
    return -(-stack.size // (parallel.tensor if _is_split(tensor) else 1))


def _is_split(tensor: HfTensor) -> bool:
    """Returns whether tensor-parallel ranks split a tensor."""
    is_split = len(tensor.shape) > 1 and not any(name in tensor.parameter for name in _WHOLE)
    if ".lora_" in tensor.name:
        is_split &= _is_first(tensor) == any(name in tensor.parameter for name in _SPLIT_BY_INPUTS)
    return is_split


def _is_first(factor: HfTensor) -> bool:
    """Returns whether a factor of an adapter is the first, which maps the matrix's inputs."""
    return ".lora_A." in factor.name


def _is_hidden(tensor: HfTensor) -> bool:
    return (
        not tensor.is_routed_expert and len(tensor.shape) == 2 and _decoder_name(tensor).startswith("layers.")
    )


def _decoder_name(tensor: HfTensor) -> str:
    """Returns a tensor's name in the decoder; transformers' modules have a prefix more."""
    return tensor.parameter.removeprefix("model.")

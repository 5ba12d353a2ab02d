"""Counts how many of a model's parameters each trainer rank holds, and how many it gathers.

The count goes tensor by tensor and does not need torch.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from math import ceil

from rlrun.models.adapters import (
    BASE_BYTES,
    LoraShape,
    adapter_tensors,
    adapters,
    check_base,
    quantised_matrices,
)
from rlrun.models.architecture import Architecture
from rlrun.models.hf_tensor import HfTensor
from rlrun.models.low_precision import check_low_precision
from rlrun.models.tensor_names import INDEXER, TOWER
from rlrun.runner.planning.model_size import Stack, active_parameters, active_size, is_frozen, stacks_of
from rlrun.runner.planning.rank_layout import stages_of_rank
from rlrun.specs.derived.pipeline_stages import stage_layers
from rlrun.specs.derived.policy_model import frozen_patterns
from rlrun.specs.sections.trainer import ONE_STAGE_SCHEDULES, ParallelSpec, PipelineSchedule, TrainerSpec

_WHOLE = (".router.", ".wq_a.", ".wkv_a.", INDEXER)
"""Matrices that tensor parallelism does not split: routers, the projections to latent vectors, indexers."""
_SPLIT_BY_INPUTS = (".wo.", ".w2.", "_down")
"""Matrices that tensor parallelism splits by inputs, and with them the first factor of their adapters."""
WORTHWHILE = 0.01
"""The share of the busiest stage's work that an uneven division of the layers has to save."""
_SHARE_KEYS = frozenset(
    ("fsdp", "context", "tensor", "pipeline", "pipeline_schedule", "pipeline_layers", "expert")
)
"""The keys of `[trainer.parallel]` that a rank's share depends on."""


@dataclass(frozen=True, slots=True)
class RankShare:
    """The part of a model that one rank holds."""

    parameters: int
    """Number of parameters."""
    trained: int
    """Number of parameters that have a gradient."""
    hidden: int
    """Number of trained parameters in the layers' matrices, those of experts included: what Muon updates."""
    layers: int
    """Number of layers that the rank computes."""
    block: "Gathered"
    """The parameters of the largest block that FSDP gathers at once: a layer, the embedding or the head."""
    gathered: "Gathered"
    """The parameters that the rank computes with, which FSDP gathers from the shards."""
    first: bool
    """Whether it has the embedding."""
    last: bool
    """Whether it has the head."""
    quantised: int = 0
    """Number of parameters that `trainer.lora.base` holds in 4 or 8 bits."""


@dataclass(frozen=True, slots=True)
class Gathered:
    """Numbers of parameters that FSDP gathers, by what it gathers them as."""

    plain: int = 0
    """In the precision of `trainer.dtype`, adapters included."""
    codes: int = 0
    """As the bytes of `trainer.lora.base`."""
    trained: int = 0
    """Those of `plain` that have a gradient."""

    def bytes(self, item: int, base: str | None) -> float:
        """Returns the bytes of these parameters, of which plain ones take `item` bytes each."""
        return self.plain * item + (self.codes * BASE_BYTES[base] if base else 0)

    def __add__(self, other: "Gathered") -> "Gathered":
        return Gathered(self.plain + other.plain, self.codes + other.codes, self.trained + other.trained)


def policy_share(model: Architecture, trainer: TrainerSpec) -> RankShare:
    """Returns the share of the policy's rank that holds most."""
    lora = trainer.lora_shape
    if lora is not None and lora.base is not None:
        check_base(model, lora.base, trainer.parallel.tensor)
    if (precision := trainer.low_precision) is not None:
        parallel = trainer.parallel
        check_low_precision(model, precision, tensor=parallel.tensor, expert=parallel.expert)
    return largest_share(model, trainer.parallel, frozen_patterns(trainer, model), lora)


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
    factors = [] if lora is None else [Stack(tensor, 1) for tensor in adapter_tensors(adapters(model, lora))]
    kinds = _Kinds(
        None if lora is None else frozenset(factor.tensor.name for factor in factors),
        frozenset(matrix.name for matrix in quantised_matrices(model)) if lora and lora.base else frozenset(),
        tuple(frozen),
    )
    experts = _expert_share(model.experts.count, parallel) if model.experts else Fraction(0)
    for layers, first, last in _pipeline_ranks(model, parallel):
        embedding = first or (model.tied and last)  # a tied head away from the embedding has a copy of it
        everything = [*stacks_of(model), *factors]
        stacks = [stack for stack in everything if _belongs(stack.tensor, layers, embedding, last)]
        sizes = [_sharded_size(stack, parallel, experts) for stack in stacks]
        yield _share(stacks, sizes, parallel, kinds, len(layers), first=first, last=last)


@dataclass(frozen=True, slots=True)
class _Kinds:
    """Which tensors are trained, and which are held as bytes, by name."""

    factors: frozenset[str] | None
    """The adapters' factors, which alone are trained; None without adapters."""
    codes: frozenset[str]
    frozen: tuple[str, ...]
    """Patterns of `trainer.freeze`."""

    def is_trained(self, tensor: HfTensor) -> bool:
        """Returns whether a tensor has a gradient."""
        return tensor.name in self.factors if self.factors is not None else not is_frozen(tensor, self.frozen)


def _pipeline_ranks(model: Architecture, parallel: ParallelSpec) -> Iterator[tuple[set[int], bool, bool]]:
    """Yields the layers of each pipeline rank, whether it has the first stage, and whether the last."""
    layers_of_stage = stage_layers(model.built_layers, parallel)
    for pipeline_rank in range(parallel.pipeline):
        stages = stages_of_rank(pipeline_rank, parallel)
        layers = {layer for stage in stages for layer in layers_of_stage[stage]}
        yield layers, 0 in stages, parallel.stages - 1 in stages


def _share(
    stacks: Sequence[Stack],
    sizes: Sequence[int],
    parallel: ParallelSpec,
    kinds: _Kinds,
    layers: int,
    *,
    first: bool,
    last: bool,
) -> RankShare:
    """Returns the share of a rank that has `layers` layers and keeps `sizes` of the stacks' numbers."""
    trained = [kinds.is_trained(stack.tensor) for stack in stacks]
    blocks = _blocks(stacks, parallel, kinds)
    return RankShare(
        parameters=sum(sizes),
        trained=sum(size for size, is_trained in zip(sizes, trained, strict=True) if is_trained),
        hidden=0
        if kinds.factors is not None
        else sum(
            size
            for size, is_trained, stack in zip(sizes, trained, stacks, strict=True)
            if is_trained and _is_hidden(stack.tensor)
        ),
        layers=layers,
        # codes take a fourth to a half of the memory of others
        block=max(blocks, key=lambda block: block.plain + block.codes / 3),
        gathered=sum(blocks, Gathered()),
        first=first,
        last=last,
        quantised=sum(
            size for size, stack in zip(sizes, stacks, strict=True) if stack.tensor.name in kinds.codes
        ),
    )


def _blocks(stacks: Sequence[Stack], parallel: ParallelSpec, kinds: _Kinds) -> list[Gathered]:
    """Returns the parameters of each block that FSDP gathers at once."""
    blocks: dict[str, Gathered] = {}
    for stack in stacks:
        levels = 3 if stack.tensor.parameter.startswith(TOWER) else 2
        name = ".".join(_decoder_name(stack.tensor).split(".")[:levels])
        size, is_code = _gathered_size(stack, parallel), stack.tensor.name in kinds.codes
        trained = size if kinds.is_trained(stack.tensor) else 0
        part = Gathered(codes=size) if is_code else Gathered(plain=size, trained=trained)
        blocks[name] = blocks.get(name, Gathered()) + part
    return list(blocks.values())


def _belongs(tensor: HfTensor, layers: set[int], embedding: bool, last: bool) -> bool:
    """Returns whether a tensor is on a rank with the given layers, and with or without embedding and head."""
    kind, _, inner_name = _decoder_name(tensor).partition(".")
    if kind == "layers":
        return int(inner_name.partition(".")[0]) in layers
    return embedding if kind in ("tok_embeddings", "visual") else last


def _expert_share(experts: int, parallel: ParallelSpec) -> Fraction:
    """Returns the part of the routed experts that the rank keeps which has most of them.

    FSDP shards experts over the context ranks too, and with expert parallelism over the tensor ranks. As in
    torchtitan, a rank has whole experts, so that 5 experts on 2 ranks are 3 and 2, unless there are more
    ranks than experts: then each rank has a part of each expert.
    """
    ranks = parallel.fsdp * parallel.context * (parallel.tensor if parallel.expert > 1 else 1)
    if ranks > experts:
        return Fraction(1, ranks)
    own, shards = experts // parallel.expert, ranks // parallel.expert
    return Fraction(-(-own // shards), experts)


def _sharded_size(stack: Stack, parallel: ParallelSpec, experts: Fraction) -> int:
    """Returns the numbers that one rank keeps between passes; `experts` is its part of the routed experts.

    FSDP shards over the context ranks too.
    """
    if stack.tensor.is_routed_expert:
        tensor = parallel.tensor if parallel.expert == 1 and _is_split(stack.tensor) else 1
        return ceil(stack.size * experts / tensor)
    return -(-_gathered_size(stack, parallel) // (parallel.fsdp * parallel.context))


def _gathered_size(stack: Stack, parallel: ParallelSpec) -> int:
    """Returns the numbers that one rank computes with: its tensor-parallel slice, or its experts."""
    tensor = stack.tensor
    if tensor.is_routed_expert:
        return -(-stack.size // parallel.expert)
    return -(-stack.size // (parallel.tensor if _is_split(tensor) else 1))


def _is_split(tensor: HfTensor) -> bool:
    """Returns whether tensor-parallel ranks split a tensor."""
    is_split = len(tensor.shape) > 1 and not any(name in tensor.parameter for name in (*_WHOLE, TOWER))
    if ".lora_" in tensor.name:
        is_split &= _is_first(tensor) == any(name in tensor.parameter for name in _SPLIT_BY_INPUTS)
    return is_split


def _is_first(factor: HfTensor) -> bool:
    """Returns whether a factor of an adapter is the first, which maps the matrix's inputs."""
    return ".lora_A." in factor.name


def _is_hidden(tensor: HfTensor) -> bool:
    """Returns whether a tensor is one of the layers' matrices, or a stack of experts' matrices."""
    is_matrix = len(tensor.shape) == 2 or (tensor.is_routed_expert and len(tensor.shape) == 3)
    is_bias = "bias" in tensor.parameter.rpartition(".")[2]
    return is_matrix and not is_bias and _decoder_name(tensor).startswith("layers.")


def _decoder_name(tensor: HfTensor) -> str:
    """Returns a tensor's name in the decoder; transformers' modules have a prefix more."""
    return tensor.parameter.removeprefix("model.")


@cache
def pipeline_imbalance(model: Architecture, parallel: ParallelSpec) -> float:
    """Returns the work of the busiest pipeline rank, relative to an equal share of the model's work.

    The head is work of the last stage. The embedding is only a lookup, unless it is the head too.
    """
    work = [
        sum(
            active_size(stack, model)
            for stack in stacks_of(model)
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

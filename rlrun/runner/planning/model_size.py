"""How much of a model each trainer rank holds, tensor by tensor from its config.json; needs no torch."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from math import prod

from rlrun.models.architecture import Architecture
from rlrun.models.tensor_names import HfTensor, hf_tensors
from rlrun.runner.planning.rank_layout import stage_layers, stages_of
from rlrun.specs.sections.trainer import ParallelSpec

_WHOLE = (".router.", ".wq_a.", ".wkv_a.")
"""Matrices that tensor parallelism leaves whole: routers, and the way into latent vectors."""
_EMBEDDINGS = ("tok_embeddings.weight", "model.embed_tokens.weight")


@dataclass(frozen=True, slots=True)
class Share:
    """Numbers that one rank holds."""

    parameters: int
    """All of them."""
    trained: int
    """Those that have a gradient."""
    hidden: int
    """Trained ones in the matrices of layers (Muon's), experts left out."""
    layers: int
    """Layers that the rank computes."""
    block: int
    """The largest piece that is gathered whole for its computation: a layer, or embedding or head."""
    first: bool
    """It has the embedding."""
    last: bool
    """It has the head."""


@dataclass(frozen=True, slots=True)
class _Stack:
    """A parameter: one tensor, or a layer's experts, of which there are `count`."""

    tensor: HfTensor
    count: int

    @property
    def size(self) -> int:
        return prod(self.tensor.shape) * self.count


@cache
def parameter_count(model: Architecture) -> int:
    """Parameters of the whole model."""
    return sum(stack.size for stack in _stacks(model))


@cache
def active_parameters(model: Architecture) -> int:
    """Parameters that a token is multiplied by: of the experts those it is routed to; no embedding."""
    counted = 0
    for stack in _stacks(model):
        size = stack.size
        if stack.tensor.is_routed_expert and model.experts:
            size = size * model.experts.per_token // model.experts.count
        counted += 0 if stack.tensor.parameter in _EMBEDDINGS and not model.tied else size
    return counted


@cache
def _stacks(model: Architecture) -> tuple[_Stack, ...]:
    counts: dict[tuple[str, tuple[int, ...], str], list[HfTensor]] = {}
    for tensor in hf_tensors(model):
        kind = tensor.name.rsplit(".", 2)[-2] if tensor.expert is not None else tensor.name
        counts.setdefault((tensor.parameter, tensor.shape, kind), []).append(tensor)
    return tuple(_Stack(tensors[0], len(tensors)) for tensors in counts.values())


def largest_share(model: Architecture, parallel: ParallelSpec, frozen: Sequence[str] = ()) -> Share:
    """The share of the rank that holds most. `frozen`: patterns of HF names (`trainer.freeze`)."""
    return max(shares(model, parallel, frozen), key=lambda share: share.parameters)


def shares(model: Architecture, parallel: ParallelSpec, frozen: Sequence[str] = ()) -> Iterator[Share]:
    """The share of a rank at each place of the pipeline; ranks that differ elsewhere hold as much."""
    stages = stage_layers(model.layers, parallel.stages)
    tensors = _stacks(model)
    for place in range(parallel.pipeline):
        held = stages_of(place, parallel)
        first, last = 0 in held, parallel.stages - 1 in held
        layers = {layer for stage in held for layer in stages[stage]}
        mine = [
            each for each in tensors if _belongs(each.tensor, layers, first or (model.tied and last), last)
        ]
        yield _share(mine, parallel, frozen, len(layers), first=first, last=last)


def _share(
    stacks: Sequence[_Stack],
    parallel: ParallelSpec,
    frozen: Sequence[str],
    layers: int,
    *,
    first: bool,
    last: bool,
) -> Share:
    sizes = [_part(stack, parallel) for stack in stacks]
    trained = [not any(fnmatchcase(each.tensor.name, pattern) for pattern in frozen) for each in stacks]
    blocks: dict[str, int] = {}
    for stack in stacks:
        name = ".".join(_own_name(stack.tensor).split(".")[:2])
        blocks[name] = blocks.get(name, 0) + _gathered(stack, parallel)
    return Share(
        parameters=sum(sizes),
        trained=sum(size for size, counts in zip(sizes, trained, strict=True) if counts),
        hidden=sum(
            size
            for size, counts, each in zip(sizes, trained, stacks, strict=True)
            if counts and _is_hidden(each.tensor)
        ),
        layers=layers,
        block=max(blocks.values()),
        first=first,
        last=last,
    )


def _belongs(tensor: HfTensor, layers: set[int], embedding: bool, last: bool) -> bool:
    """A tied head away from its embedding is a copy of it."""
    kind, _, rest = _own_name(tensor).partition(".")
    if kind == "layers":
        return int(rest.partition(".")[0]) in layers
    return embedding if kind == "tok_embeddings" else last


def _part(stack: _Stack, parallel: ParallelSpec) -> int:
    """What one rank keeps: FSDP's shards lie over the context ranks too, experts over whoever shares them."""
    data = parallel.fsdp * parallel.context
    if stack.tensor.is_routed_expert:
        return -(-stack.size // (data * parallel.tensor))
    return -(-_gathered(stack, parallel) // data)


def _gathered(stack: _Stack, parallel: ParallelSpec) -> int:
    """What one rank computes with: its tensor-parallel slice, or its experts."""
    tensor = stack.tensor
    if tensor.is_routed_expert:
        return -(-stack.size // parallel.expert)
    is_split = len(tensor.shape) > 1 and not any(name in tensor.parameter for name in _WHOLE)
    return -(-stack.size // (parallel.tensor if is_split else 1))


def _is_hidden(tensor: HfTensor) -> bool:
    return not tensor.is_routed_expert and len(tensor.shape) > 1 and _own_name(tensor).startswith("layers.")


def _own_name(tensor: HfTensor) -> str:
    """transformers' modules are one level further down."""
    return tensor.parameter.removeprefix("model.")

"""Counts a model's parameters, and their work, from its config.json.

The count goes tensor by tensor and does not need torch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from math import prod

from rlrun.models.adapters import (
    LoraShape,
    adapter_tensors,
    adapters,
)
from rlrun.models.architecture import Architecture
from rlrun.models.hf_tensor import HfTensor
from rlrun.models.tensor_names import INDEXER, TOWER, hf_tensors
from rlrun.specs.derived.policy_model import frozen_patterns
from rlrun.specs.sections.trainer import TrainerSpec

_EMBEDDINGS = ("tok_embeddings.weight", "model.embed_tokens.weight")


@dataclass(frozen=True, slots=True)
class Stack:
    """One tensor, or the `count` equal tensors of a layer's experts."""

    tensor: HfTensor
    count: int

    @property
    def size(self) -> int:
        return prod(self.tensor.shape) * self.count


@cache
def parameter_count(model: Architecture) -> int:
    """Returns the number of parameters of the whole model."""
    return sum(stack.size for stack in stacks_of(model))


@cache
def active_parameters(model: Architecture) -> int:
    """Returns the number of parameters that each token is multiplied by.

    Only those experts count that a token is routed to. The embedding is a lookup, so it does not count.
    """
    return sum(active_size(stack, model) for stack in multiplied(model))


def token_operations(model: Architecture, trainer: TrainerSpec) -> int:
    """Returns the operations of matrix products per token in a forward and backward pass of the policy.

    Each parameter takes two operations in the forward pass, two for the gradient of its input, and another
    two for its own gradient unless it is frozen. Those of indexers take the first two alone.
    """
    indexers = sum(stack.size for stack in stacks_of(model) if INDEXER in stack.tensor.name)
    if trainer.lora is not None:
        tensors = adapter_tensors(adapters(model, trainer.lora.shape))
        factors = sum(active_size(Stack(tensor, 1), model) for tensor in tensors)
        return 4 * active_parameters(model) - 2 * indexers + 6 * factors
    patterns = frozen_patterns(trainer, model)
    trained = [stack for stack in multiplied(model) if not is_frozen(stack.tensor, patterns)]
    own_gradients = sum(active_size(stack, model) for stack in trained)
    return 4 * active_parameters(model) - 2 * indexers + 2 * own_gradients


def attention_operations(model: Architecture, sample_tokens: float) -> float:
    """Returns the operations of attention per token of samples, in a forward and backward pass.

    Kernels skip the keys behind a query. Attention to chosen keys is computed as attention to all, and once
    more in the backward pass; an indexer's scores are computed once.
    """
    products, indexer = model.attention_layers * model.heads * model.head_dim, model.indexer
    if indexer is None or sample_tokens <= indexer.top_k:
        return 6 * products * sample_tokens
    scores = len(indexer.layers) * indexer.heads * indexer.head_dim
    return (16 * products + 2 * scores) * sample_tokens


def adapter_parameters(model: Architecture, lora: LoraShape) -> int:
    """Returns the number of parameters of the model's adapters."""
    return sum(prod(tensor.shape) for tensor in adapter_tensors(adapters(model, lora)))


def multiplied(model: Architecture) -> list[Stack]:
    """Returns the tensors that tokens are multiplied by; those of a vision tower multiply patches."""
    stacks = [stack for stack in stacks_of(model) if not stack.tensor.parameter.startswith(TOWER)]
    return [stack for stack in stacks if model.tied or stack.tensor.parameter not in _EMBEDDINGS]


def is_frozen(tensor: HfTensor, patterns: Sequence[str]) -> bool:
    """Returns whether a pattern of `trainer.freeze` matches the tensor."""
    return any(fnmatchcase(tensor.name, pattern) for pattern in patterns)


def active_size(stack: Stack, model: Architecture) -> int:
    """Returns the number of a tensor's parameters that each token is multiplied by."""
    if stack.tensor.is_routed_expert and model.experts:
        return stack.size * model.experts.per_token // model.experts.count
    return stack.size


@cache
def stacks_of(model: Architecture) -> tuple[Stack, ...]:
    stacks: dict[tuple[str, tuple[int, ...], str], list[HfTensor]] = {}
    for tensor in hf_tensors(model):
        kind = tensor.name.rsplit(".", 2)[-2] if tensor.expert is not None else tensor.name
        stacks.setdefault((tensor.parameter, tensor.shape, kind), []).append(tensor)
    return tuple(Stack(tensors[0], len(tensors)) for tensors in stacks.values())

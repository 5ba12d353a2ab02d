"""The weights that the policy and the critic start from."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path

import torch

from rlrun.converters.families.adapter_folder import AdapterFolder
from rlrun.converters.families.merged_weights import merge_factors
from rlrun.converters.families.model_folder import WeightFolder, named_generator, random_tensor
from rlrun.converters.tensors.base_blocks import BaseKind, decode, encode
from rlrun.models.adapters import PEFT_PREFIX, Adapter, LoraShape, adapters, quantised_matrices
from rlrun.models.architecture import Architecture
from rlrun.models.hf_tensor import HfTensor
from rlrun.models.tensor_names import SCORE, SCORE_BIAS
from rlrun.runner.trainer.parameters.gathering import merge_expert
from rlrun.runner.trainer.parameters.stored_layout import to_parameter
from rlrun.specs.sections.job import Spec

Read = Callable[[HfTensor], torch.Tensor]


@contextmanager
def starting_weights(spec: Spec, folder: Path, model: Architecture) -> Iterator[Read]:
    """Yields a function that returns a starting tensor: read from the model's folder, or drawn at random.

    It also returns the factors of adapters: read from `model.adapter`, or drawn so that their product is 0.
    """
    with ExitStack() as stack:
        if spec.model.random_init:
            read: Read = partial(random_tensor, model=model, seed=spec.seed)
        elif model.scores:
            read = stack.enter_context(scoring_weights(folder, model))
        else:
            weights = stack.enter_context(WeightFolder(folder, model))
            read = lambda tensor: weights.read(tensor.name)  # noqa: E731
        read_factor: Read = partial(random_factor, seed=spec.seed)
        if spec.model.adapter is not None and spec.trainer.lora is not None:
            shape = spec.trainer.lora.shape
            source = AdapterFolder(Path(spec.model.adapter), adapters(model, shape), shape)
            factors = stack.enter_context(source)
            read_factor = lambda tensor: factors.read(tensor.name)  # noqa: E731
        yield lambda tensor: (read_factor if tensor.name.startswith(PEFT_PREFIX) else read)(tensor)


@contextmanager
def scoring_weights(folder: Path, model: Architecture) -> Iterator[Read]:
    """Yields a function that returns a tensor of a model folder, for a model that scores. A head that gives
    scores is 0 if the folder has none, and the folder's head for the vocabulary is not read.

    Raises ValueError if the folder's tensors are not those of the architecture.
    """
    without_head = replace(model, tied=True, mtp=None, scores=False)  # a tied head is no tensor of its own
    with WeightFolder(folder, without_head, further=[SCORE, SCORE_BIAS]) as weights:
        if SCORE_BIAS in weights and weights.read(SCORE_BIAS).any():
            raise ValueError(
                f"{folder} has a {SCORE_BIAS}, and heads here have no bias: choose another model"
            )

        def read(tensor: HfTensor) -> torch.Tensor:
            if tensor.name == SCORE and SCORE not in weights:
                return torch.zeros(tensor.shape)
            stored = weights.read(tensor.name)
            if tuple(stored.shape) != tuple(tensor.shape):
                raise ValueError(
                    f"{tensor.name} in {folder} has shape {tuple(stored.shape)}, and a head that scores "
                    f"{tuple(tensor.shape)}: choose a model that gives one number"
                )
            return stored

        yield read


@contextmanager
def starting_policy(spec: Spec, folder: Path, model: Architecture) -> Iterator[Read]:
    """Yields a function that returns a tensor of the policy as it starts: with `model.adapter` merged into
    it, and with the values that `trainer.lora.base` rounds its matrices to. A critic, which has no adapters,
    starts from these tensors.
    """
    with starting_weights(spec, folder, model) as stored:
        lora = spec.trainer.lora
        base = lora.base if lora else None
        read = stored if base is None else rounded_base(stored, model, base)
        yield read if lora is None or spec.model.adapter is None else merged(read, model, lora.shape)


def rounded_base(read: Read, model: Architecture, base: BaseKind) -> Read:
    """Returns a function that rounds the matrices of the layers to values of 4 or 8 bits."""
    held = {matrix.name for matrix in quantised_matrices(model)}

    def read_rounded(tensor: HfTensor) -> torch.Tensor:
        weight = read(tensor)
        return decode(encode(weight, base), base) if tensor.name in held else weight

    return read_rounded


def merged(read: Read, model: Architecture, lora: LoraShape) -> Read:
    """Returns a function that adds adapters to the matrices that `read` returns, in float32."""
    adapter_of = {matrix.name: adapter for adapter in adapters(model, lora) for matrix in adapter.matrices}
    # experts follow each other and share their layer's factors
    factor = lru_cache(maxsize=4)(lambda tensor: to_parameter(tensor, read(tensor)))

    def read_merged(tensor: HfTensor) -> torch.Tensor:
        if (adapter := adapter_of.get(tensor.name)) is None:
            return read(tensor)
        weight, down, up = read(tensor).float(), factor(adapter.down), factor(adapter.up)
        if isinstance(adapter, Adapter):
            return merge_factors(weight, up, down, lora.scale)
        assert tensor.expert is not None, "an adapter of experts belongs to the matrices of experts"
        return merge_expert(adapter, tensor.parameter, tensor.expert, weight, up, down, lora.scale)

    return read_merged


def random_factor(tensor: HfTensor, seed: int) -> torch.Tensor:
    """Returns initial values of an adapter's factor, which depend only on seed and name.

    The second factor is zero. The first is uniform within ±1/√in, as in peft. The whole factor is drawn on
    every rank, because shards that are drawn separately would be equal.
    """
    if tensor.name.endswith(".lora_B.weight"):
        return torch.zeros(tensor.shape)
    bound = tensor.shape[1] ** -0.5
    return torch.empty(tensor.shape).uniform_(-bound, bound, generator=named_generator(tensor.name, seed))

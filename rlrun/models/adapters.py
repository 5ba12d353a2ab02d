"""Lists the low-rank adapters of a model (LoRA, arXiv:2106.09685): which matrices have one, and its tensors.

An adapter adds `scale · up · down` to a matrix `[out, in]`. `down` `[rank, in]` is peft's `lora_A`, and `up`
`[out, rank]` its `lora_B`.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from rlrun.models.architecture import Architecture
from rlrun.models.tensor_names import HfTensor, hf_tensors

ATTENTION_TARGETS = (
    "q_proj",
    "k_proj",
    "v_proj",
    "o_proj",
    "q_a_proj",
    "q_b_proj",
    "kv_a_proj_with_mqa",
    "kv_b_proj",
)
FEED_FORWARD_TARGETS = ("gate_proj", "up_proj", "down_proj")
TARGETS = (*ATTENTION_TARGETS, *FEED_FORWARD_TARGETS)
"""Hugging Face names of the matrices that can have an adapter; each family has some of them."""
PEFT_PREFIX = "base_model.model."
"""peft's names of modules begin with this."""


@dataclass(frozen=True, slots=True)
class LoraShape:
    """The settings that adapters have in common."""

    rank: int
    alpha: float
    targets: tuple[str, ...] = ()
    """Hugging Face names of the adapted matrices, without prefix; empty: all that can have an adapter."""
    rslora: bool = False
    base: Literal["nf4", "int8"] | None = None
    """How the layers' matrices are held, which are frozen; None: in the trainer's precision."""

    @property
    def scale(self) -> float:
        """The factor of `up · down`: alpha / rank, or alpha / √rank (rsLoRA, arXiv:2312.03732)."""
        return self.alpha / (math.sqrt(self.rank) if self.rslora else self.rank)


@dataclass(frozen=True, slots=True)
class Adapter:
    """The adapter of one matrix."""

    matrix: HfTensor
    rank: int

    @property
    def down(self) -> HfTensor:
        """The first factor, by peft's name and the trainer's."""
        return self._factor("A", "lora_a", (self.rank, self.matrix.shape[1]))

    @property
    def up(self) -> HfTensor:
        """The second factor, which starts at zero."""
        return self._factor("B", "lora_b", (self.matrix.shape[0], self.rank))

    @property
    def target(self) -> str:
        """The matrix's name without its prefix, such as `q_proj`."""
        return self.matrix.name.split(".")[-2]

    def _factor(self, letter: str, name: str, shape: tuple[int, int]) -> HfTensor:
        module, parameter = (
            text.removesuffix(".weight") for text in (self.matrix.name, self.matrix.parameter)
        )
        return HfTensor(f"{PEFT_PREFIX}{module}.lora_{letter}.weight", shape, f"{parameter}.{name}.weight")


def adapters(model: Architecture, lora: LoraShape) -> list[Adapter]:
    """Returns the adapters of a model, in the order of its tensors.

    Raises ValueError if a target is not a matrix of the model that can have an adapter.
    """
    adaptable = [Adapter(tensor, lora.rank) for tensor in _adaptable(model)]
    available = [target for target in TARGETS if any(each.target == target for each in adaptable)]
    if unknown := [target for target in lora.targets if target not in available]:
        experts = " (in a model with experts only attention has adapters)" if model.experts else ""
        raise ValueError(
            f"trainer.lora.targets: the {model.family} model has no {', '.join(unknown)} that can have an "
            f"adapter{experts}: choose among {', '.join(available)}"
        )
    targets = lora.targets or available
    return [adapter for adapter in adaptable if adapter.target in targets]


def check_ranks(model: Architecture, ranks: int) -> None:
    """Raises ValueError if the model's adapters cannot be trained by this many ranks.

    torchtitan derives no layout of adapters from matrices that no rank splits, as latent attention has.
    """
    if ranks > 1 and (model.latent is not None or model.sinks):
        raise ValueError(
            f"[trainer.lora] trains {model.family} models on one rank only, and trainer.parallel has "
            f"{ranks}: remove [trainer.lora], or the degrees of trainer.parallel"
        )


QUANTISED_BLOCK = 64
"""Number of values of a row that share a float32 scale in a matrix held in 4 or 8 bits."""
BASE_BYTES = {"nf4": 0.5 + 4 / QUANTISED_BLOCK, "int8": 1 + 4 / QUANTISED_BLOCK}
"""Bytes of a value, with its share of the scale, by `trainer.lora.base`."""


def quantised_matrices(model: Architecture) -> list[HfTensor]:
    """Returns the matrices that `trainer.lora.base` holds in 4 or 8 bits: those of all layers, with or
    without an adapter.
    """
    return list(_adaptable(model))


def check_base(model: Architecture, base: str, tensor: int) -> None:
    """Raises ValueError if the model's matrices cannot be held in 4 or 8 bits, split by `tensor` ranks."""
    where = f'trainer.lora.base = "{base}"'
    if model.experts:
        raise ValueError(
            f"{where} holds dense models, and most parameters of this {model.family} model are experts: "
            "remove it, so that they stay in trainer.dtype"
        )
    for matrix in quantised_matrices(model):
        width = matrix.shape[1]
        ranks = tensor if matrix.parameter.split(".")[-2] in ("wo", "w2") else 1  # split by inputs
        if width % (QUANTISED_BLOCK * ranks):
            split = f" divided by trainer.parallel.tensor = {ranks}" if ranks > 1 else ""
            raise ValueError(
                f"{where} needs rows of a multiple of {QUANTISED_BLOCK} values, and {matrix.name} has "
                f"{width}{split}: remove it" + (", or lower trainer.parallel.tensor" if split else "")
            )


def _adaptable(model: Architecture) -> Iterator[HfTensor]:
    """Yields the matrices of attention, and of feed-forwards if the model has no experts.

    In a model with experts, peft takes the names of feed-forward matrices for the experts', so that it could
    not load adapters of its dense feed-forwards and shared experts.
    """
    targets = ATTENTION_TARGETS if model.experts else TARGETS
    for tensor in hf_tensors(model):
        name = tensor.name.split(".")
        is_matrix = len(tensor.shape) == 2 and name[-1] == "weight" and not tensor.is_routed_expert
        if is_matrix and len(name) > 2 and name[-2] in targets:
            yield tensor


def adapter_tensors(adapters: Sequence[Adapter]) -> list[HfTensor]:
    """Returns the two tensors of each adapter, in order."""
    return [tensor for adapter in adapters for tensor in (adapter.down, adapter.up)]

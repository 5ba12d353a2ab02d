"""Lists the low-rank adapters of a model (LoRA, arXiv:2106.09685): which matrices have one, and its tensors.

An adapter adds `scale · up · down` to a matrix `[out, in]`. `down` `[rank, in]` is peft's `lora_A`, and `up`
`[out, rank]` its `lora_B`.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from rlrun.models.architecture import Architecture
from rlrun.models.hf_tensor import ExpertFactor, HfTensor
from rlrun.models.tensor_names import GATE_UP, text_tensors

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
FEED_FORWARD_TARGETS = (*GATE_UP, "down_proj")
STACKED_GATE_UP, STACKED_DOWN = EXPERT_TARGETS = ("experts.gate_up_proj", "experts.down_proj")
"""The matrices of all experts of a layer; gate and up share the first factor."""
EXPERT_MATRICES = {STACKED_GATE_UP: GATE_UP, STACKED_DOWN: ("down_proj",)}
"""The matrices of one expert that share a first factor, by target."""
TARGETS = (*ATTENTION_TARGETS, *FEED_FORWARD_TARGETS, *EXPERT_TARGETS)
"""Hugging Face names of the matrices that can have an adapter; each family has some of them."""
PEFT_PREFIX = "base_model.model."
"""peft's names of modules begin with this."""


@dataclass(frozen=True, slots=True)
class LoraShape:
    """The settings that adapters have in common."""

    rank: int
    alpha: float
    targets: tuple[str, ...] = ()
    """Hugging Face names of the adapted matrices, without prefix; empty: all that can have an adapter, except
    those of experts."""
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

    @property
    def matrices(self) -> tuple[HfTensor, ...]:
        """The tensors that the adapter is added to."""
        return (self.matrix,)

    def _factor(self, letter: str, name: str, shape: tuple[int, int]) -> HfTensor:
        module, parameter = (
            text.removesuffix(".weight") for text in (self.matrix.name, self.matrix.parameter)
        )
        return HfTensor(f"{PEFT_PREFIX}{module}.lora_{letter}.weight", shape, f"{parameter}.{name}.weight")


@dataclass(frozen=True, slots=True)
class ExpertAdapter:
    """The adapters of one kind of matrix in all experts of a layer, as peft has them for stacked experts."""

    target: str
    """`experts.gate_up_proj` or `experts.down_proj`."""
    matrices: tuple[HfTensor, ...]
    """The tensors that the adapters are added to: those of gate and up, or of down, of every expert."""
    experts: int
    rank: int
    inner: bool
    """peft wraps the layer's other matrices around this one, which shows in its names."""

    @property
    def down(self) -> HfTensor:
        """The first factor, by peft's name and the trainer's."""
        return self._factor("A", (self.experts * self.rank, self.matrices[0].shape[1]))

    @property
    def up(self) -> HfTensor:
        """The second factor, which starts at zero."""
        return self._factor("B", (self.halves * self.matrices[0].shape[0], self.rank * self.experts))

    @property
    def halves(self) -> int:
        """How many matrices of an expert share the first factor: gate and up, or down alone."""
        return 2 if self.target == STACKED_GATE_UP else 1

    def half_of(self, parameter: str) -> int:
        """Returns which part of the second factor belongs to a parameter of the experts."""
        return [matrix.parameter for matrix in self.matrices[: self.halves]].index(parameter)

    def _factor(self, letter: str, shape: tuple[int, int]) -> HfTensor:
        matrix = self.matrices[0]
        module = matrix.name.partition(".experts.")[0] + ".experts" + (".base_layer" if self.inner else "")
        kind = self.target.removeprefix("experts.").removesuffix("_proj")
        return HfTensor(
            f"{PEFT_PREFIX}{module}.lora_{letter}.weight",
            shape,
            f"{matrix.parameter.rpartition('.')[0]}.lora_{letter.lower()}_{kind}",
            holds_all_experts=True,
            factor=ExpertFactor(self.experts, self.rank, letter == "A", self.halves if letter == "B" else 1),
        )


AnyAdapter = Adapter | ExpertAdapter


def adapters(model: Architecture, lora: LoraShape) -> list[AnyAdapter]:
    """Returns the adapters of a model, in the order of its tensors.

    Raises ValueError if a target is not a matrix of the model that can have an adapter.
    """
    adaptable: list[AnyAdapter] = [Adapter(tensor, lora.rank) for tensor in _adaptable(model)]
    adaptable += _expert_adapters(model, lora)
    available = [target for target in TARGETS if any(each.target == target for each in adaptable)]
    if unknown := [target for target in lora.targets if target not in available]:
        experts = " (in a model with experts only attention and experts have)" if model.experts else ""
        raise ValueError(
            f"trainer.lora.targets: the {model.family} model has no {', '.join(unknown)} that can have an "
            f"adapter{experts}: choose among {', '.join(available)}"
        )
    targets = lora.targets or [target for target in available if target not in EXPERT_TARGETS]
    return [adapter for adapter in adaptable if adapter.target in targets]


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
    for tensor in text_tensors(model):
        name = tensor.name.split(".")
        is_matrix = len(tensor.shape) == 2 and name[-1] == "weight" and not tensor.is_routed_expert
        if is_matrix and len(name) > 2 and name[-2] in targets:
            yield tensor


def _expert_adapters(model: Architecture, lora: LoraShape) -> Iterator[ExpertAdapter]:
    """Yields the adapters that experts can have, layer by layer.

    If both kinds are targets, peft wraps the second around the first.
    """
    experts = model.experts
    if experts is None or not experts.adaptable:
        return
    both = set(EXPERT_TARGETS) <= set(lora.targets)
    layers: dict[str, list[HfTensor]] = {}
    for tensor in text_tensors(model):
        if tensor.expert is not None:
            layers.setdefault(tensor.name.partition(".experts.")[0], []).append(tensor)
    for tensors in layers.values():
        for target, parts in EXPERT_MATRICES.items():
            matrices = tuple(tensor for tensor in tensors if tensor.name.split(".")[-2] in parts)
            inner = both and target == STACKED_GATE_UP
            yield ExpertAdapter(target, matrices, experts.count, lora.rank, inner)


def adapter_tensors(adapters: Sequence[AnyAdapter]) -> list[HfTensor]:
    """Returns the two tensors of each adapter, in order."""
    return [tensor for adapter in adapters for tensor in (adapter.down, adapter.up)]

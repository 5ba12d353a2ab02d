"""Lists which of a model's matrices are multiplied in low precision, and why others are not.

Embeddings, head, norms, biases, attention sinks and routers always keep the precision of `trainer.dtype`.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

from rlrun.models.architecture import Architecture
from rlrun.models.hf_tensor import HfTensor
from rlrun.models.tensor_names import INDEXER, text_tensors

PrecisionName = Literal["float8", "mxfp8", "nvfp4", "int4_qat"]
Float8Recipe = Literal["rowwise", "rowwise_with_gw_hp", "blockwise"]
Int4Group = Literal[32, 64, 128]
INT4_GROUPS: tuple[Int4Group, ...] = get_args(Int4Group)
"""The numbers per scale that engines' kernels for four-bit integers have."""
DEFAULT_INT4_GROUP: Int4Group = 32
PROJECTIONS = ("_proj.weight", "_proj_with_mqa.weight")
"""Suffixes of projections: of attention, feed-forward and experts; not embedding, head, router or norms."""
_EXPERTS = ".experts."
_TOWERS = ("visual.", "vision_")
_ROUTER = ".router."
_SPLIT_BY_INPUTS = ("o_proj", "down_proj", "out_proj", "w2")
_UNSPLIT = ("q_a_proj", "kv_a_proj_with_mqa")
"""Matrices that tensor-parallel ranks split by inputs, and those that each of them holds whole."""
_DECAYS = ("in_proj_a", "in_proj_b", "in_proj_ba")
"""Projections to the rates at which Gated DeltaNet forgets and learns."""


@dataclass(frozen=True, slots=True)
class LowPrecision:
    """How matrices are multiplied: the formats of both factors and of their gradients."""

    name: PrecisionName
    recipe: Float8Recipe = "rowwise"
    """How float8 is scaled; the other formats have one way only."""
    int4_group: Int4Group = DEFAULT_INT4_GROUP
    """How many neighbours in a row of a matrix share a scale in `int4_qat`."""

    def __str__(self) -> str:
        if self.name == "int4_qat":
            return f"{self.name} (groups of {self.int4_group})"
        return f"{self.name} ({self.recipe})" if self.name == "float8" else self.name

    @property
    def rounds_weights_alone(self) -> bool:
        """Whether only matrices are rounded, and multiplied in bfloat16 by inputs that are not."""
        return self.name == "int4_qat"

    @property
    def blockwise(self) -> bool:
        """Whether factors are scaled as in FP8 checkpoints: a scale per 128 × 128 block of a matrix."""
        return self.name == "float8" and self.recipe == "blockwise"

    @property
    def multiple(self) -> int:
        """The number that must divide both sizes of a matrix on a rank; for `int4_qat` only its columns.

        Kernels read this many numbers at a time, or give as many one scale.
        """
        if self.name == "float8":
            return 128 if self.blockwise else 16
        return {"mxfp8": 32, "nvfp4": 128, "int4_qat": self.int4_group}[self.name]

    @property
    def token_multiple(self) -> int:
        """The number that must divide the tokens of a micro-batch on a rank."""
        return 1 if self.rounds_weights_alone else self.multiple

    @property
    def capability(self) -> tuple[int, int]:
        """The lowest CUDA capability whose tensor cores multiply in this format."""
        if self.name == "float8":
            return (9, 0) if self.blockwise else (8, 9)
        return (8, 0) if self.rounds_weights_alone else (10, 0)

    @property
    def emulated_on_cpu(self) -> bool:
        """Whether a CPU rounds factors to the format and multiplies them in float32.

        float8 with a scale per row needs no emulation, because torch's CPU products take float8.
        """
        return self.name == "mxfp8" or self.blockwise


def note_on(precision: LowPrecision, *, on_cpu: bool) -> str:
    """Returns a line for users: how the layers multiply, and whether that is emulated."""
    if precision.rounds_weights_alone:
        return f"matrices are rounded to four-bit integers for each product: {precision}"
    line = f"the matrices of the layers multiply in {precision}"
    if not on_cpu:
        return line
    if precision.emulated_on_cpu:
        return (
            f"{line}, which the CPU emulates: results are those of the format, at less than the usual speed"
        )
    return f"{line}, which the CPU does at less than the usual speed"


@dataclass(frozen=True, slots=True)
class Matrix:
    """A matrix of a layer, or all matrices of one kind of a layer's experts."""

    tensor: HfTensor
    reason: str | None = None
    """Why the matrix keeps `trainer.dtype`; None: it is converted."""

    @property
    def pattern(self) -> str:
        """The Hugging Face name without `.weight`, and with `*` for the numbers of layers and experts."""
        name = self.tensor.name.removesuffix(".weight")
        return ".".join("*" if part.isdecimal() else part for part in name.split("."))


def layer_matrices(
    model: Architecture, precision: LowPrecision, *, tensor: int = 1, expert: int = 1
) -> list[Matrix]:
    """Returns every matrix of the layers, except routers, in order. Of a layer's experts only the first
    one's matrices are listed.

    `tensor`, `expert`: the degrees of parallelism.
    """
    return [
        Matrix(each, _reason(model, each, precision, tensor=tensor, expert=expert))
        for each in text_tensors(model)
        if _is_layer_matrix(each)
    ]


def check_low_precision(
    model: Architecture, precision: LowPrecision, *, tensor: int = 1, expert: int = 1
) -> None:
    """Raises ValueError if no matrix of the model can be converted."""
    matrices = layer_matrices(model, precision, tensor=tensor, expert=expert)
    if precision.rounds_weights_alone:
        _check_int4(model, matrices, precision)
    if all(matrix.reason for matrix in matrices):
        raise ValueError(
            f"trainer.precision: no matrix of this {model.family} model can be multiplied in {precision}: "
            f"{matrices[0].pattern} {matrices[0].reason}; remove trainer.precision"
        )


def _check_int4(model: Architecture, matrices: list[Matrix], precision: LowPrecision) -> None:
    """Raises ValueError if engines would have matrices in four bits that the trainer cannot round."""
    for matrix in matrices:
        is_packed = is_int4_matrix(matrix.tensor.name, routed=bool(model.experts))
        if is_packed and matrix.reason is not None:
            raise ValueError(
                f'trainer.precision = "int4_qat": {matrix.pattern} {matrix.reason}, and engines have it in '
                f"groups of {precision.int4_group}: lower trainer.int4_group or trainer.parallel.tensor, "
                "split experts by trainer.parallel.expert, or remove trainer.precision"
            )


def has_routed_experts(names: Iterable[str]) -> bool:
    """Returns whether a model with tensors of these Hugging Face names has routed experts."""
    return any(_EXPERTS in name for name in names)


def is_int4_matrix(name: str, *, routed: bool) -> bool:
    """Returns whether INT4 checkpoints have this matrix in four bits, by its Hugging Face name.

    In a model with `routed` experts these are their matrices alone, as in Kimi-K2-Thinking: they are almost
    all of the model, and SGLang can update no others in four bits. Vision towers have none.
    """
    if any(tower in name for tower in _TOWERS):
        return False
    if routed:
        return _EXPERTS in name and name.endswith(".weight")
    return name.endswith(PROJECTIONS)


def _is_layer_matrix(tensor: HfTensor) -> bool:
    is_matrix = len(tensor.shape) > 1 and not tensor.name.endswith("bias")
    is_in_layer = tensor.parameter.startswith("layers.") and _ROUTER not in tensor.parameter
    return is_matrix and is_in_layer and not tensor.expert and ".conv1d." not in tensor.name


def _reason(
    model: Architecture, matrix: HfTensor, precision: LowPrecision, *, tensor: int, expert: int
) -> str | None:
    if precision.rounds_weights_alone and not is_int4_matrix(matrix.name, routed=bool(model.experts)):
        return "is not in four bits on INT4 engines"
    if matrix.is_routed_expert:
        if precision.name == "nvfp4":
            return "belongs to experts, for which torchtitan has no NVFP4 products"
        if expert > 1:
            tensor = 1  # expert-parallel ranks hold whole experts
    elif INDEXER in matrix.name:
        return "only chooses the keys of attention, and rounding would choose others"
    elif matrix.name.split(".")[-2] in _DECAYS:
        return "decides how fast a state decays, over which errors add up"
    elif model.sinks and ".o_proj." in matrix.name:
        return "has a bias that tensor-parallel ranks share, which torchtitan's converted modules cannot"
    whole = matrix.parameter_shape[-2:]
    local = _local_sizes(matrix, tensor)
    divided = local[-1:] if precision.rounds_weights_alone else local
    if all(size % precision.multiple == 0 for size in divided):
        return None
    part = "" if whole == local else f", {_shown(local)} on a rank"
    sizes = "its columns" if precision.rounds_weights_alone else "both"
    return f"is {_shown(whole)}{part}, and {precision.multiple} does not divide {sizes}"


def _local_sizes(matrix: HfTensor, tensor: int) -> tuple[int, ...]:
    """Returns the sizes of a tensor-parallel rank's part of a matrix."""
    rows, columns = matrix.parameter_shape[-2:]
    name = matrix.name.removesuffix(".weight").rpartition(".")[2]
    if name in _UNSPLIT:
        return rows, columns
    return (rows, columns // tensor) if name in _SPLIT_BY_INPUTS else (rows // tensor, columns)


def _shown(sizes: tuple[int, ...]) -> str:
    return " × ".join(str(size) for size in sizes)


def kinds_of_matrices(matrices: list[Matrix]) -> list[Matrix]:
    """Returns one matrix of each kind: of each name and reason, apart from the layer's number."""
    kinds: dict[tuple[str, str | None], Matrix] = {}
    for matrix in matrices:
        kinds.setdefault((matrix.pattern, matrix.reason), matrix)
    return list(kinds.values())

"""AdamW whose two moments are held in 8 bits (arXiv:2110.02861), computed by torchao.

codes and scales ─▶ float32 moments ─▶ AdamW's step ─▶ codes and scales

A moment is a table of 8-bit codes, laid out as its parameter, and one float32 scale for each block of 256
codes. Both are plain tensors, so that checkpoints, offloading and parking treat them as any other state.
"""

import math
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

import rlrun.converters.tensors.quiet_torchao  # noqa: F401  (before torchao)

# isort: split
from torchao.optim.adam import single_param_adam
from torchao.optim.subclass_8bit import OptimState8bit

from rlrun.runner.trainer.compat.meshes import laid_out_like, local_part
from rlrun.runner.trainer.transfers import host_empty

BLOCK = 256
"""Number of values that share a scale: torchao's default."""
SMALLEST = 4096
"""Parameters with fewer values on all ranks together keep moments in float32. torchao compares a rank's part
with this limit, which would make the state depend on the layout."""
PIECE = 2**16
"""Number of values that are updated at a time on CPU. Measured on a CPU with 1 thread: 0.24 µs per value, and
0.6 µs for whole matrices, whose intermediate results exceed the caches."""
MOMENTS = ("exp_avg", "exp_avg_sq")

Shape = tuple[int, ...]


class EightBitAdamW(torch.optim.Optimizer):
    """AdamW with moments in 8 bits; those of small parameters are float32."""

    def __init__(self, groups: Iterable[dict[str, Any]], **settings: Any) -> None:
        """Takes the groups and settings of `torch.optim.AdamW`: lr, betas, eps and weight_decay."""
        super().__init__(groups, settings)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        """Takes one step. Every parameter must have state (see `empty_moments`)."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None and local_part(parameter).numel():
                    self._update(parameter, group)

    def _update(self, parameter: nn.Parameter, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        state["step"] += 1
        values, gradient = local_part(parameter).view(-1), local_part(parameter.grad).reshape(-1)
        size = PIECE if values.device.type == "cpu" else len(values)
        for begin in range(0, len(values), size):
            piece = slice(begin, begin + size)
            _adam(values.device.type)(
                values[piece],
                gradient[piece],
                state["step"],
                *(_moment(state, name, piece) for name in MOMENTS),
                None,
                torch.tensor(group["lr"]),
                *group["betas"],
                group["weight_decay"],
                group["eps"],
                True,  # decoupled weight decay
                False,  # stochastic rounding, which is for parameters in bfloat16
            )


def empty_moments(parameter: nn.Parameter, *, on_host: bool = False) -> dict[str, torch.Tensor]:
    """Returns the state of a parameter before its first step, without the count of steps, by kind of tensor.

    Scales are laid out over the ranks as the parameter, so that a checkpoint also fits layouts whose parts
    consist of the same blocks. `on_host`: in host memory.
    """
    local = local_part(parameter)

    def zeros(dtype: torch.dtype, shape: Shape, part: Shape) -> torch.Tensor:
        if on_host:
            tensor = host_empty(part, dtype, local.device)
        else:
            tensor = torch.empty(part, dtype=dtype, device=local.device)
        return laid_out_like(parameter, tensor.zero_(), shape)

    shapes = tuple(parameter.shape), tuple(local.shape)
    scales = _scale_shapes(parameter)
    if scales is None:
        return {moment: zeros(torch.float32, *shapes) for moment in MOMENTS}
    codes = {f"{moment}_codes": zeros(torch.uint8, *shapes) for moment in MOMENTS}
    return codes | {f"{moment}_scales": zeros(torch.float32, *scales) for moment in MOMENTS}


def _scale_shapes(parameter: nn.Parameter) -> tuple[Shape, Shape] | None:
    """Returns the shape of a moment's scales on all ranks together and on this rank; None if the parameter's
    moments stay in float32.

    A block never crosses the border of a rank's part: either every row of the part consists of whole blocks,
    or the parts are equal ranges of rows that do. All ranks decide alike, because they compare global shapes.
    """
    shards = _shards(parameter)
    if parameter.numel() < SMALLEST:
        return None
    *rows, width = parameter.shape
    local = local_part(parameter)
    if rows and width % (BLOCK * shards[-1]) == 0:
        return (*rows, width // BLOCK), (*local.shape[:-1], local.shape[-1] // BLOCK)
    by_rows = math.prod(shards[1:]) == 1 and parameter.shape[0] % shards[0] == 0
    if by_rows and parameter.numel() % (BLOCK * shards[0]) == 0:
        return (parameter.numel() // BLOCK,), (local.numel() // BLOCK,)
    return None


def _shards(parameter: nn.Parameter) -> list[int]:
    """Returns the number of parts that each dimension is split into over the ranks."""
    shards = [1] * parameter.ndim
    if isinstance(parameter, DTensor):
        for axis, placement in enumerate(parameter.placements):
            if (dimension := getattr(placement, "dim", None)) is not None:
                shards[dimension] *= parameter.device_mesh.size(axis)
    return shards


def _moment(state: dict[str, torch.Tensor], name: str, piece: slice) -> torch.Tensor:
    """Returns a piece of a parameter's moment as torchao's tensor, in the memory of the state."""
    if name in state:
        return local_part(state[name]).view(-1)[piece]
    codes = local_part(state[f"{name}_codes"]).view(-1)[piece]
    blocks = slice(piece.start // BLOCK, -(-piece.stop // BLOCK))
    scales = local_part(state[f"{name}_scales"]).view(-1)[blocks]
    signed = name == "exp_avg"
    return OptimState8bit(codes, scales, _code_book(signed, codes.device), signed, torch.float32)


@cache
def _code_book(signed: bool, device: torch.device) -> torch.Tensor:
    """Returns the values of the 256 codes."""
    book: torch.Tensor = OptimState8bit.zeros((BLOCK,), signed, BLOCK, device).qmap
    return book


@cache
def _adam(device: str) -> Callable[..., None]:
    """Returns torchao's step of one tensor, compiled on GPUs as torchao does.

    Uncompiled, it would need intermediate results of 30 bytes per value there. On CPU compilation takes
    longer than the steps of the models that are trained there.
    """
    if device == "cpu":
        step: Callable[..., None] = single_param_adam
        return step
    return torch.compile(single_param_adam, fullgraph=True, dynamic=False)

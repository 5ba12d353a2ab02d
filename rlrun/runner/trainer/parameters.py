"""The trained parameters: float32 masters, what the model computes with, and their way from and to HF
tensors.

One rank that computes in bfloat16 keeps a bfloat16 copy in the model, refreshed once an optimizer step;
gradients are added up in float32 on the masters. Everywhere else the model's own parameters are the masters
(FSDP casts by itself).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import groupby

import torch
from torch import nn
from torch.distributed.tensor import DTensor, distribute_tensor

from rlrun.converters.architecture import Architecture
from rlrun.converters.hf_names import HfTensor, hf_tensors


class Parameters:
    """The parameters of a model built by `build_model`, by torchtitan's names."""

    def __init__(
        self,
        decoder: nn.Module,
        model: Architecture,
        tensors: list[HfTensor] | None = None,
        trained: bool = True,
    ) -> None:
        """`tensors` are the model's own unless it has another head than a policy's; without training there
        are no masters.
        """
        self._tensors = tensors or hf_tensors(model)
        self._compute = dict(decoder.named_parameters())
        assert self._compute.keys() == {tensor.parameter for tensor in self._tensors}
        self.masters: dict[str, nn.Parameter] = dict(self._compute)
        if trained and any(parameter.dtype != torch.float32 for parameter in self._compute.values()):
            self.masters = {
                name: nn.Parameter(torch.empty_like(parameter, dtype=torch.float32))
                for name, parameter in self._compute.items()
            }
            for name, parameter in self._compute.items():
                parameter.register_post_accumulate_grad_hook(_adder(self.masters[name]))

    @property
    def holders(self) -> tuple[dict[str, nn.Parameter], ...]:
        """What the model computes with and, where they differ, the masters."""
        return self._compute, self.masters

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every HF tensor, in order."""
        return {tensor.name: tensor.shape for tensor in self._tensors}

    @torch.no_grad()
    def load(self, read: Callable[[HfTensor], torch.Tensor]) -> None:
        """Fill every parameter from HF tensors; each rank keeps its part, and holds one parameter whole at a
        time.
        """
        for name, tensors in _by_parameter(self._tensors):
            if tensors[0].expert is None:
                full = read(tensors[0])
            else:
                full = torch.stack([read(tensor) for tensor in tensors])
            _copy_part(self.masters[name], full)
        self.refresh()

    @torch.no_grad()
    def refresh(self) -> None:
        """Make the model compute with the masters' current values."""
        pairs = [
            (compute, self.masters[name])
            for name, compute in self._compute.items()
            if compute is not self.masters[name]
        ]
        if pairs:
            computes, masters = zip(*pairs, strict=True)
            torch._foreach_copy_(computes, masters)

    @torch.no_grad()
    def gather(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Every HF tensor in full, in order; all ranks must run through it together. Float32, one layer's
        experts at most.
        """
        stacks: dict[str, torch.Tensor] = {}
        for tensor in self._tensors:
            if tensor.expert is None:
                stacks.clear()
                yield tensor.name, _full(self.masters[tensor.parameter])
                continue
            if tensor.parameter not in stacks:
                stacks[tensor.parameter] = _full(self.masters[tensor.parameter])
            yield tensor.name, stacks[tensor.parameter][tensor.expert]

    def host_copy(self) -> dict[str, torch.Tensor]:
        """This rank's part of what the model computes with, in host memory."""
        return {name: _local(parameter).detach().cpu().clone() for name, parameter in self._compute.items()}

    @contextmanager
    def swapped(self, other: dict[str, torch.Tensor]) -> Iterator[None]:
        """Compute with a `host_copy` for a while."""
        mine = self.host_copy()
        self._put(other)
        try:
            yield
        finally:
            self._put(mine)

    @torch.no_grad()
    def _put(self, values: dict[str, torch.Tensor]) -> None:
        for name, parameter in self._compute.items():
            _local(parameter).copy_(values[name])


def _adder(master: nn.Parameter) -> Callable[[torch.Tensor], None]:
    """Moves a parameter's fresh gradient to its float32 master."""

    def add(parameter: torch.Tensor) -> None:
        assert parameter.grad is not None
        if master.grad is None:
            master.grad = parameter.grad.float()
        else:
            master.grad.add_(parameter.grad)
        parameter.grad = None

    return add


def _by_parameter(tensors: list[HfTensor]) -> Iterator[tuple[str, list[HfTensor]]]:
    """Tensors grouped by the parameter that holds them; experts in their order."""
    for name, members in groupby(
        sorted(tensors, key=lambda tensor: tensor.parameter), key=lambda tensor: tensor.parameter
    ):
        yield name, list(members)


def _copy_part(parameter: nn.Parameter, full: torch.Tensor) -> None:
    """Copy what this rank holds of a full tensor."""
    if isinstance(parameter, DTensor):
        part = distribute_tensor(
            full.to(parameter.device, parameter.dtype),
            parameter.device_mesh,
            parameter.placements,
            src_data_rank=None,
        )
        parameter.to_local().copy_(part.to_local())
    else:
        parameter.copy_(full)


def _local(parameter: torch.Tensor) -> torch.Tensor:
    return parameter.to_local() if isinstance(parameter, DTensor) else parameter


def _full(parameter: torch.Tensor) -> torch.Tensor:
    return parameter.full_tensor() if isinstance(parameter, DTensor) else parameter.detach()

"""The trained parameters: float32 masters, what the model computes with, and their way from and to HF
tensors.

One rank that computes in bfloat16, or keeps its parameters in host memory, has a copy in the model, refreshed
once an optimizer step; gradients are added up in float32 on the masters. Everywhere else the model's own
parameters are the masters (FSDP casts and fetches by itself).
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from rlrun.models.architecture import Architecture
from rlrun.models.tensor_names import HfTensor, hf_tensors
from rlrun.runner.trainer.compat.meshes import local_part
from rlrun.runner.trainer.parameters.gathering import Gathering, by_parameter, copy_part, turned

_CHECKPOINT_PREFIX = "_checkpoint_wrapped_module."
"""What torch puts into names of layers whose activations are computed again."""
EMBEDDING, HEAD = "tok_embeddings.weight", "lm_head.weight"
EXPERT_BIAS = ".moe.expert_bias_E"
"""How the names of biases end that even out the load of experts."""


class Parameters:
    """The parameters of a model built by `build_model`, by torchtitan's names.

    On a pipeline, those of this rank's stages; a tied head away from its embedding is a parameter of its own.
    """

    def __init__(
        self,
        decoders: Sequence[nn.Module],
        model: Architecture,
        *,
        stages: dist.ProcessGroup | None = None,
        tensors: list[HfTensor] | None = None,
        trained: bool = True,
        on_host: bool = False,
        biases: bool | None = None,
    ) -> None:
        """`stages` are the ranks of the pipeline. `tensors` are the model's own unless it has another head
        than a policy's; without training there are no masters. `on_host`: masters, and with them gradients,
        lie in host memory. `biases`: those of experts move, and are gathered as they are (True) or as they
        were loaded (False); None: they stay.
        """
        self._tensors = tensors or hf_tensors(model)
        self._compute: dict[str, nn.Parameter] = {}
        buffers: dict[str, torch.Tensor] = {}
        for decoder in decoders:
            self._compute |= {plain_name(name): one for name, one in decoder.named_parameters()}
            buffers |= {plain_name(name): one for name, one in decoder.named_buffers()}
        expected = {tensor.parameter for tensor in self._tensors}
        self._fixed = {name: buffer for name, buffer in buffers.items() if name in expected}
        self._biases = {
            name: buffer
            for name, buffer in buffers.items()
            if biases is not None and name.endswith(EXPERT_BIAS)
        }
        self._kept: dict[str, torch.Tensor] | None = {} if biases is False else None
        self.copies = frozenset((HEAD,) if model.tied and HEAD in self._compute else ())
        here = (self._compute.keys() | self._fixed.keys()) - self.copies
        self._gathering = Gathering(self._tensors, here, stages)
        self.masters: dict[str, nn.Parameter] = dict(self._compute)
        sharded = any(isinstance(parameter, DTensor) for parameter in self._compute.values())
        apart = any(parameter.dtype != torch.float32 for parameter in self._compute.values())
        if trained and not sharded and (apart or on_host):
            self.masters = _masters_of(self._compute, on_host)

    @property
    def holders(self) -> tuple[dict[str, nn.Parameter], ...]:
        """What the model computes with and, where they differ, the masters."""
        return self._compute, self.masters

    @property
    def computing(self) -> dict[str, torch.Tensor]:
        """What the model computes with, copies left out."""
        return {name: tensor for name, tensor in self._swapping.items() if name not in self.copies}

    @property
    def saved(self) -> dict[str, torch.Tensor]:
        """What training changes and no other rank or name counts."""
        own = {name: master for name, master in self.masters.items() if name not in self.copies}
        return own | self._biases

    @property
    def _swapping(self) -> dict[str, torch.Tensor]:
        """What makes one policy another."""
        return self._compute | self._biases

    @property
    def held(self) -> list[torch.Tensor]:
        """Everything that takes memory here."""
        return [*self._compute.values(), *self.masters.values()]

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every HF tensor, in order."""
        return {tensor.name: tensor.shape for tensor in self._tensors}

    @torch.no_grad()
    def load(self, read: Callable[[HfTensor], torch.Tensor]) -> None:
        """Fill every parameter from HF tensors; each rank keeps its part, and holds one parameter whole at a
        time.
        """
        holders = by_parameter(self._tensors)
        for name, master in (self.masters | self._fixed).items():
            tensors = holders[EMBEDDING if name in self.copies else name]
            if tensors[0].expert is None:
                full = turned(tensors[0], read(tensors[0]))
            else:
                full = torch.stack([read(tensor) for tensor in tensors])
            copy_part(master, full)
        if self._kept is not None:
            kept = self._fixed.keys() & self._biases.keys()
            self._kept = {name: self._fixed[name].detach().clone() for name in kept}
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
        """Every HF tensor in full on the first rank, float32, as `Gathering.run`."""
        yield from self._gathering.run(self.masters | self._fixed | (self._kept or {}))

    def host_copy(self) -> dict[str, torch.Tensor]:
        """This rank's part of what the model computes with, in host memory."""
        return {name: local_part(tensor).cpu().clone() for name, tensor in self._swapping.items()}

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
        for name, tensor in self._swapping.items():
            local_part(tensor).copy_(values[name])


def plain_name(name: str) -> str:
    """A parameter's name without what torch puts into it."""
    return name.replace(_CHECKPOINT_PREFIX, "")


def _masters_of(parameters: dict[str, nn.Parameter], on_host: bool) -> dict[str, nn.Parameter]:
    """Float32 twins of parameters, whose gradients come to them."""
    where = torch.device("cpu") if on_host else None
    masters = {
        name: nn.Parameter(torch.empty_like(parameter, dtype=torch.float32, device=where))
        for name, parameter in parameters.items()
    }
    for name, parameter in parameters.items():
        parameter.register_post_accumulate_grad_hook(_adder(masters[name]))
    return masters


def _adder(master: nn.Parameter) -> Callable[[torch.Tensor], None]:
    """Moves a parameter's fresh gradient to its float32 master."""

    def add(parameter: torch.Tensor) -> None:
        assert parameter.grad is not None
        if master.grad is None:
            master.grad = parameter.grad.to(master.device, torch.float32)
        else:
            master.grad.add_(parameter.grad.to(master.device))
        parameter.grad = None

    return add

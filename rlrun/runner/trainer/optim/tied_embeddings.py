"""A tied embedding and head on different stages of a pipeline: two parameters that are kept equal.

embedding on the first stage ◀── gradients, both ways ──▶ head on the last stage
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from rlrun.runner.planning.rank_layout import stages_of_rank
from rlrun.runner.trainer.compat.meshes import mesh_device
from rlrun.runner.trainer.optim.optimizer import Optimizer
from rlrun.runner.trainer.parameters.parameters import EMBEDDING, HEAD, Parameters
from rlrun.runner.trainer.transfers import to_device
from rlrun.specs.sections.trainer import ParallelSpec


class TiedHead:
    """Keeps embedding and head equal.

    Both have the same layout over a stage's ranks, so each rank of one stage has a partner on the other stage
    with the same part of the matrix. NCCL exchanges tensors on devices only: parts in host memory
    (`trainer.offload`) go through the device.
    """

    def __init__(self, parameters: Parameters, parallel: ParallelSpec, stages: dist.ProcessGroup) -> None:
        """`stages` is the process group of the pipeline's ranks."""
        self._embedding = parameters.masters.get(EMBEDDING)
        self._head = parameters.masters.get(HEAD)
        self._stages = stages
        last = next(
            rank for rank in range(parallel.pipeline) if parallel.stages - 1 in stages_of_rank(rank, parallel)
        )
        self._partner = last if self._embedding is not None else 0
        self._device = mesh_device(next(iter(parameters.masters.values())))

    def add_gradients(self) -> None:
        """Gives both parameters the sum of their gradients."""
        held = [parameter for parameter in (self._embedding, self._head) if parameter is not None]
        if not all(parameter.requires_grad for parameter in held):
            return  # frozen
        if self._embedding is not None and self._head is not None:
            # a V-shaped schedule has the first and the last stage on one rank
            total = _gradient(self._embedding).add_(_gradient(self._head))
            _gradient(self._head).copy_(total)
            return
        for parameter in held:
            _gradient(parameter).add_(self._exchange(_gradient(parameter)))

    def copy_weights(self) -> None:
        """Copies the embedding to the head: checkpoints contain only the embedding."""
        self._copy(self._embedding, self._head)

    def copy_state(self, optimizer: Optimizer) -> None:
        """Copies the embedding's optimizer state to the head's."""
        state = optimizer.tensors()
        kinds = {key.partition(".")[0] for key in state if key.endswith((f".{EMBEDDING}", f".{HEAD}"))}
        for kind in sorted(kinds):
            self._copy(state.get(f"{kind}.{EMBEDDING}"), state.get(f"{kind}.{HEAD}"))

    def _copy(self, embeddings: torch.Tensor | None, heads: torch.Tensor | None) -> None:
        """Copies a tensor of the embedding to that of the head, which may be on the partner."""
        if embeddings is not None and heads is not None:
            _local(heads).copy_(_local(embeddings))
        elif embeddings is not None:
            sent = to_device(_local(embeddings), self._device).contiguous()
            dist.send(sent, group=self._stages, group_dst=self._partner)
        elif heads is not None:
            received = torch.empty_like(_local(heads), device=self._device)
            dist.recv(received, group=self._stages, group_src=self._partner)
            _local(heads).copy_(received)

    def _exchange(self, mine: torch.Tensor) -> torch.Tensor:
        """Sends a tensor to the partner and returns the partner's, where the own one is.

        Send and receive are one batch: two blocking sends would wait for each other.
        """
        sent = to_device(mine, self._device).contiguous()
        theirs = torch.empty_like(sent)
        group, peer = self._stages, self._partner
        exchange = [
            dist.P2POp(dist.isend, sent, group=group, group_peer=peer),
            dist.P2POp(dist.irecv, theirs, group=group, group_peer=peer),
        ]
        for work in dist.batch_isend_irecv(exchange):
            work.wait()
        return theirs.to(mine.device)


def _gradient(parameter: nn.Parameter) -> torch.Tensor:
    assert parameter.grad is not None
    return _local(parameter.grad)


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to_local() if isinstance(tensor, DTensor) else tensor.detach()

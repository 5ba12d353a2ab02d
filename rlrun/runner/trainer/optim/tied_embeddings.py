"""A tied embedding and head on different stages of a pipeline: two parameters that stay one."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from rlrun.runner.planning.rank_layout import stages_of_rank
from rlrun.runner.trainer.optim.optimizer import Optimizer
from rlrun.runner.trainer.parameters.parameters import EMBEDDING, HEAD, Parameters
from rlrun.specs.sections.trainer import ParallelSpec


class TiedHead:
    """Both are laid out alike, so each rank of one stage has a partner on the other with the same part."""

    def __init__(self, parameters: Parameters, parallel: ParallelSpec, stages: dist.ProcessGroup) -> None:
        """`stages` are the ranks of the pipeline."""
        self._embedding = parameters.masters.get(EMBEDDING)
        self._head = parameters.masters.get(HEAD)
        self._stages = stages
        last = next(
            rank for rank in range(parallel.pipeline) if parallel.stages - 1 in stages_of_rank(rank, parallel)
        )
        self._partner = last if self._embedding is not None else 0

    def add_gradients(self) -> None:
        """Give both the sum of their gradients."""
        if not all(mine.requires_grad for mine in (self._embedding, self._head) if mine is not None):
            return  # frozen
        if self._embedding is not None and self._head is not None:
            total = _gradient(self._embedding).add_(_gradient(self._head))
            _gradient(self._head).copy_(total)
            return
        for mine in (self._embedding, self._head):
            if mine is not None:
                _gradient(mine).add_(self._exchanged(_gradient(mine)))

    def copy_weights(self) -> None:
        """Make the head the embedding: checkpoints have one of them only."""
        self._copy(self._embedding, self._head)

    def copy_state(self, optimizer: Optimizer) -> None:
        """Make the head's optimizer state the embedding's."""
        state = optimizer.tensors()
        kinds = {key.partition(".")[0] for key in state if key.endswith((f".{EMBEDDING}", f".{HEAD}"))}
        for kind in sorted(kinds):
            self._copy(state.get(f"{kind}.{EMBEDDING}"), state.get(f"{kind}.{HEAD}"))

    def _copy(self, embeddings: torch.Tensor | None, heads: torch.Tensor | None) -> None:
        """Make a tensor of the head, where this rank has it, the embedding's."""
        if embeddings is not None and heads is not None:
            _local(heads).copy_(_local(embeddings))
        elif embeddings is not None:
            dist.send(_local(embeddings).contiguous(), group=self._stages, group_dst=self._partner)
        elif heads is not None:
            received = torch.empty_like(_local(heads))
            dist.recv(received, group=self._stages, group_src=self._partner)
            _local(heads).copy_(received)

    def _exchanged(self, mine: torch.Tensor) -> torch.Tensor:
        """The partner's tensor for mine."""
        theirs = torch.empty_like(mine)
        group, peer = self._stages, self._partner
        exchange = [
            dist.P2POp(dist.isend, mine.contiguous(), group=group, group_peer=peer),
            dist.P2POp(dist.irecv, theirs, group=group, group_peer=peer),
        ]
        for work in dist.batch_isend_irecv(exchange):
            work.wait()
        return theirs


def _gradient(parameter: nn.Parameter) -> torch.Tensor:
    assert parameter.grad is not None
    return _local(parameter.grad)


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to_local() if isinstance(tensor, DTensor) else tensor.detach()

"""The policy as functions of packed sequences: log-probs with and without a gradient."""

import contextlib

import torch
from torch import nn

from rlrun.converters.architecture import Architecture
from rlrun.runner.trainer.batch import Pack
from rlrun.runner.trainer.compat import ParallelDims, get_spmd_context
from rlrun.runner.trainer.head import HeadQuery
from rlrun.runner.trainer.rope import RopeTable


class Policy:
    """A decoder together with the settings of its head."""

    def __init__(
        self,
        decoder: nn.Module,
        model: Architecture,
        dims: ParallelDims | None,
        *,
        device: torch.device,
        temperature: float,
        chunk: int,
    ) -> None:
        self.decoder = decoder
        self.multiple = 1 if dims is None else dims.tp
        """A pack's tokens must divide by this: sequence parallelism splits them evenly."""
        self._rope = RopeTable(model, device)
        self._temperature, self._chunk = temperature, chunk
        self._context = contextlib.nullcontext if dims is None else get_spmd_context(parallel_dims=dims)

    def __call__(self, pack: Pack, entropy_grad: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probs and entropies of the pack's response tokens, `[R]` float32."""
        self.decoder.lm_head.query = HeadQuery(
            pack.rows, pack.targets, self._temperature, self._chunk, entropy_grad
        )
        table = self._rope.rows(pack.positions, max(pack.documents.lengths))
        with self._context():
            outputs: tuple[torch.Tensor, torch.Tensor] = self.decoder(
                pack.tokens, positions=table, attention_masks=pack.documents
            )
        return outputs

    def backward(self, loss: torch.Tensor) -> None:
        """Add the loss's gradients to the parameters'."""
        with self._context():
            loss.backward()

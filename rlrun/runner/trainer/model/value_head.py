"""The head of critics and reward models: returns one number per response token in place of log-probs."""

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.functional import linear

from rlrun.models.architecture import Architecture
from rlrun.runner.trainer.compat.layouts import split_inputs
from rlrun.runner.trainer.model.head import Head
from rlrun.runner.trainer.model.rank_functions import Sum


class ValueHead(Head):
    """A linear map to one number; tensor-parallel ranks split its inputs."""

    @dataclass(kw_only=True, slots=True)
    class Config(Head.Config):
        pass

    def parallelize(self, parallel_dims: Any) -> None:
        """Splits the head's inputs over tensor-parallel ranks, because a single output cannot be split."""
        split_inputs(self)
        super().parallelize(parallel_dims)

    def forward(self, input: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns values `[R]` float32 for `[1, T, hidden]` hidden states, and zeros in place of
        entropies.
        """
        hidden, weight, _ = self._query_inputs(input)
        if self._group is not None:
            hidden = hidden.narrow(1, dist.get_rank(self._group) * weight.shape[1], weight.shape[1])
        values = linear(hidden.float(), weight.float()).squeeze(1)
        if self._group is not None:
            values = Sum.apply(values, self._group)
        return values, torch.zeros_like(values)


def value_head_config(model: Architecture) -> ValueHead.Config:
    """Returns the config of a value head for an architecture."""
    return ValueHead.Config(in_features=model.hidden, out_features=1, param_init={})

"""The critic's head: one number for each response token, in place of the policy's log-probs."""

from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.functional import linear

from rlrun.models.architecture import Architecture
from rlrun.models.tensor_names import HfTensor, hf_tensors
from rlrun.runner.trainer.compat.layouts import split_inputs
from rlrun.runner.trainer.model.head import Head

HEAD = HfTensor("score.weight", (1, 0), "lm_head.weight")
"""Named as Hugging Face's classifiers name theirs."""


class ValueHead(Head):
    """A linear map to one number, the hidden state split over tensor-parallel ranks."""

    @dataclass(kw_only=True, slots=True)
    class Config(Head.Config):
        pass

    def parallelize(self, parallel_dims: Any) -> None:
        """One output cannot be split."""
        split_inputs(self)
        super().parallelize(parallel_dims)

    def forward(self, input: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Values `[R]` float32 from `[1, T, hidden]` hidden states, and zeros in the place of entropies."""
        hidden, weight, _ = self._asked(input)
        if self._group is not None:
            hidden = hidden.narrow(1, dist.get_rank(self._group) * weight.shape[1], weight.shape[1])
        values = linear(hidden.float(), weight.float()).squeeze(1)
        if self._group is not None:
            values = _Sum.apply(values, self._group)
        return values, torch.zeros_like(values)


class _Sum(torch.autograd.Function):
    """Of what the ranks have; each computes the same loss from it."""

    @staticmethod
    def forward(ctx: Any, part: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        total = part.clone()
        dist.all_reduce(total, dist.ReduceOp.SUM, group)
        return total

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grad, None


def value_head_config(model: Architecture) -> ValueHead.Config:
    """For a model of this width."""
    return ValueHead.Config(in_features=model.hidden, out_features=1, param_init={})


def critic_tensors(model: Architecture) -> list[HfTensor]:
    """The policy's tensors, with the value head's in place of its head's."""
    body = [tensor for tensor in hf_tensors(model) if tensor.parameter != HEAD.parameter]
    return [*body, replace(HEAD, shape=(1, model.hidden))]

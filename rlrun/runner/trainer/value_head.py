"""The critic's head: one number for each response token, in place of the policy's log-probs."""

from dataclasses import dataclass, replace

import torch
from torch.distributed.tensor import DTensor
from torch.nn.functional import linear

from rlrun.converters.architecture import Architecture
from rlrun.converters.hf_names import HfTensor, hf_tensors
from rlrun.runner.trainer.compat import Linear
from rlrun.runner.trainer.head import HeadQuery

HEAD = HfTensor("score.weight", (1, 0), "lm_head.weight")
"""Named as Hugging Face's classifiers name theirs."""


class ValueHead(Linear):
    """A linear map to one number; set `query` before calling the model, as for the policy's head."""

    @dataclass(kw_only=True, slots=True)
    class Config(Linear.Config):
        pass

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.query: HeadQuery | None = None

    def forward(self, input: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Values `[R]` float32 from `[1, T, hidden]` hidden states, and zeros in the place of entropies."""
        assert self.query is not None, "set query before calling the model"
        weight = self.weight.to_local() if isinstance(self.weight, DTensor) else self.weight
        hidden = input.flatten(0, 1).index_select(0, self.query.rows)
        values = linear(hidden.float(), weight.float()).squeeze(1)
        return values, torch.zeros_like(values)


def value_head_config(model: Architecture) -> ValueHead.Config:
    """For a model of this width."""
    return ValueHead.Config(in_features=model.hidden, out_features=1, param_init={})


def critic_tensors(model: Architecture) -> list[HfTensor]:
    """The policy's tensors, with the value head's in place of its head's."""
    body = [tensor for tensor in hf_tensors(model) if tensor.parameter != HEAD.parameter]
    return [*body, replace(HEAD, shape=(1, model.hidden))]

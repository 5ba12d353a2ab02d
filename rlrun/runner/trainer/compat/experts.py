"""torchtitan's mixtures of experts, and the exchange of their tokens, for which gloo lacks an operation."""

import types
from typing import Any

import torch
import torch.distributed as dist

from rlrun.runner.trainer.compat.device import ON_CPU

# isort: split
import spmd_types._dist
from torchtitan.models.common.config_utils import make_moe_config, make_routed_experts_config
from torchtitan.models.common.moe import GroupedExperts, TokenChoiceTopKRouter
from torchtitan.models.common.token_dispatcher import AllToAllTokenDispatcher
from torchtitan.models.gpt_oss.moe import GptOssGroupedExperts

__all__ = [
    "AllToAllTokenDispatcher",
    "GptOssGroupedExperts",
    "GroupedExperts",
    "TokenChoiceTopKRouter",
    "make_moe_config",
    "make_routed_experts_config",
]


class _GlooDist(types.ModuleType):
    """`torch.distributed` with an `all_to_all` of tensor lists; gloo only has `all_to_all_single`."""

    def __getattr__(self, name: str) -> Any:
        return getattr(dist, name)

    @staticmethod
    def all_to_all(
        outputs: list[torch.Tensor],
        inputs: list[torch.Tensor],
        group: dist.ProcessGroup | None = None,
        async_op: bool = False,
    ) -> None:
        """Exchanges experts' tokens, always synchronously."""
        assert not async_op
        sizes = [len(part) for part in outputs]
        received = outputs[0].new_empty(sum(sizes), *outputs[0].shape[1:])
        sent = [len(part) for part in inputs]
        dist.all_to_all_single(received, torch.cat(inputs), sizes, sent, group=group)
        for output, part in zip(outputs, received.split(sizes), strict=True):
            output.copy_(part)


if ON_CPU:
    spmd_types._dist.set_dist(_GlooDist("gloo_dist"))

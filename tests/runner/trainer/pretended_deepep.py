"""DeepEP 2's buffer, on CPUs over gloo, by the contract of its docstrings; and torch's fused products of
symmetric memory by their own fallback. `install` makes this process use both.
"""

import sys
import types
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric_memory


@dataclass
class Handle:
    """Which rank each token was sent to."""

    sent: list[torch.Tensor]
    """For each rank the indices of this rank's tokens that went there."""
    received: list[int]
    """From each rank the number of tokens that came here."""
    tokens: int
    num_recv_tokens_per_expert_list: list[int]
    num_sms: int


class Event:
    """The end of an exchange, which has happened."""

    def current_stream_wait(self) -> None:
        pass


class ElasticBuffer:
    """Sends a token once to each rank that has at least one of its experts, and sums what comes back."""

    def __init__(self, group: Any, **settings: Any) -> None:
        self.group, self.num_bytes = group, settings["num_bytes"]
        self.num_max_tokens_per_rank = settings["num_max_tokens_per_rank"]

    @staticmethod
    def get_buffer_size_hint(group: Any, tokens: int, hidden: int, **settings: Any) -> int:
        return dist.get_world_size(group) * tokens * hidden * 2

    def get_theoretical_num_sms(self, num_experts: int, num_topk: int) -> int:
        return 4

    def dispatch(self, x: torch.Tensor, handle: Handle | None = None, **settings: Any) -> Any:
        if handle is not None:
            return self._send(x, handle), None, None, handle, Event()
        assert not settings["do_expand"] and settings["do_cpu_sync"]
        self._check_stride(settings["num_max_tokens_per_rank"], len(x))
        ranks = dist.get_world_size(self.group)
        experts, weights = settings["topk_idx"], settings["topk_weights"]
        local_experts = settings["num_experts"] // ranks
        owners = torch.where(experts < 0, -1, experts // local_experts)
        sent = [(owners == rank).any(1).nonzero()[:, 0] for rank in range(ranks)]
        counts = torch.tensor([len(part) for part in sent])
        received = torch.empty_like(counts)
        dist.all_to_all_single(received, counts, group=self.group)
        handle = Handle(sent, received.tolist(), len(x), [], settings["num_sms"])
        own = self._send(experts, handle) - dist.get_rank(self.group) * local_experts
        own = torch.where((own >= 0) & (own < local_experts), own, -1)
        shares = torch.where(own < 0, 0, self._send(weights, handle))
        handle.num_recv_tokens_per_expert_list = [int((own == i).sum()) for i in range(local_experts)]
        return self._send(x, handle), own, shares, handle, Event()

    def combine(self, x: torch.Tensor, handle: Handle, **settings: Any) -> Any:
        weights = settings.get("topk_weights")
        return self._sum(x, handle), None if weights is None else self._sum(weights, handle), Event()

    def _check_stride(self, stride: int, tokens: int) -> None:
        """Tokens are numbered as rank × stride + index."""
        strides: list[Any] = [None] * dist.get_world_size(self.group)
        dist.all_gather_object(strides, stride, group=self.group)
        assert len(set(strides)) == 1 and tokens <= stride <= self.num_max_tokens_per_rank

    def _send(self, values: torch.Tensor, handle: Handle) -> torch.Tensor:
        output = values.new_empty(sum(handle.received), *values.shape[1:])
        sizes = [len(part) for part in handle.sent]
        parts = values[torch.cat(handle.sent)].contiguous()
        dist.all_to_all_single(output, parts, handle.received, sizes, group=self.group)
        return output

    def _sum(self, values: torch.Tensor, handle: Handle) -> torch.Tensor:
        sizes = [len(part) for part in handle.sent]
        returned = values.new_empty(sum(sizes), *values.shape[1:])
        dist.all_to_all_single(returned, values.contiguous(), sizes, handle.received, group=self.group)
        return values.new_zeros(handle.tokens, *values.shape[1:]).index_add_(
            0, torch.cat(handle.sent), returned
        )


def install() -> None:
    """Installs the package deep_ep, and CPU kernels of torchtitan's and torch's operators."""
    sys.modules["deep_ep"] = package = types.ModuleType("deep_ep")
    package.ElasticBuffer = ElasticBuffer
    from torchtitan.distributed.deepep import deepep

    deepep._lib.impl("dispatch", deepep._dispatch_op_impl, "CPU")
    deepep._lib.impl("combine", deepep._combine_op_impl, "CPU")
    products = symmetric_memory.lib
    products.impl("fused_all_gather_matmul", symmetric_memory._fused_all_gather_matmul_fallback, "CPU")
    products.impl(
        "fused_matmul_reduce_scatter", symmetric_memory._fused_matmul_reduce_scatter_fallback, "CPU"
    )
    real_mm = torch.mm
    torch.mm = lambda a, b, out_dtype=None, **settings: real_mm(a, b, **settings)  # CUDA alone widens

"""What GPUs exchange by other means than NCCL's collectives, on tensors without content: DeepEP's buffer, and
NCCL's symmetric memory.
"""

import sys
import types
from typing import Any

import torch
import torch.distributed._symmetric_memory as symmetric_memory
from torch.distributed.fsdp._fully_shard import _fsdp_collectives

from tests.cuda.recording import RECORDING, WAIT


def install() -> None:
    """Installs the package deep_ep, and replaces what needs a driver."""
    _install_symmetric_memory()
    sys.modules["deep_ep"] = package = types.ModuleType("deep_ep")
    package.ElasticBuffer = _Buffer
    from torchtitan.distributed.deepep import deepep

    deepep._handle_cache = _Handles()
    deepep._permute_tokens = _permute
    torch.library.register_fake("deepep::dispatch", _dispatched, lib=deepep._lib)
    torch.library.register_fake("deepep::combine", _combined, lib=deepep._lib)


class _Handles:
    """The ways back of all exchanges: the number of tokens that a rank sent, which is the same every time."""

    tokens = 0

    def get(self, key: int, default: Any = None) -> "_Handles":
        return self

    pop = get
    num_sms = 4


class _Buffer:
    """DeepEP's buffer, which gives every rank as many tokens as it sends."""

    def __init__(self, group: Any, **settings: Any) -> None:
        self.group, self.num_bytes = group, settings["num_bytes"]
        self.num_max_tokens_per_rank = settings["num_max_tokens_per_rank"]

    @staticmethod
    def get_buffer_size_hint(group: Any, tokens: int, hidden: int, **settings: Any) -> int:
        return tokens * hidden

    def dispatch(self, x: torch.Tensor, **settings: Any) -> Any:
        return x.new_empty(x.shape), None, None, settings["handle"], None

    def combine(self, x: torch.Tensor, topk_weights: torch.Tensor | None = None, **settings: Any) -> Any:
        return x.new_empty(x.shape), None if topk_weights is None else torch.empty_like(topk_weights), None


def _dispatched(  # noqa: PLR0917
    x: torch.Tensor,
    experts: torch.Tensor,
    weights: torch.Tensor,
    num_experts: int,
    stride: int,
    cudagraphable: bool,
) -> tuple[torch.Tensor, ...]:
    """The host waits for the numbers of tokens that come here."""
    assert x.device.type == "cuda" and x.dtype == torch.bfloat16 and len(x) <= stride
    assert weights.dtype == torch.float32
    RECORDING.note(WAIT, "DeepEP's counts")
    counts = torch.empty(num_experts // 2, dtype=torch.int32, device="cpu")
    handle = torch.empty(1, dtype=torch.int64, device="cpu")
    return torch.empty_like(x), torch.empty_like(experts), torch.empty_like(weights), counts, handle


def _combined(x: torch.Tensor, handle: torch.Tensor, will_backward: bool) -> torch.Tensor:
    return torch.empty_like(x)


def _permute(hidden: torch.Tensor, experts: torch.Tensor, scores: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """torchtitan selects experts and scores by a mask, and repeats tokens by counts: three waits."""
    for _ in range(3):
        RECORDING.note(WAIT, "DeepEP's selection")
    rows = torch.arange(len(hidden), device=hidden.device)
    return hidden.index_select(0, rows), scores[:, 0], rows


def _install_symmetric_memory() -> None:
    """Symmetric buffers are ordinary ones, and those that are exchanged must be symmetric."""
    symmetric: list[torch.Tensor] = []

    def init(self: Any, group: Any, backend: str = "NCCL") -> None:
        self._group = group

    def allocate(self: Any, size: Any, *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        symmetric[:] = [*symmetric[-8:], torch.empty(size, dtype=dtype, device=device)]
        return symmetric[-1]

    def rendezvous(tensor: torch.Tensor, group: Any) -> None:
        storage = tensor.untyped_storage()._cdata
        assert any(storage == known.untyped_storage()._cdata for known in symmetric), (
            "memory is not symmetric"
        )
        RECORDING.collectives["symmetric memory"] += 1

    mixin = _fsdp_collectives.SymmMemAllocMixin
    mixin.__init__, mixin.allocate = init, allocate
    symmetric_memory.rendezvous = rendezvous

"""Replacements, in a dry run, for code that depends on tensors' content, on other ranks or on a GPU.

They compute nothing: they create results of the right shapes, which the memory trace records.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import functional

from rlrun.runner.trainer.compat import fusion
from rlrun.runner.trainer.compat.experts import AllToAllTokenDispatcher, GlooDist
from rlrun.runner.trainer.compat.kernels import HAS_TRITON
from rlrun.runner.trainer.compat.meshes import ShardingPropagator
from rlrun.runner.trainer.dry_run.memory_trace import LOGITS, NOTHING, MemoryTrace
from rlrun.runner.trainer.model import head
from rlrun.runner.trainer.model.layers import Experts
from rlrun.runner.trainer.ops.library import as_on_gpu


@contextmanager
def record_logits_apart(trace: MemoryTrace) -> Iterator[None]:
    """Records the storages of the policy's head as logits, in both passes. Does not record the unsharded
    tensors that DTensors create to infer the shapes of results.
    """
    function, shapes = head._LogProbs, "_propagate_tensor_meta_non_cached"
    with ExitStack() as stack:
        for name in ("forward", "backward"):
            recording = staticmethod(trace.record_results_as(LOGITS, getattr(function, name)))
            stack.enter_context(_replaced(function, name, recording))
        unrecorded = trace.record_results_as(NOTHING, getattr(ShardingPropagator, shapes))
        stack.enter_context(_replaced(ShardingPropagator, shapes, unrecorded))
        yield


@contextmanager
def even_routing() -> Iterator[None]:
    """Gives every expert the same number of tokens: the router's choice depends on content."""
    kind, rows = AllToAllTokenDispatcher, [0]
    reorder = kind._local_reorder

    def remember(self: Any, x: torch.Tensor, scores: torch.Tensor, experts: torch.Tensor) -> Any:
        rows[0] = experts.numel()
        return reorder(self, x, scores, experts)

    def splits(self: Any, own_counts: torch.Tensor, all_counts: torch.Tensor, ranks: int) -> Any:
        return all_counts.reshape(-1), _even(rows[0], ranks), _even(rows[0], ranks)

    def counts(tokens_of_experts: torch.Tensor, total: int) -> list[int]:
        return _even(total, len(tokens_of_experts))

    with ExitStack() as stack:
        stack.enter_context(_replaced(Experts, "counts", staticmethod(counts)))
        stack.enter_context(_replaced(kind, "_sync_token_count_exchange", splits))
        stack.enter_context(_replaced(kind, "_local_reorder", remember))
        yield


@contextmanager
def gpu_kernels(trace: MemoryTrace) -> Iterator[None]:
    """Runs the operators that a GPU would run, except Triton's kernels and what torch compiles to such, whose
    results are only allocated.
    """
    exchange = staticmethod(dist.all_to_all)  # NCCL has it
    with ExitStack() as stack:
        stack.enter_context(as_on_gpu())
        stack.enter_context(without_launches())
        stack.enter_context(_replaced(GlooDist, "all_to_all", exchange))
        stack.enter_context(_replaced(functional, "rms_norm", _rms_norm))
        stack.enter_context(_replaced(fusion, "fuses", lambda tensor: tensor.dtype.itemsize == 2))
        stack.enter_context(_replaced(fusion, "compiled", trace.record_only_results))
        yield


@contextmanager
def without_launches() -> Iterator[None]:
    """Launches no Triton kernels; functions that call them, such as fla's, still allocate the results."""
    if not HAS_TRITON:
        yield
        return
    from triton.runtime.jit import KernelInterface  # CPU wheels of torch come without triton

    def launcher(kernel: Any, grid: Any) -> Any:
        return lambda *args, **kwargs: None

    with _replaced(KernelInterface, "__getitem__", launcher):
        yield


@contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Replaces an attribute of a class or module, inherited or not, within the context."""
    is_own = name in vars(owner)
    before = vars(owner).get(name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if is_own:
            setattr(owner, name, before)
        else:
            delattr(owner, name)


def _even(total: int, parts: int) -> list[int]:
    return [total // parts + (part < total % parts) for part in range(parts)]


class _RMSNorm(torch.autograd.Function):
    """Saves what CUDA's fused norm saves for its backward pass; torch has no such norm for the CPU."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight, x.new_empty(x.shape[:-1], dtype=torch.float32))
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, weight, _ = ctx.saved_tensors
        return torch.empty_like(x), torch.empty_like(weight)


def _rms_norm(x: torch.Tensor, shape: Sequence[int], weight: torch.Tensor, eps: float) -> torch.Tensor:
    result: torch.Tensor = _RMSNorm.apply(x, weight)
    return result

"""The only module that touches private or patched symbols of torchtitan 0.3.0 and torch; import it before
torchtitan.

torchtitan picks an accelerator when it is imported and has no CPU mode. Without CUDA its device symbols are
set to the CPU here, and collectives avoid what gloo lacks. With CUDA nothing is changed.
"""

import importlib.util
import sys
import types
import warnings
from collections import defaultdict
from typing import Any

import torch
from torch import nn

ON_CPU = not torch.cuda.is_available()


class _CpuDevice:
    """`torch.cpu` with the functions that torchtitan expects of a device module."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cpu, name)

    def current_device(self) -> int:
        return 0  # torch.cpu gives a string

    def device_count(self) -> int:
        return 1

    def memory_stats(self, device: object = None) -> dict[str, int]:
        return defaultdict(int)

    def reset_peak_memory_stats(self, device: object = None) -> None:
        return None


def _use_cpu() -> None:
    import torchtitan.tools.utils as tools  # imports no other user of device_type

    tools.device_type, tools.device_module = "cpu", _CpuDevice()
    tools.get_device_info = lambda: ("cpu", tools.device_module)
    tools.get_local_device = lambda: torch.device("cpu")
    # The router asks for float32 under autocast, which on CPU is a no-op with a warning.
    warnings.filterwarnings("ignore", message=".*CPU [Aa]utocast.*")


def _spare_triton() -> None:
    """One module of torchtitan imports triton for CUDA kernels that are not used here; CPU wheels have no
    triton.
    """
    name = "torchtitan.distributed.minimal_async_ep.kernels"
    if importlib.util.find_spec("triton") is None and name not in sys.modules:
        stand_in = types.ModuleType(name)
        stand_in.__getattr__ = lambda symbol: None  # type: ignore[method-assign]
        sys.modules[name] = stand_in


if ON_CPU:
    _use_cpu()
_spare_triton()

import torchtitan.distributed.utils as _titan_distributed  # noqa: E402
from torch.distributed.fsdp import FSDPModule  # noqa: E402
from torchtitan.distributed import ParallelDims  # noqa: E402
from torchtitan.distributed.fsdp import apply_fsdp_to_decoder  # noqa: E402
from torchtitan.distributed.full_dtensor import resolve_fsdp_mesh  # noqa: E402
from torchtitan.distributed.spmd_types import spmd_mesh_size  # noqa: E402
from torchtitan.distributed.utils import clip_grad_norm_, get_spmd_context, set_spmd_backend  # noqa: E402
from torchtitan.models.common.decoder_sharding import dense_activation_placement  # noqa: E402
from torchtitan.models.qwen3.sharding import set_qwen3_sharding_config  # noqa: E402
from torchtitan.protocols.sharding import ShardingConfig  # noqa: E402

if ON_CPU:
    _titan_distributed.get_local_device = lambda: torch.device("cpu")

__all__ = [
    "ON_CPU",
    "ParallelDims",
    "clip_grad_norm_",
    "get_spmd_context",
    "set_sharding",
    "set_spmd_backend",
    "shard_data_parallel",
    "spmd_mesh_size",
]


def set_sharding(config: Any, sequence_parallel: bool) -> None:
    """Write the tensor-parallel layout of every module into a model config.

    The head differs from torchtitan's: it gives log-probs, which need no layout, in place of logits.
    """
    set_qwen3_sharding_config(config, enable_sp=sequence_parallel, enable_ep=False)
    import spmd_types as spmd

    replicated = dense_activation_placement(tp=spmd.R)
    config.lm_head.sharding_config = ShardingConfig(
        state_shardings=config.lm_head.sharding_config.state_shardings,
        in_src_shardings={"input": replicated},
        in_dst_shardings={"input": replicated},
    )


def shard_data_parallel(model: nn.Module, dims: ParallelDims, dtype: torch.dtype) -> None:
    """FSDP (HSDP where there are replicas) around each block, the embedding and the head; gradients summed in
    float32.
    """
    mesh, mesh_dims = resolve_fsdp_mesh(dims)
    apply_fsdp_to_decoder(
        model,
        mesh,
        param_dtype=dtype,
        reduce_dtype=torch.float32,
        pp_enabled=False,
        dp_mesh_dims=mesh_dims,
    )
    if ON_CPU:
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.set_force_sum_reduction_for_comms(True)  # gloo cannot scale while it reduces


def flash_attention_cpu(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Causal attention of `[B, N, L, H]` on CPU, keys and values with fewer heads; output and its log-sum-
    exp.
    """
    output, log_sum_exp = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, 0.0, True, scale=scale
    )
    return output, log_sum_exp


def flash_attention_cpu_backward(
    grad: torch.Tensor, saved: tuple[torch.Tensor, ...], scale: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of `flash_attention_cpu` for query, key and value; `saved` are its inputs and its outputs."""
    gradients: tuple[torch.Tensor, torch.Tensor, torch.Tensor] = (
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            grad, *saved, 0.0, True, scale=scale
        )
    )
    return gradients

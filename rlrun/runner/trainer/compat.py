"""Everything that the trainer takes from torchtitan 0.3.0, and every private or patched symbol of it and of
torch.

torchtitan picks an accelerator when it is imported and has no CPU mode. Without CUDA its device symbols are
set to the CPU here, and collectives avoid what gloo lacks. With CUDA nothing is changed.
"""

import importlib.util
import sys
import types
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from rlrun.specs.trainer import ParallelSpec

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
    """Set torchtitan's device symbols, also where modules that are loaded already hold copies of them."""
    import torchtitan.tools.utils as tools

    symbols = {
        "device_type": "cpu",
        "device_module": _CpuDevice(),
        "get_device_info": lambda: ("cpu", tools.device_module),
        "get_local_device": lambda: torch.device("cpu"),
    }
    loaded = [module for name, module in sys.modules.items() if name.startswith("torchtitan.")]
    for module in loaded:
        for name, value in symbols.items():
            if hasattr(module, name):
                setattr(module, name, value)
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


# Checkpoints of one rank need no process group; torch says so at every save and load.
warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")
_spare_triton()
if ON_CPU:
    _use_cpu()

import spmd_types._dist  # noqa: E402
import torchtitan.distributed.fsdp  # noqa: E402
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule  # noqa: E402
from torch.distributed.tensor import DTensor  # noqa: E402
from torch.distributed.tensor._sharding_prop import ShardingPropagator  # noqa: E402
from torch.distributed.tensor.debug import (  # noqa: E402
    _clear_fast_path_sharding_prop_cache,
    _clear_sharding_prop_cache,
)
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402
from torch.utils._triton import has_triton  # noqa: E402
from torchtitan.distributed import ParallelDims  # noqa: E402
from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC  # noqa: E402
from torchtitan.distributed.fsdp import apply_fsdp_to_decoder  # noqa: E402
from torchtitan.distributed.full_dtensor import (  # noqa: E402
    resolve_fsdp_mesh,
    resolve_sparse_fsdp_mesh,
)
from torchtitan.distributed.spmd_types import set_spmd_meshes  # noqa: E402
from torchtitan.distributed.utils import get_spmd_context, set_spmd_backend  # noqa: E402
from torchtitan.models.common.attention import GQAttention, QKVLinear  # noqa: E402
from torchtitan.models.common.config_utils import (  # noqa: E402
    make_moe_config,
    make_routed_experts_config,
)
from torchtitan.models.common.decoder_sharding import (  # noqa: E402
    dense_activation_placement,
    dense_param_placement,
    set_decoder_sharding_config,
)
from torchtitan.models.common.embedding import Embedding  # noqa: E402
from torchtitan.models.common.feed_forward import FeedForward  # noqa: E402
from torchtitan.models.common.linear import Linear, ScaledBiasRowwiseLinear  # noqa: E402
from torchtitan.models.common.moe import GroupedExperts, TokenChoiceTopKRouter  # noqa: E402
from torchtitan.models.common.nn_modules import RMSNorm  # noqa: E402
from torchtitan.models.common.rope import RoPE  # noqa: E402
from torchtitan.models.common.token_dispatcher import AllToAllTokenDispatcher  # noqa: E402
from torchtitan.models.deepseek_v3.model import Attention as LatentAttention  # noqa: E402
from torchtitan.models.deepseek_v3.sharding import (  # noqa: E402
    _set_deepseek_v3_layer_sharding,
)
from torchtitan.models.gpt_oss.model import Attention as SinkAttention  # noqa: E402
from torchtitan.models.gpt_oss.moe import GptOssGroupedExperts  # noqa: E402
from torchtitan.models.gpt_oss.sharding import _set_gpt_oss_layer_sharding  # noqa: E402
from torchtitan.models.qwen3.model import Qwen3Model, Qwen3TransformerBlock  # noqa: E402
from torchtitan.models.qwen3.sharding import _set_qwen3_layer_sharding  # noqa: E402
from torchtitan.protocols.module import Module  # noqa: E402
from torchtitan.protocols.sharding import ShardingConfig  # noqa: E402

__all__ = [
    "HAS_ONEDNN",
    "ON_CPU",
    "AllToAllTokenDispatcher",
    "Embedding",
    "FakeStore",
    "FeedForward",
    "GQAttention",
    "GptOssGroupedExperts",
    "GroupedExperts",
    "LatentAttention",
    "Linear",
    "Module",
    "ParallelDims",
    "QKVLinear",
    "Qwen3Model",
    "Qwen3TransformerBlock",
    "RMSNorm",
    "RoPE",
    "ScaledBiasRowwiseLinear",
    "ShardingPropagator",
    "SinkAttention",
    "TokenChoiceTopKRouter",
    "VarlenCall",
    "checkpoint_activations",
    "forget_meshes",
    "get_spmd_context",
    "has_triton",
    "leave_meshes",
    "local_part",
    "make_moe_config",
    "make_routed_experts_config",
    "mesh_device",
    "onednn_linear",
    "reshard",
    "set_sharding",
    "set_spmd_backend",
    "shard_data_parallel",
    "shard_plain_modules",
    "split_inputs",
    "varlen_backward",
    "varlen_forward",
    "with_local_part",
]


HAS_ONEDNN = ON_CPU and torch.backends.mkldnn.is_available()


def onednn_linear(input: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """`input @ weight.T` in float32 through oneDNN, of any strides; no gradient.

    torch's own float32 product is MKL's, which on AMD processors reaches between 40 and 85 % of this.
    """
    product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(input, weight, None, "none", [], "")
    return product


@dataclass(frozen=True, slots=True)
class VarlenCall:
    """What torch's attention of documents of several lengths gets beside its tensors."""

    query_offsets: torch.Tensor
    key_offsets: torch.Tensor
    longest_queries: int
    longest_keys: int
    scale: float
    window: int
    """Keys that a query sees before its own; -1: all."""


def varlen_forward(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, call: VarlenCall
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output `[T, N, H]` and log-sum-exp of the scores `[N, T]` float32; CUDA alone, half precision."""
    output, log_sums, _ = torch.ops.torch_attn._varlen_attn(
        query,
        key,
        value,
        call.query_offsets,
        call.key_offsets,
        call.longest_queries,
        call.longest_keys,
        call.window == -1,
        call.scale,
        [call.window, 0],
        query.shape[1] != key.shape[1],
    )
    return output, log_sums


def varlen_backward(  # noqa: PLR0917
    grad: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    output: torch.Tensor,
    log_sums: torch.Tensor,
    call: VarlenCall,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients for queries, keys and values of scores whose softmax has this output and log-sum-exp."""
    slopes: tuple[torch.Tensor, torch.Tensor, torch.Tensor] = torch.ops.torch_attn._varlen_attn_backward(
        grad,
        query,
        key,
        value,
        output,
        log_sums,
        call.query_offsets,
        call.key_offsets,
        call.longest_queries,
        call.longest_keys,
        call.window == -1,
        torch.zeros(2, dtype=torch.uint64, device=query.device),  # of a dropout that is off
        call.scale,
        [call.window, 0],
    )
    return slopes


def set_sharding(config: Any, parallel: ParallelSpec) -> None:
    """Write the tensor-, context- and expert-parallel layout of every module into a model config.

    The head differs from torchtitan's: it gives log-probs, which need no layout, in place of logits.
    """
    sequence_parallel = parallel.tensor > 1 and parallel.sequence_parallel
    set_decoder_sharding_config(config, enable_sp=sequence_parallel)
    for layer in config.layers:
        shard = _set_qwen3_layer_sharding
        if isinstance(layer.attention, LatentAttention.Config):
            shard = _set_deepseek_v3_layer_sharding
        elif isinstance(layer.attention, SinkAttention.Config):
            shard = _set_gpt_oss_layer_sharding
        shard(layer, enable_sp=sequence_parallel, enable_ep=parallel.expert > 1)
    import spmd_types as spmd

    replicated = dense_activation_placement(tp=spmd.R)
    config.lm_head.sharding_config = ShardingConfig(
        state_shardings=config.lm_head.sharding_config.state_shardings,
        in_src_shardings={"input": replicated},
        in_dst_shardings={"input": replicated},
    )


def split_inputs(head: Any) -> None:
    """Before a head is parallelised: tensor-parallel ranks are to share out its inputs, not its outputs."""
    import spmd_types as spmd

    weight = {"weight": dense_param_placement(tp=spmd.S(1))}
    head._sharding_config = replace(head._sharding_config, state_shardings=weight)


class _Selective(SelectiveAC):
    """torchtitan's choice, and the attention of this package on CPU."""

    @dataclass(kw_only=True, slots=True)
    class Config(SelectiveAC.Config):
        pass

    def get_save_ops(self) -> set[Any]:
        own = getattr(torch.ops.rlrun_trainer, "attention", None)
        return super().get_save_ops() | ({own.default} if own else set())


def checkpoint_activations(model: nn.Module, kind: str) -> None:
    """Let every layer compute again in the backward pass what "selective" or "full" does not keep."""
    policy = _Selective if kind == "selective" else FullAC
    # nothing in a decoder draws random numbers
    policy.Config(preserve_rng_state=False).build().apply(model)


def shard_data_parallel(
    model: nn.Module, dims: ParallelDims, dtype: torch.dtype, *, on_host: bool = False
) -> None:
    """FSDP (HSDP where there are replicas) around each block, the embedding and the head; gradients summed in
    float32. Experts that are shared out are sharded over the ranks that hold the same ones. `on_host`: shards
    and their gradients lie in host memory.
    """
    mesh, mesh_dims = resolve_fsdp_mesh(dims)
    expert_mesh, expert_mesh_dims = resolve_sparse_fsdp_mesh(dims)
    apply_fsdp_to_decoder(
        model,
        mesh,
        param_dtype=dtype,
        reduce_dtype=torch.float32,
        pp_enabled=dims.pp_enabled,
        cpu_offload=on_host,
        dp_mesh_dims=mesh_dims,
        ep_degree=dims.ep,
        edp_mesh=expert_mesh,
        edp_mesh_dims=expert_mesh_dims,
    )
    if ON_CPU:
        for module in _sharded([model]):
            module.set_force_sum_reduction_for_comms(True)  # gloo cannot scale while it reduces


def shard_plain_modules(model: nn.Module, dims: ParallelDims, dtype: torch.dtype) -> None:
    """The same for modules that know nothing of meshes, by data parallelism alone."""
    mesh, _ = resolve_fsdp_mesh(dims)
    apply_fsdp_to_decoder(model, mesh, param_dtype=dtype, reduce_dtype=torch.float32, pp_enabled=False)
    if ON_CPU:
        for module in _sharded([model]):
            module.set_force_sum_reduction_for_comms(True)


def forget_meshes() -> None:
    """Make torch build everything anew for the next model.

    It remembers the layouts of results, and for another mesh over the same ranks would give the one it knows
    already, which FSDP refuses: policy, critic and teacher have a mesh each.
    """
    _clear_sharding_prop_cache()
    _clear_fast_path_sharding_prop_cache()


def leave_meshes() -> None:
    """Forget the meshes that torchtitan took note of: their process groups are gone."""
    set_spmd_meshes(dense_mesh=None, sparse_mesh=None)


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of a tensor, without a gradient; the same memory."""
    return tensor.detach().to_local() if isinstance(tensor, DTensor) else tensor.detach()


def mesh_device(tensor: torch.Tensor) -> torch.device:
    """The device that a tensor's ranks exchange it on; its own where nobody shares it."""
    return torch.device(tensor.device_mesh.device_type) if isinstance(tensor, DTensor) else tensor.device


def with_local_part(like: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
    """A tensor laid out over the ranks like another, with this part of it here, on whatever device the part
    lies: the public way would move it to the mesh's.
    """
    if not isinstance(like, DTensor):
        return part
    laid_out: torch.Tensor = DTensor(part, like._spec, requires_grad=False)
    return laid_out


def reshard(models: Iterable[nn.Module]) -> None:
    """Give up parameters that were gathered for a forward pass without a backward pass.

    FSDP keeps some of them, and would compute with them after the shards have changed.
    """
    for module in _sharded(models):
        module.reshard()


def _sharded(models: Iterable[nn.Module]) -> Iterator[FSDPModule]:
    return (module for model in models for module in model.modules() if isinstance(module, FSDPModule))


class _GlooDist(types.ModuleType):
    """`torch.distributed` with unequal pieces in `all_to_all`, which gloo has for one tensor only."""

    def __getattr__(self, name: str) -> Any:
        return getattr(dist, name)

    @staticmethod
    def all_to_all(
        outputs: list[torch.Tensor],
        inputs: list[torch.Tensor],
        group: dist.ProcessGroup | None = None,
        async_op: bool = False,
    ) -> None:
        """Experts' tokens; always waits."""
        assert not async_op
        sizes = [len(part) for part in outputs]
        received = outputs[0].new_empty(sum(sizes), *outputs[0].shape[1:])
        sent = [len(part) for part in inputs]
        dist.all_to_all_single(received, torch.cat(inputs), sizes, sent, group=group)
        for output, part in zip(outputs, received.split(sizes), strict=True):
            output.copy_(part)


if ON_CPU:
    # page-locked memory needs a GPU
    torchtitan.distributed.fsdp.CPUOffloadPolicy = partial(CPUOffloadPolicy, pin_memory=False)
    spmd_types._dist.set_dist(_GlooDist("gloo_dist"))

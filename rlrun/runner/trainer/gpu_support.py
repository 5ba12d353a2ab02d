"""Checks that this rank's GPU and packages can run what `[trainer]` and `[trainer.parallel]` ask for."""

from importlib import import_module

import torch
from torch.nn.attention import activate_flash_attention_impl

from rlrun.specs.sections.trainer import ParallelSpec

HOPPER = (9, 0)
"""The compute capability of H100, H200 and H800: the first with the kernels of DeepEP and NCCL's symmetric
memory, and the only major number with those of FlashAttention 3.
"""
DEEPEP = "https://github.com/deepseek-ai/DeepEP"


def check_support(parallel: ParallelSpec, device: torch.device) -> None:
    """Raises ValueError, with the remedy, for a setting that this rank cannot run."""
    if parallel.token_dispatcher == "deepep":
        _check_gpu('token_dispatcher = "deepep"', device, HOPPER)
        _check_deepep()
    if parallel.symmetric_memory:
        _check_gpu("symmetric_memory = true", device, HOPPER)
    if parallel.async_tensor:
        _check_gpu("async_tensor = true", device, (8, 0))


def _check_gpu(setting: str, device: torch.device, capability: tuple[int, int]) -> None:
    if device.type == "cuda" and torch.cuda.get_device_capability(device) >= capability:
        return
    found = torch.cuda.get_device_name(device) if device.type == "cuda" else "a CPU"
    oldest = "Hopper" if capability == HOPPER else "Ampere"
    raise ValueError(
        f"trainer.parallel.{setting} needs GPUs from {oldest} on, and this rank has {found}: remove it"
    )


def _check_deepep() -> None:
    """DeepEP 1, and the branch with HybridEP, have a package of the same name without this class."""
    try:
        import_module("deep_ep").ElasticBuffer  # noqa: B018
    except (ImportError, OSError, AttributeError) as error:
        raise ValueError(
            'trainer.parallel.token_dispatcher = "deepep" needs DeepEP 2, whose package deep_ep cannot be '
            f"used here ({error}): install it from {DEEPEP} on every node of the trainer, or remove "
            "token_dispatcher"
        ) from error


def use_flash_attention(version: str, device: torch.device) -> None:
    """Makes this process use `trainer.flash_attention`. Raises ValueError, with the remedy, if it cannot.

    torch's own kernel of variable-length attention is FlashAttention 2. FlashAttention 3 is a package of its
    own, which torch registers in its place for the whole process, as torchtitan does too.
    """
    if version == "FA2":
        return
    if device.type != "cuda" or torch.cuda.get_device_capability(device)[0] != HOPPER[0]:
        found = torch.cuda.get_device_name(device) if device.type == "cuda" else "a CPU"
        raise ValueError(
            f'trainer.flash_attention = "{version}" needs a Hopper GPU (H100, H200), and this rank has '
            f"{found}: remove trainer.flash_attention"
        )
    try:
        activate_flash_attention_impl(version)
    except (ImportError, RuntimeError) as error:
        raise ValueError(
            f'trainer.flash_attention = "{version}" needs the package flash_attn_3, whose module '
            f"flash_attn_interface cannot be used here ({error}): install it on every node of the trainer, "
            "or remove trainer.flash_attention"
        ) from error


def use_server_kernels() -> None:
    """Makes this process compute with the server's kernels. Raises ValueError if SGLang cannot be
    imported.

    Servers with `rl_on_policy_target` replace torch's products, means and log-softmax on CUDA by kernels that
    sum a row in one order, whatever rows are beside it: DeepGEMM's where it is installed and takes the
    shapes, else Triton's. torchtitan's `set_batch_invariance` takes Triton's from another package
    (batch_invariant_ops), whose products need not be DeepGEMM's. It also sets NCCL's variables: those order
    sums over ranks, of which a forward pass without tensor parallelism has none.
    """
    try:
        from sglang.srt.batch_invariant_ops import enable_batch_invariant_mode  # SGLang is optional
    except ImportError as error:
        raise ValueError(
            "true_on_policy on GPUs: the trainer computes with SGLang's kernels, and SGLang cannot be "
            f"imported here ({error}): pip install 'rlrun[run,sglang]' on every node, or remove the key"
        ) from error
    enable_batch_invariant_mode()
    # the head's gradients are added in place, by a product that is not replaced
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False

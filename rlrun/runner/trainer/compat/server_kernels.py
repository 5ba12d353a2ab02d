"""SGLang's batch-invariant kernels in place of torch's: engines compute with them if `true_on_policy` is set.

Servers with `rl_on_policy_target` replace torch's products, means and log-softmax on CUDA by kernels that sum
a row in one order, whatever rows are beside it: DeepGEMM's where it is installed and takes the shapes, else
Triton's. torchtitan's `set_batch_invariance` takes Triton's from another package (batch_invariant_ops), whose
products need not be DeepGEMM's. It also sets NCCL's variables: those order sums over ranks, of which a
forward pass without tensor parallelism has none.
"""

import torch


def use_server_kernels() -> None:
    """Makes this process compute with the server's kernels. Raises ValueError if SGLang cannot be
    imported.
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

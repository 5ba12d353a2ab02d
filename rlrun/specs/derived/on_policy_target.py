"""Decides how `true_on_policy` is kept on GPUs: SGLang servers with `rl_on_policy_target`.

The trainer computes with the server's kernels, and rounds where the server rounds (docs/true-on-policy.md).
"""

from typing import Any

from rlrun.specs.sections.job import Spec

SERVER_ARGUMENTS = {
    "rl_on_policy_target": "fsdp",
    "enable_deterministic_inference": True,
    "attention_backend": "fa3",
}
"""What rlrun adds to the arguments of the policy's servers."""


def rounds_as_target(spec: Spec) -> bool:
    """Returns whether the trainer rounds where SGLang's `rl_on_policy_target` rounds."""
    return spec.true_on_policy and bool(spec.cluster.gpus_per_node)


def target_arguments(spec: Spec) -> dict[str, Any]:
    """Returns the arguments that make the policy's servers round as the trainer does."""
    return SERVER_ARGUMENTS if rounds_as_target(spec) else {}

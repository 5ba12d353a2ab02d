"""How long a sequence can get under a spec."""

from rlrun.specs.job import Spec


def longest_sample(spec: Spec) -> int:
    """Prompt and response at their longest, in training or in any evaluation; tokens."""
    fallback = spec.eval.max_response_tokens or spec.rollout.max_response_tokens
    evaluated = [dataset.max_response_tokens or fallback for dataset in spec.eval.datasets]
    return spec.rollout.max_prompt_tokens + max([spec.rollout.max_response_tokens, *evaluated])

"""The maximum lengths of prompts, responses and samples under a spec."""

from rlrun.specs.sections.job import Spec
from rlrun.specs.sections.rollout import USUAL_PROMPT_TOKENS


def longest_response(spec: Spec) -> int:
    """Returns the maximum length of a response in tokens, in training and in all evaluations."""
    fallback = spec.eval.given("max_response_tokens") or spec.rollout.max_response_tokens
    evaluated = [dataset.given("max_response_tokens") or fallback for dataset in spec.eval.datasets]
    return max([spec.rollout.max_response_tokens, *evaluated])


def longest_prompt(spec: Spec, positions: int | None) -> int:
    """Returns the maximum length of a prompt in tokens, for a spec that may leave it open.

    That is the spec's own limit, or the space that the longest response leaves in the model and in the KV
    cache. `positions`: maximum length of the model in tokens; None where config.json has not been read.
    """
    given: int | None = spec.rollout.given("max_prompt_tokens")
    if given is not None:
        return given
    limits = [limit for limit in (positions, spec.engine.max_cache_tokens) if limit is not None]
    return max(1, min([USUAL_PROMPT_TOKENS, *(limit - longest_response(spec) for limit in limits)]))


def longest_sample(spec: Spec, positions: int | None) -> int:
    """Returns the maximum length of a sample in tokens, in training and in all evaluations: the longest
    prompt with the longest response.
    """
    prompt, response = longest_prompt(spec, positions), spec.rollout.max_response_tokens
    evaluated = [
        (dataset.given("max_prompt_tokens") or spec.eval.given("max_prompt_tokens") or prompt)
        + (dataset.given("max_response_tokens") or spec.eval.given("max_response_tokens") or response)
        for dataset in spec.eval.datasets
    ]
    return max([prompt + response, *evaluated])


def resolved_sample(spec: Spec) -> int:
    """Returns the maximum length of a sample in tokens, in training and in all evaluations, of a spec whose
    keys are resolved.
    """
    trained = spec.rollout.sample_tokens(spec.rollout.max_response_tokens)
    evaluated = [each.max_prompt_tokens + each.max_response_tokens for each in spec.eval.datasets]
    return max([trained, *evaluated])

"""How long a prompt, a response and a sequence can get under a spec."""

from rlrun.specs.sections.job import Spec
from rlrun.specs.sections.rollout import USUAL_PROMPT_TOKENS


def longest_response(spec: Spec) -> int:
    """Returns the tokens of the longest response, in training or in any evaluation."""
    fallback = spec.eval.max_response_tokens or spec.rollout.max_response_tokens
    evaluated = [dataset.max_response_tokens or fallback for dataset in spec.eval.datasets]
    return max([spec.rollout.max_response_tokens, *evaluated])


def longest_prompt(spec: Spec, positions: int | None = None) -> int:
    """Returns the tokens of the longest prompt: the spec's own limit, or what the longest response leaves.

    `positions`: how many tokens the model holds; None where its config.json has not been read.
    """
    if spec.rollout.max_prompt_tokens is not None:
        return spec.rollout.max_prompt_tokens
    rooms = [room for room in (positions, spec.engine.max_cache_tokens) if room is not None]
    return max(1, min([USUAL_PROMPT_TOKENS, *(room - longest_response(spec) for room in rooms)]))


def longest_sample(spec: Spec, positions: int | None = None) -> int:
    """Returns the tokens of the longest prompt with the longest response."""
    return longest_prompt(spec, positions) + longest_response(spec)


def fit_to_model(spec: Spec, positions: int | None) -> Spec:
    """Returns the spec with `rollout.max_prompt_tokens` set to what its model has room for."""
    rollout = spec.rollout.model_copy(update={"max_prompt_tokens": longest_prompt(spec, positions)})
    return spec.model_copy(update={"rollout": rollout})

"""Describes the limits of a sample in a sentence."""

from rlrun.specs.derived.lengths import longest_response, resolved_sample
from rlrun.specs.sections.job import Spec


def sample_limits(spec: Spec, *, rollout: bool) -> str:
    """Returns a sentence with the limits of a sample, and with what happens to rows that exceed them.

    `rollout`: whether the policy generates the responses; otherwise the rows contain them.
    """
    if (server := spec.eval.server) is not None:
        return (
            f"an answer may have {longest_response(spec)} tokens, prompts are not counted; the server may "
            f"take {server.timeout:g} s, and a request is repeated for {server.retry_seconds:g} s"
        )
    settings = spec.rollout
    prompt, response = settings.max_prompt_tokens, settings.max_response_tokens
    length_limits = (
        f"{settings.sample_tokens(response)} tokens: a prompt of {prompt} (longer ones are dropped)"
    )
    if not rollout:
        return (
            f"a demonstration may have {length_limits}, and a response of {response} "
            "(a longer one is a broken row)"
        )
    return f"a sample may have {length_limits}, and a response of {response}{_turns(spec)}{_time(spec)}"


def _turns(spec: Spec) -> str:
    if spec.rollout.function.type == "single_turn" and spec.rollout.max_turn_tokens is None:
        return ""
    return f" over all turns, {spec.rollout.turn_tokens(spec.rollout.max_response_tokens)} per turn"


def _time(spec: Spec) -> str:
    """Returns the time limit, with the limits of evaluations where their responses may be longer."""
    rollout, longest, sample = spec.rollout, longest_response(spec), resolved_sample(spec)
    seconds = f"; it may take {rollout.seconds_for(rollout.max_response_tokens):g} s"
    if sample == rollout.sample_tokens(rollout.max_response_tokens):
        return seconds
    return (
        f"{seconds} (in evaluations {sample} tokens, with a response of {longest}, "
        f"and {rollout.seconds_for(longest):g} s)"
    )

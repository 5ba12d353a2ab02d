"""Rules of `[rollout]`: limits on tokens and groups."""

from collections.abc import Iterator

from rlrun.specs.derived.lengths import longest_response
from rlrun.specs.problems.findings import Finding
from rlrun.specs.problems.positions import KeyPath
from rlrun.specs.rules.shared_rules import Rule, no_effect
from rlrun.specs.sections.job import Spec


def oversampling(spec: Spec) -> Iterator[Finding]:
    """At least as many groups must be submitted as a batch needs."""
    oversample, batch = spec.rollout.given("oversample"), spec.rollout.batch_size
    if oversample is not None and oversample < batch:
        message = f"must be at least rollout.batch_size = {batch}, found {oversample}"
        related = (("rollout", "batch_size"),)
        yield Finding(
            ("rollout", "oversample"), message, "raise it, or remove it", None, oversample, related=related
        )


def token_limits(spec: Spec) -> Iterator[Finding]:
    """Limits on tokens must not contradict each other, and sampling needs at least one candidate token."""
    rollout = spec.rollout
    if rollout.min_response_tokens > rollout.max_response_tokens:
        minimum, maximum = rollout.min_response_tokens, rollout.max_response_tokens
        message = f"must be at most rollout.max_response_tokens = {maximum}, found {minimum}"
        cure = "lower it, or raise max_response_tokens"
        related = (("rollout", "max_response_tokens"),)
        yield Finding(("rollout", "min_response_tokens"), message, cure, found=minimum, related=related)
    turn = rollout.max_turn_tokens
    single = rollout.function.type == "single_turn"
    if turn is not None and single and turn >= longest_response(spec):
        why = "a single_turn response has one turn, which max_response_tokens limits"
        yield no_effect(("rollout", "max_turn_tokens"), why, "remove it", (("rollout", "function", "type"),))
    elif turn is not None and turn > longest_response(spec):
        message = f"must be at most max_response_tokens = {longest_response(spec)}, found {turn}"
        cure = "lower it, or raise max_response_tokens, which limits all turns together"
        lengths: tuple[KeyPath, ...] = (("rollout", "max_response_tokens"), ("eval", "max_response_tokens"))
        yield Finding(("rollout", "max_turn_tokens"), message, cure, found=turn, related=lengths)
    if rollout.top_k == 0:
        message = "must be positive, or -1 for no limit, found 0"
        yield Finding(("rollout", "top_k"), message, "write -1 to sample from all tokens", "-1", 0)


def concurrency(spec: Spec) -> Iterator[Finding]:
    """The limit on concurrent samples leaves room for a group."""
    limit, size = spec.rollout.max_concurrency, spec.rollout.samples_per_prompt
    if limit is not None and limit < size:
        message = f"must be at least rollout.samples_per_prompt = {size}, found {limit}"
        cure = "raise it: the samples of a prompt are generated together"
        related = (("rollout", "samples_per_prompt"),)
        yield Finding(("rollout", "max_concurrency"), message, cure, None, limit, related=related)


ROLLOUT_RULES: tuple[Rule, ...] = (oversampling, token_limits, concurrency)

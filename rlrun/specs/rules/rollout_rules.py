"""Rules of `[rollout]`: limits on tokens and groups."""

from collections.abc import Iterator

from rlrun.specs.derived.lengths import longest_response
from rlrun.specs.problems.findings import Finding
from rlrun.specs.problems.positions import KeyPath
from rlrun.specs.rules.shared_rules import Rule, no_effect
from rlrun.specs.sections.job import Spec
from rlrun.specs.sections.section import Section


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
    """Limits on tokens must not contradict each other."""
    rollout = spec.rollout
    if rollout.min_response_tokens > rollout.max_response_tokens:
        minimum, maximum = rollout.min_response_tokens, rollout.max_response_tokens
        message = f"must be at most rollout.max_response_tokens = {maximum}, found {minimum}"
        cure = "lower it, or raise max_response_tokens"
        related = (("rollout", "max_response_tokens"),)
        yield Finding(("rollout", "min_response_tokens"), message, cure, found=minimum, related=related)
    turn = rollout.max_turn_tokens
    single = all(function.type == "single_turn" for function in spec.functions)
    if turn is not None and single and turn >= longest_response(spec):
        why = "a single_turn response has one turn, which max_response_tokens limits"
        yield no_effect(("rollout", "max_turn_tokens"), why, "remove it", (("rollout", "function", "type"),))
    elif turn is not None and turn > longest_response(spec):
        message = f"must be at most max_response_tokens = {longest_response(spec)}, found {turn}"
        cure = "lower it, or raise max_response_tokens, which limits all turns together"
        lengths: tuple[KeyPath, ...] = (("rollout", "max_response_tokens"), ("eval", "max_response_tokens"))
        yield Finding(("rollout", "max_turn_tokens"), message, cure, found=turn, related=lengths)


def candidates(spec: Spec) -> Iterator[Finding]:
    """Sampling needs at least one candidate token."""
    tables: list[tuple[KeyPath, Section]] = [(("rollout",), spec.rollout), (("eval",), spec.eval)]
    tables += [(("eval", "datasets", number), each) for number, each in enumerate(spec.eval.datasets)]
    for table, section in tables:
        if section.given("top_k") == 0:
            message = "must be positive, or -1 for no limit, found 0"
            yield Finding((*table, "top_k"), message, "write -1 to sample from all tokens", "-1", 0)


def evaluated_lengths(spec: Spec) -> Iterator[Finding]:
    """A minimum that an evaluation sets is at most its maximum."""
    section = spec.eval
    longest = section.given("max_response_tokens") or spec.rollout.max_response_tokens
    tables: list[tuple[KeyPath, int | None, int]] = [
        (("eval",), section.given("min_response_tokens"), longest)
    ]
    for number, dataset in enumerate(section.datasets):
        minimum = dataset.given("min_response_tokens")
        maximum = dataset.given("max_response_tokens") or longest
        tables.append((("eval", "datasets", number), minimum, maximum))
    for table, minimum, maximum in tables:
        if minimum is not None and minimum > maximum:
            message = f"must be at most the evaluation's max_response_tokens = {maximum}, found {minimum}"
            cure = "lower it, or raise max_response_tokens"
            yield Finding((*table, "min_response_tokens"), message, cure, found=minimum)


def staleness(spec: Spec) -> Iterator[Finding]:
    """Samples that are generated between two updates of the weights may be as stale as they are then."""
    limit, interval = spec.rollout.max_staleness, spec.rollout.weight_update_interval
    drops_stale = spec.rollout.mode == "async" or spec.rollout.partial
    if drops_stale and limit < interval:
        message = f"must be at least rollout.weight_update_interval = {interval}, found {limit}"
        cure = f"set max_staleness = {interval}: engines are up to {interval - 1} versions behind at a start"
        related = (("rollout", "weight_update_interval"),)
        yield Finding(("rollout", "max_staleness"), message, cure, str(interval), limit, related=related)


def concurrency(spec: Spec) -> Iterator[Finding]:
    """The limit on concurrent samples leaves room for a group."""
    limit, size = spec.rollout.max_concurrency, spec.rollout.samples_per_prompt
    if limit is not None and limit < size:
        message = f"must be at least rollout.samples_per_prompt = {size}, found {limit}"
        cure = "raise it: the samples of a prompt are generated together"
        related = (("rollout", "samples_per_prompt"),)
        yield Finding(("rollout", "max_concurrency"), message, cure, None, limit, related=related)


def probe(spec: Spec) -> Iterator[Finding]:
    """A prompt has more samples than its first ones."""
    first, size = spec.rollout.probe_samples, spec.rollout.samples_per_prompt
    if first is not None and first >= size:
        message = f"must be below rollout.samples_per_prompt = {size}, found {first}"
        related = (("rollout", "samples_per_prompt"),)
        yield Finding(
            ("rollout", "probe_samples"), message, "lower it, or remove it", None, first, related=related
        )


ROLLOUT_RULES: tuple[Rule, ...] = (
    oversampling,
    token_limits,
    candidates,
    evaluated_lengths,
    staleness,
    concurrency,
    probe,
)

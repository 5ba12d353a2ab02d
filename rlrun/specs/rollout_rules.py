"""Rules of `[rollout]`: something to sample, and modes that their other settings fit."""

from collections.abc import Iterator

from rlrun.specs.job import Spec
from rlrun.specs.lengths import longest_response
from rlrun.specs.positions import KeyPath
from rlrun.specs.problems import Finding
from rlrun.specs.rules import Rule, given, no_effect


def oversampling(spec: Spec) -> Iterator[Finding]:
    """At least as many groups are submitted as are needed."""
    oversample, batch = spec.rollout.oversample, spec.rollout.batch_size
    if oversample is not None and oversample < batch:
        message = f"must be at least rollout.batch_size = {batch}, found {oversample}"
        others = (("rollout", "batch_size"),)
        yield Finding(
            ("rollout", "oversample"), message, "raise it, or leave it out", None, oversample, others=others
        )


def token_limits(spec: Spec) -> Iterator[Finding]:
    """Sampling settings that leave something to sample."""
    rollout = spec.rollout
    if rollout.min_response_tokens > rollout.max_response_tokens:
        message = f"must be at most max_response_tokens = {rollout.max_response_tokens}"
        others = (("rollout", "max_response_tokens"),)
        yield Finding(
            ("rollout", "min_response_tokens"), message, found=rollout.min_response_tokens, others=others
        )
    turn = rollout.max_turn_tokens
    if turn is not None and rollout.function.type == "single_turn":
        why = "a response of single_turn is one turn, which max_response_tokens limits"
        yield no_effect(("rollout", "max_turn_tokens"), why, "remove it", (("rollout", "function", "type"),))
    elif turn is not None and turn > longest_response(spec):
        message = f"must be at most max_response_tokens = {longest_response(spec)}, which is for all turns"
        lengths: tuple[KeyPath, ...] = (("rollout", "max_response_tokens"), ("eval", "max_response_tokens"))
        yield Finding(("rollout", "max_turn_tokens"), message, found=turn, others=lengths)
    if rollout.top_k == 0:
        yield Finding(("rollout", "top_k"), "0 leaves nothing to sample from", "-1 turns it off", "-1", 0)


def asynchronous(spec: Spec) -> Iterator[Finding]:
    """Engines that never wait need devices of their own, and give no order to rely on."""
    mode: tuple[KeyPath, ...] = (("rollout", "mode"),)
    if spec.rollout.mode == "sync":
        if given(spec.rollout, "max_staleness") and not spec.rollout.partial:
            why = 'without mode = "async" or partial every sample is made by the weights that are trained'
            yield no_effect(("rollout", "max_staleness"), why, "remove it", mode)
        if given(spec.rollout, "weight_update"):
            why = 'without mode = "async" nothing is generated while weights change'
            yield no_effect(("rollout", "weight_update"), why, "remove it", mode)
        return
    if spec.rollout.partial:
        why = 'with mode = "async" nothing is ever stopped, and samples go on by newer weights anyway'
        yield no_effect(("rollout", "partial"), why, "remove it", mode)
    if spec.cluster.placement != "disaggregated":
        message = "engines that work while the trainer does need devices of their own"
        cure = 'set cluster.placement = "disaggregated"'
        yield Finding(mode[0], message, cure, found="async", others=(("cluster", "placement"),))
    if spec.deterministic:
        message = "what an asynchronous job trains on depends on timing"
        yield Finding(("deterministic",), message, 'remove it, or use mode = "sync"', found=True, others=mode)


def partial(spec: Spec) -> Iterator[Finding]:
    """A buffer where there is one, and nothing that depends on timing where it must not."""
    path: KeyPath = ("rollout", "partial")
    if not spec.rollout.partial:
        for key in ("mask_off_policy", "buffer"):
            if given(spec.rollout, key):
                why = "without partial = true a step keeps nothing for the next"
                yield no_effect(("rollout", key), why, "remove it", (path,))
    elif spec.deterministic:
        message = "what a step leaves unfinished depends on timing"
        yield Finding(
            ("deterministic",), message, "remove it, or rollout.partial", found=True, others=(path,)
        )
    if spec.deterministic and spec.rollout.max_concurrency is not None:
        why = "a deterministic job asks for whole waves"
        cure = "remove it; engine.max_running bounds what one engine decodes together"
        yield no_effect(("rollout", "max_concurrency"), why, cure, (("deterministic",),))
    limit, size = spec.rollout.max_concurrency, spec.rollout.samples_per_prompt
    if limit is not None and limit < size:
        message = f"must be at least rollout.samples_per_prompt = {size}: samples of a prompt go together"
        others = (("rollout", "samples_per_prompt"),)
        yield Finding(("rollout", "max_concurrency"), message, None, None, limit, others=others)


ROLLOUT_RULES: tuple[Rule, ...] = (oversampling, token_limits, asynchronous, partial)

"""Rules that depend on what the spec's algorithm needs: the batch equation, the layout, rewards, SFT."""

from collections.abc import Callable, Iterator
from typing import Protocol

from rlrun.specs.batch import BATCH_KEYS, batch_numbers, nearest_batches
from rlrun.specs.companion_rules import (
    CompanionDemands,
    critic_alone,
    critic_of_transformers,
    idle_companions,
    layouts,
    served_companions,
    teacher,
    teacher_revision,
)
from rlrun.specs.filter_rules import FilterDemands, lone_samples, removed_before, unrewarded
from rlrun.specs.job import Spec
from rlrun.specs.layout import layout_of
from rlrun.specs.lengths import longest_sample
from rlrun.specs.optimizer_rules import optimizer_sections
from rlrun.specs.positions import KeyPath
from rlrun.specs.problems import Finding, dotted
from rlrun.specs.rules import given, no_effect
from rlrun.specs.term_rules import (
    TermDemands,
    bootstrapping,
    old_log_probs,
    pairs,
    truncated_sampling,
)

LAYOUT_KEYS: tuple[KeyPath, ...] = (
    ("cluster", "gpus_per_node"),
    ("cluster", "nodes"),
    ("cluster", "placement"),
    ("engine", "count"),
    ("trainer", "parallel", "fsdp"),
    ("trainer", "parallel", "replicate"),
    ("trainer", "parallel", "tensor"),
    ("trainer", "parallel", "context"),
    ("trainer", "parallel", "pipeline"),
    ("engine", "tensor"),
)
DEMONSTRATION_KEYS = {"max_prompt_tokens", "max_response_tokens"}
"""The keys of `[rollout]` that demonstrations heed too."""


class Demands(CompanionDemands, FilterDemands, TermDemands, Protocol):
    """The part of an algorithm's needs (rlrun.plugins.types.Needs) that rules look at."""


Rule = Callable[[Spec, Demands], Iterator[Finding]]


def batch_equation(spec: Spec, demands: Demands) -> Iterator[Finding]:
    """P·n = G·S, and every data rank gets as many samples."""
    try:
        numbers = batch_numbers(spec, demands.rollout)
    except ValueError as error:
        only_steps = spec.trainer.optimizer_steps and not spec.trainer.global_batch_size
        path = BATCH_KEYS[1] if only_steps else BATCH_KEYS[0]
        yield Finding(path, str(error), nearest_batches(spec, demands.rollout), others=BATCH_KEYS)
        return
    parallel = spec.trainer.parallel
    if numbers.global_batch_size % parallel.data_degree:
        message = (
            f"G = {numbers.global_batch_size} samples do not split over {parallel.data_degree} data ranks "
            f"(fsdp {parallel.fsdp} × replicate {parallel.replicate})"
        )
        cure = nearest_batches(spec, demands.rollout)
        yield Finding(BATCH_KEYS[0], message, cure, others=(*BATCH_KEYS, *LAYOUT_KEYS[4:6]))


def layout(spec: Spec, demands: Demands) -> Iterator[Finding]:
    """The GPUs asked for are there, and used."""
    try:
        layout_of(spec, demands.rollout)
    except ValueError as error:
        cure = "change trainer.parallel, engine.count, engine.tensor or cluster.gpus_per_node"
        yield Finding(LAYOUT_KEYS[0], str(error), cure, None, spec.cluster.gpus_per_node, others=LAYOUT_KEYS)


def groups(spec: Spec, demands: Demands) -> Iterator[Finding]:
    """Groups big enough to compare."""
    if demands.rollout and demands.group_relative and spec.rollout.samples_per_prompt < 2:
        message = f"{spec.algorithm.type} compares the samples of a group: a group of one has no advantage"
        yield Finding(("rollout", "samples_per_prompt"), message, "at least 2; 8 is common", found=1)


def rewards(spec: Spec, demands: Demands) -> Iterator[Finding]:
    """Something tells good samples from bad ones."""
    if demands.rollout and demands.rewards and not spec.rewards:
        message = f"{spec.algorithm.type} learns from rewards, and there is none"
        cure = 'add a table [[rewards]] with `type = "…"` (rlrun plugins list)'
        yield Finding(("rewards",), message, cure, at_value=False)


def without_rollouts(spec: Spec, demands: Demands) -> Iterator[Finding]:
    """An algorithm without rollouts has no engine, reward or filter: settings of these would do nothing."""
    if demands.rollout:
        return
    sections = ("rewards", "filters", "scoring", "engine", "eval", "fault_tolerance")
    paths: list[KeyPath] = [(name,) for name in sections if given(spec, name) and getattr(spec, name) != ()]
    paths += [("rollout", name) for name in sorted(spec.rollout.model_fields_set - DEMONSTRATION_KEYS)]
    paths += [("trainer", name) for name in ("optimizer_steps",) if given(spec.trainer, name)]
    paths += [("cluster", "placement")] if given(spec.cluster, "placement") else []
    paths += [("debug",)] if given(spec, "debug") else []
    for path in paths:
        why = f"{spec.algorithm.type} trains on demonstrations and generates nothing"
        yield no_effect(path, why, f"remove {dotted(path)}")


def cache_size(spec: Spec, demands: Demands) -> Iterator[Finding]:
    """The KV cache holds at least one sample."""
    cache, sample = spec.engine.max_cache_tokens, longest_sample(spec)
    if demands.rollout and cache is not None and cache < sample:
        message = f"{cache} tokens of KV cache do not hold one sample of {sample} (prompt and response)"
        others = (("rollout", "max_prompt_tokens"), ("rollout", "max_response_tokens"))
        yield Finding(
            ("engine", "max_cache_tokens"), message, f"at least {sample}", found=cache, others=others
        )


def head_precision(spec: Spec, demands: Demands) -> Iterator[Finding]:
    """A float32 head changes something: trainer or engines compute the other layers in bfloat16."""
    sections = (spec.engine, *spec.engines) if demands.rollout else ()
    computed = {spec.trainer.dtype, *(section.dtype for section in sections)}
    if spec.trainer.head_dtype == "float32" and computed == {"float32"}:
        why = "logits are float32 without it, as trainer and engines compute in float32"
        others: tuple[KeyPath, ...] = (("trainer", "dtype"), ("engine", "dtype"))
        yield no_effect(("trainer", "head_dtype"), why, "remove it", others)


def warm_up(spec: Spec, demands: Demands) -> Iterator[Finding]:
    """The learning rate reaches its peak, and does not fall before."""
    try:
        each = batch_numbers(spec, demands.rollout).optimizer_steps
    except ValueError:
        return
    others = (*BATCH_KEYS, ("trainer", "steps"))
    for name, section in optimizer_sections(spec):
        alone = spec.critic.only_steps if name == "trainer" else 0
        steps = ((spec.trainer.steps or 0) - alone) * each
        rising, falling = section.warmup_steps, section.decay_steps or 0
        if steps > 0 and rising >= steps:
            message = f"the job has {steps} optimizer steps: a warm-up of {rising} never ends"
            path: KeyPath = (name, "warmup_steps")
            yield Finding(path, message, f"fewer than {steps}", None, rising, others=others)
        elif steps > 0 and section.schedule == "wsd" and rising + falling > steps:
            message = f"the job has {steps} optimizer steps, fewer than warm-up and decay together"
            path = (name, "decay_steps")
            cure, both = f"at most {steps - rising}", (*others, (name, "warmup_steps"))
            yield Finding(path, message, cure, None, falling, others=both)


def answers(spec: Spec, demands: Demands) -> Iterator[Finding]:
    """Answers in the rows are read where they are trained on."""
    for key, wanted in (("response_key", not demands.rollout), ("rejected_key", demands.pairs)):
        if spec.data.type == "jsonl" and not wanted and spec.data.params.get(key) is not None:
            why = f"{spec.algorithm.type} does not train on the rows' answers"
            if not demands.rollout:
                why = f"{spec.algorithm.type} does not compare answers"
            yield no_effect(("data", key), why, "remove it", (("data", "type"),))


ALGORITHM_RULES: tuple[Rule, ...] = (
    batch_equation,
    layout,
    groups,
    rewards,
    without_rollouts,
    old_log_probs,
    truncated_sampling,
    bootstrapping,
    pairs,
    lone_samples,
    unrewarded,
    removed_before,
    cache_size,
    head_precision,
    warm_up,
    answers,
    idle_companions,
    teacher,
    served_companions,
    teacher_revision,
    layouts,
    critic_alone,
    critic_of_transformers,
)

"""Rules that depend on what the algorithm needs: the batch equation, layout, rewards, filters, schedules."""

from collections.abc import Callable, Iterator

from rlrun.specs.derived.batch_equation import BATCH_KEYS, batch_numbers, nearest_batches
from rlrun.specs.derived.engine_layout import layout_of
from rlrun.specs.derived.lengths import longest_sample
from rlrun.specs.derived.sampling_mask import cuts_vocabulary, records_mask
from rlrun.specs.derived.sglang_arguments import flag_name
from rlrun.specs.needs import Needs
from rlrun.specs.problems.codes import Code
from rlrun.specs.problems.findings import Finding
from rlrun.specs.problems.positions import KeyPath
from rlrun.specs.rules.auxiliary_rules import (
    compared_tokens,
    critic_only_steps,
    layouts,
    served_divergence,
    teacher,
    teacher_prompt,
)
from rlrun.specs.rules.shared_rules import is_given, no_effect
from rlrun.specs.rules.term_rules import interpolated_log_probs, log_ratio_penalty, replayed_routing
from rlrun.specs.sections.job import Spec

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
    ("engine", "groups"),
)


Rule = Callable[[Spec, Needs], Iterator[Finding]]
_BY_REWARD = {"nonzero_std", "reward_range", "online_difficulty"}
"""The filters shipped with rlrun that only read rewards."""
_MASK: KeyPath = ("rollout", "sampling_mask")
_TOP_P: KeyPath = ("rollout", "top_p")
_TOP_K: KeyPath = ("rollout", "top_k")
_CAP = "sampling-mask-max-tokens"
_SGLANG_CAP = 4096
"""SGLang's own value of that argument."""
_OFF = "or set rollout.sampling_mask = false with an algorithm.correction"


def batch_equation(spec: Spec, needs: Needs) -> Iterator[Finding]:
    """P·n = G·S holds, and G samples split evenly over the data ranks."""
    try:
        numbers = batch_numbers(spec, needs.rollout)
    except ValueError as error:
        only_steps = is_given(spec.trainer, "optimizer_steps") and not is_given(
            spec.trainer, "global_batch_size"
        )
        path = BATCH_KEYS[1] if only_steps else BATCH_KEYS[0]
        cure = f"set {nearest_batches(spec, needs.rollout)}"
        yield Finding(path, str(error), cure, related=BATCH_KEYS, code=Code.BATCH)
        return
    if numbers.optimizer_steps > 1 and not spec.rollout.replace_dropped:
        message = "a step may have fewer samples than its optimizer steps need, which are more than one here"
        cure = "remove it, or set one optimizer step per step"
        yield Finding(("rollout", "replace_dropped"), message, cure, found=False, related=BATCH_KEYS)
    parallel = spec.trainer.parallel
    if numbers.global_batch_size % parallel.data_degree:
        message = (
            f"G = {numbers.global_batch_size} samples do not split evenly over {parallel.data_degree} data "
            f"ranks (fsdp {parallel.fsdp} × replicate {parallel.replicate})"
        )
        cure = f"set {nearest_batches(spec, needs.rollout)}"
        related = (*BATCH_KEYS, *LAYOUT_KEYS[4:6])
        yield Finding(BATCH_KEYS[0], message, cure, related=related, code=Code.BATCH)


def elastic_batch(spec: Spec, needs: Needs) -> Iterator[Finding]:
    """Elastic ranks can become fewer: G samples split evenly over a smaller layout, too."""
    parallel, least = spec.trainer.parallel, spec.trainer.parallel.min_fsdp
    if least is None or least >= parallel.fsdp:
        return
    try:
        size = batch_numbers(spec, needs.rollout).global_batch_size
    except ValueError:
        return  # said by `batch_equation`
    fits = [fsdp for fsdp in range(1, parallel.fsdp) if size % (fsdp * parallel.replicate) == 0]
    if fits and fits[-1] < least:
        message = (
            f"G = {size} samples do not split evenly over fewer than fsdp = {parallel.fsdp} and at least "
            f"{least} ranks, so that a launch would need all"
        )
        path = ("trainer", "parallel", "min_fsdp")
        yield Finding(path, message, f"set it to {fits[-1]} or less", found=least, code=Code.BATCH)


def layout(spec: Spec, needs: Needs) -> Iterator[Finding]:
    """The processes of the job fit on the cluster's GPUs and leave none idle."""
    try:
        layout_of(spec, needs.rollout)
    except ValueError as error:
        engines = "engine.groups" if spec.engine.groups else "engine.count, engine.tensor"
        cure = f"change trainer.parallel, {engines} or cluster.gpus_per_node"
        gpus = spec.cluster.gpus_per_node
        yield Finding(LAYOUT_KEYS[0], str(error), cure, None, gpus, related=LAYOUT_KEYS, code=Code.LAYOUT)


def groups(spec: Spec, needs: Needs) -> Iterator[Finding]:
    """An algorithm that compares the samples of a group needs at least two of them."""
    if needs.rollout and needs.group_relative and spec.rollout.samples_per_prompt < 2:
        message = f"must be at least 2, found 1: {spec.algorithm.type} compares the samples of a prompt"
        cure = "set at least 2; 8 is common"
        yield Finding(("rollout", "samples_per_prompt"), message, cure, found=1)
    if needs.labels and spec.trainer.global_batch_size == 1:
        message = f"must be at least 2, found 1: {spec.algorithm.type} compares the responses of a step"
        yield Finding(("trainer", "global_batch_size"), message, "set at least 2; 32 is common", found=1)


def pairs_of_steps(spec: Spec, needs: Needs) -> Iterator[Finding]:
    """Each optimizer step has at least one pair, of which a prompt gives one."""
    try:
        numbers = batch_numbers(spec, needs.rollout)
    except ValueError:
        return
    steps, prompts = numbers.optimizer_steps, numbers.prompts
    if needs.pairs and needs.rollout and steps > prompts:
        message = f"must be at most rollout.batch_size = {prompts}, found {steps}: a prompt gives one pair"
        related = (("rollout", "batch_size"),)
        yield Finding(("trainer", "optimizer_steps"), message, "lower it", None, steps, related=related)


def greedy_responses(spec: Spec, needs: Needs) -> Iterator[Finding]:
    """The limit on concurrent samples leaves room for the greedy response of a group."""
    limit, samples = spec.rollout.max_concurrency, spec.rollout.samples_per_prompt
    size = needs.responses(samples)
    if needs.greedy_reward and limit is not None and samples <= limit < size:
        message = f"must be at least rollout.samples_per_prompt + 1 = {size}, found {limit}"
        cure = f"raise it: {spec.algorithm.type} also generates a greedy response to each prompt"
        related = (("rollout", "samples_per_prompt"),)
        yield Finding(("rollout", "max_concurrency"), message, cure, None, limit, related=related)


def rewards(spec: Spec, needs: Needs) -> Iterator[Finding]:
    """An algorithm that learns from rewards needs at least one."""
    if spec.debug.mode == "eval" and all(dataset.given("rewards") for dataset in spec.eval.datasets):
        return
    if needs.rollout and needs.rewards and not spec.rewards:
        message = f"{spec.algorithm.type} learns from rewards, and the spec has none"
        cure = 'add a table [[rewards]] with `type = "…"`; `rlrun plugins list` shows the rewards'
        yield Finding(("rewards",), message, cure, at_value=False)


def cache_size(spec: Spec, needs: Needs) -> Iterator[Finding]:
    """The KV cache of an engine holds at least one sample."""
    cache, sample = spec.engine.max_cache_tokens, longest_sample(spec, None)
    if needs.rollout and cache is not None and cache < sample:
        message = f"must hold a prompt with its response, {sample} tokens, found {cache}"
        cure = f"set at least {sample}, or lower rollout.max_prompt_tokens or max_response_tokens"
        related = (("rollout", "max_prompt_tokens"), ("rollout", "max_response_tokens"))
        yield Finding(("engine", "max_cache_tokens"), message, cure, found=cache, related=related)


def warm_up(spec: Spec, needs: Needs) -> Iterator[Finding]:
    """Warm-up ends before the job does, and does not overlap with the decay of the learning rate."""
    if not spec.debug.trains:
        return
    try:
        optimizer_steps = batch_numbers(spec, needs.rollout).optimizer_steps
    except ValueError:
        return
    related = (*BATCH_KEYS, ("trainer", "steps"))
    for name, section in spec.optimizers:
        critic_only_steps = spec.critic.only_steps if name == "trainer" else 0
        steps = ((spec.trainer.steps or 0) - critic_only_steps) * optimizer_steps
        warmup, decay = section.warmup_of(steps), section.decay_steps or 0
        end = section.schedule_of(steps)
        if steps > 0 and section.warmup_ratio is None and warmup >= steps:
            message = f"must be less than the {steps} optimizer steps of the job, found {warmup}"
            path: KeyPath = (name, "warmup_steps")
            cure = f"set at most {steps - 1}, or raise trainer.steps"
            yield Finding(path, message, cure, None, warmup, related=related)
        elif section.schedule_steps is not None and section.schedule_steps <= warmup:
            message = f"must be more than the {warmup} optimizer steps of the warm-up, found {end}"
            cure = f"set at least {warmup + 1}, or shorten the warm-up"
            yield Finding(
                (name, "schedule_steps"), message, cure, None, end, related=(*related, (name, "warmup_steps"))
            )
        elif steps > 0 and section.schedule == "wsd" and warmup + decay > end:
            whose = "job's" if section.schedule_steps is None else "schedule's"
            message = f"warm-up {warmup} + decay_steps {decay} is more than the {whose} {end} optimizer steps"
            path = (name, "decay_steps")
            cure = f"set at most {end - warmup}, or raise "
            cure += "trainer.steps" if section.schedule_steps is None else f"{name}.schedule_steps"
            warmup_key = "warmup_steps" if section.warmup_ratio is None else "warmup_ratio"
            yield Finding(path, message, cure, None, decay, related=(*related, (name, warmup_key)))


def curriculum_without_results(spec: Spec, needs: Needs) -> Iterator[Finding]:
    """A curriculum needs rewards, and groups of several samples, to compare."""
    if spec.data.type != "curriculum":
        return
    path, cure = ("data", "type"), "name the type of `[data.source]` instead, with its keys under `[data]`"
    if not needs.rollout or not (spec.rewards or needs.rewards):
        message = "chooses rows by their rewards, and this job has none"
        yield Finding(path, message, cure, found="curriculum", related=(("algorithm", "type"),))
    elif spec.rollout.samples_per_prompt == 1 and not needs.group_relative:
        message = "chooses rows by how rewards differ within a group, and rollout.samples_per_prompt is 1"
        related = (("rollout", "samples_per_prompt"),)
        yield Finding(path, message, f"raise it, or {cure}", found="curriculum", related=related)


def curriculum_budget(spec: Spec, needs: Needs) -> Iterator[Finding]:
    """The mean number of samples per prompt is below the largest one."""
    budget, most = spec.data.params.get("mean_samples"), spec.rollout.samples_per_prompt
    if spec.data.type != "curriculum" or not isinstance(budget, int | float) or budget < most:
        return
    message = f"must be below rollout.samples_per_prompt, which is {most:g}, found {budget:g}"
    cure = "lower it, or raise rollout.samples_per_prompt, the most samples of a prompt"
    related = (("rollout", "samples_per_prompt"),)
    yield Finding(("data", "mean_samples"), message, cure, found=budget, related=related)


def filters_of_single_samples(spec: Spec, needs: Needs) -> Iterator[Finding]:
    """A filter that needs rewards to differ within a group would drop every group of one sample.

    Silent where the algorithm compares samples itself: then `samples_per_prompt` is the mistake.
    """
    if spec.rollout.samples_per_prompt > 1 or needs.group_relative or not needs.rollout:
        return
    for path, name in _named_filters(spec):
        if name == "nonzero_std":
            message = "would drop every group: with rollout.samples_per_prompt = 1 rewards cannot differ"
            cure = "remove it, or raise rollout.samples_per_prompt"
            related: tuple[KeyPath, ...] = (("rollout", "samples_per_prompt"),)
            yield Finding(path, message, cure, found=name, related=related)


def filters_without_rewards(spec: Spec, needs: Needs) -> Iterator[Finding]:
    """A filter that reads rewards needs at least one.

    Silent where the algorithm needs rewards itself: their absence is reported once.
    """
    if spec.rewards or needs.rewards or not needs.rollout:
        return
    for path, name in _named_filters(spec):
        if name in _BY_REWARD:
            cure = 'remove it, or add a table [[rewards]] with `type = "…"`'
            message = f'"{name}" reads rewards, and the spec has none'
            yield Finding(path, message, cure, found=name)


def already_dropped_samples(spec: Spec, needs: Needs) -> Iterator[Finding]:
    """The filter of truncated samples has no effect where they are dropped anyway."""
    for path, name in _named_filters(spec):
        if needs.rollout and name == "truncated" and spec.rollout.truncated == "drop":
            why = 'rollout.truncated = "drop" already drops truncated samples'
            yield no_effect(path, why, "remove one of the two", (("rollout", "truncated"),))


def truncated_sampling(spec: Spec, needs: Needs) -> Iterator[Finding]:
    """Samples are drawn from the distribution whose log-probs are trained, or something corrects for it."""
    corrects = not needs.old_log_probs or needs.trainer_log_probs or records_mask(spec, needs)
    if cuts_vocabulary(spec) and not corrects:
        message = (
            "samples are drawn from a part of the vocabulary (top_p, top_k), and "
            f"{spec.algorithm.type} would train log-probs over the whole of it"
        )
        cure = "remove it, or add algorithm.correction"
        yield Finding(_MASK, message, cure, "true", False, related=(_TOP_P, _TOP_K))


def mask_size(spec: Spec, needs: Needs) -> Iterator[Finding]:
    """SGLang records masks only with a finite top-k, up to the size that its memory is allocated for."""
    if not records_mask(spec, needs) or spec.engine.type not in ("sglang", "external"):
        return
    related: tuple[KeyPath, ...] = (_TOP_P, _TOP_K, ("engine", "type"))
    own = {flag_name(name): value for name, value in spec.engine.sglang.items()}
    cap, top_k = own.get(_CAP, _SGLANG_CAP), spec.rollout.top_k
    if not isinstance(cap, int):
        return
    if top_k < 1:
        message = "SGLang records sampling masks only where top_k bounds their size"
        cure = f"add `top_k = 512` (at most {cap}), {_OFF}"
        yield Finding(_TOP_P, message, cure, found=spec.rollout.top_p, related=related)
    elif top_k > cap:
        message = f"SGLang records sampling masks of at most {cap} tokens"
        cure = f"at most {cap}, or raise sampling_mask_max_tokens under [engine.sglang]"
        if spec.engine.type == "external":
            cure = f"at most {cap}"
        yield Finding(_TOP_K, message, cure, found=top_k, related=related)


ALGORITHM_RULES: tuple[Rule, ...] = (
    batch_equation,
    elastic_batch,
    layout,
    groups,
    pairs_of_steps,
    greedy_responses,
    rewards,
    log_ratio_penalty,
    interpolated_log_probs,
    replayed_routing,
    truncated_sampling,
    mask_size,
    filters_of_single_samples,
    filters_without_rewards,
    already_dropped_samples,
    curriculum_without_results,
    curriculum_budget,
    cache_size,
    warm_up,
    teacher,
    teacher_prompt,
    served_divergence,
    compared_tokens,
    layouts,
    critic_only_steps,
)


def _named_filters(spec: Spec) -> Iterator[tuple[KeyPath, str]]:
    for number, section in enumerate(spec.filters):
        yield ("filters", number, "type"), section.type

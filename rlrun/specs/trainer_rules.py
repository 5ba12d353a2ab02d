"""Rules of `[trainer]`: settings that nothing would read, and those that do not go together."""

from collections.abc import Iterator

from rlrun.specs.engine_sections import POLICY, engine_sections
from rlrun.specs.job import Spec
from rlrun.specs.optimizer_rules import optimizer_sections
from rlrun.specs.positions import KeyPath
from rlrun.specs.problems import Finding, dotted
from rlrun.specs.rules import Rule, given, no_effect

SPLIT_SCHEDULES = ("InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV")
OFFLOAD: KeyPath = ("trainer", "offload")
HEAD_DTYPE: KeyPath = ("trainer", "head_dtype")


def offloading(spec: Spec) -> Iterator[Finding]:
    """State can be kept off a GPU where there is one, and steps be taken on the host by some optimizers."""
    if spec.trainer.offload == "none":
        return
    if not spec.cluster.gpus_per_node:
        why = "there are no GPUs, so everything lies in host memory"
        yield no_effect(OFFLOAD, why, "remove it", (("cluster", "gpus_per_node"),))
    for name, section in optimizer_sections(spec):
        if spec.trainer.offload == "all" and section.optimizer == "muon":
            message = "would have Muon's matrix products done by the host, which takes minutes a step"
            others: tuple[KeyPath, ...] = ((name, "optimizer"),)
            yield Finding(OFFLOAD, message, 'use offload = "optimizer"', None, "all", others=others)


def routing_replay(spec: Spec) -> Iterator[Finding]:
    """Somebody has to say which experts were chosen, before there is something to take over."""
    path: KeyPath = ("trainer", "moe", "routing_replay")
    kind, others = spec.trainer.moe.routing_replay, (("engine", "type"), ("trainer", "old_log_probs"))
    if kind == "engine" and spec.engine.type != "sglang":
        message = "the native engine serves dense models alone, and tells no experts"
        yield Finding(path, message, 'set engine.type = "sglang"', found=kind, others=others)
    if kind == "trainer" and spec.trainer.old_log_probs == "rollout":
        why = "with the engine's old log-probs there is no pass of the trainer that could choose"
        yield no_effect(path, why, 'remove it, or set trainer.old_log_probs = "trainer"', others)
    steps, size = spec.trainer.optimizer_steps, spec.trainer.global_batch_size
    whole = spec.rollout.batch_size * spec.rollout.samples_per_prompt
    if kind == "trainer" and (steps == 1 or (steps is None and size in (None, whole))):
        why = "the one update of a rollout step routes by the policy that is asked for old log-probs"
        yield no_effect(path, why, "remove it, or raise trainer.optimizer_steps", others)


def balancing(spec: Spec) -> Iterator[Finding]:
    """A bias that moves, and that somebody routes by."""
    moe, switch = spec.trainer.moe, ("trainer", "moe", "balancing")
    if moe.balancing == "off":
        for name in ("balancing_rate", "balancing_export"):
            if given(moe, name):
                cure = 'remove it, or set balancing = "bias"'
                yield no_effect(("trainer", "moe", name), "no bias of experts moves", cure, (switch,))
        return
    if spec.model.implementation == "transformers":
        message = 'is not there with model.implementation = "transformers"'
        yield Finding(switch, message, "remove it", found="bias", others=(("model", "implementation"),))
    if moe.routing_replay == "engine" and not moe.balancing_export:
        why = "engines choose the experts, and do not get the bias"
        others: tuple[KeyPath, ...] = (
            ("trainer", "moe", "routing_replay"),
            ("trainer", "moe", "balancing_export"),
        )
        yield no_effect(switch, why, "remove it", others)


def external_heads(spec: Spec) -> Iterator[Finding]:
    """Warns that engines which rlrun does not start compute logits in a precision of their own.

    Only engines whose log-probs are compared with the trainer's matter: not a judge's.
    """
    if spec.trainer.head_dtype != "float32":
        return
    compared = {spec.reference.engine, spec.teacher.engine if spec.teacher else None} - {None}
    for path, section in engine_sections(spec):
        matters = path == POLICY or getattr(section, "name", None) in compared
        if matters and section.type == "external":
            message = (
                f"does not reach the external engines of {dotted(path)}, which compute as they were started"
            )
            cure = "start them with --enable-fp32-lm-head (SGLang) or --head-dtype float32 (rlrun's engine)"
            yield Finding(HEAD_DTYPE, message, cure, at_value=False, others=((*path, "type"),))


def compilation(spec: Spec) -> Iterator[Finding]:
    """What looks into layers, operation by operation, cannot do so in compiled ones."""
    if not spec.trainer.compile:
        return
    path: KeyPath = ("trainer", "compile")
    if spec.trainer.activation_checkpointing == "selective":
        others: tuple[KeyPath, ...] = (("trainer", "activation_checkpointing"),)
        message = "compiled layers have no operations to choose from, as selective checkpointing does"
        yield Finding(
            path, message, 'set activation_checkpointing = "full" or "none"', None, True, others=others
        )
    parallel = spec.trainer.parallel
    if parallel.pipeline > 1 and parallel.pipeline_schedule in SPLIT_SCHEDULES:
        others = (("trainer", "parallel", "pipeline_schedule"), ("trainer", "parallel", "pipeline"))
        message = f"{parallel.pipeline_schedule} splits backward passes, which compiled layers have whole"
        yield Finding(path, message, 'use pipeline_schedule = "1F1B"', None, True, others=others)


def micro_batches(spec: Spec) -> Iterator[Finding]:
    """Micro-batches are cut by tokens or by samples."""
    if spec.trainer.micro_batch_size is not None and given(spec.trainer, "max_tokens_per_rank"):
        why = f"micro-batches have {spec.trainer.micro_batch_size} samples, whatever their tokens"
        others: tuple[KeyPath, ...] = (("trainer", "micro_batch_size"),)
        yield no_effect(("trainer", "max_tokens_per_rank"), why, "remove it, or micro_batch_size", others)


TRAINER_RULES: tuple[Rule, ...] = (
    offloading,
    routing_replay,
    balancing,
    compilation,
    micro_batches,
)

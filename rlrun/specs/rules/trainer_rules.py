"""Rules of `[trainer]`: settings that have no effect, and settings that contradict each other."""

import json
from collections.abc import Iterator

from rlrun.specs.derived.engine_sections import POLICY, engine_sections
from rlrun.specs.derived.shared_prefixes import obstacles
from rlrun.specs.problems.findings import Finding, dotted
from rlrun.specs.problems.positions import KeyPath
from rlrun.specs.rules.mtp_rules import unsupported_with_mtp
from rlrun.specs.rules.shared_rules import Rule, is_given, no_effect
from rlrun.specs.sections.job import Spec

SPLIT_SCHEDULES = ("InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV")
OFFLOAD: KeyPath = ("trainer", "offload")
HEAD_DTYPE: KeyPath = ("trainer", "head_dtype")
SHARE: KeyPath = ("trainer", "share_prefixes")


def offloading(spec: Spec) -> Iterator[Finding]:
    """Offloading needs GPUs, and an optimizer whose step the host can compute."""
    if spec.trainer.offload == "none":
        return
    if not spec.cluster.gpus_per_node:
        why = "the job has no GPUs, so all state is already in host memory"
        yield no_effect(OFFLOAD, why, "remove it", (("cluster", "gpus_per_node"),))
    for name, section in spec.optimizers:
        if spec.trainer.offload == "all" and section.optimizer in ("muon", "adamw_8bit"):
            work = "compute Muon's matrix products"
            if section.optimizer == "adamw_8bit":
                work = "convert the state to 8 bits and back"
            message = f"the host would {work}, which takes minutes per step"
            related: tuple[KeyPath, ...] = ((name, "optimizer"),)
            yield Finding(OFFLOAD, message, 'set offload = "optimizer"', None, "all", related=related)


def flash_attention(spec: Spec) -> Iterator[Finding]:
    """FlashAttention 3 only computes in half precision, on GPUs."""
    path: KeyPath = ("trainer", "flash_attention")
    if spec.trainer.flash_attention == "FA2":
        return
    if not spec.cluster.gpus_per_node:
        yield no_effect(path, "the job has no GPUs", "remove it", (("cluster", "gpus_per_node"),))
    elif spec.trainer.given("dtype") == "float32":
        why = "attention in float32 does not use it"
        yield no_effect(path, why, 'remove it, or set trainer.dtype = "bfloat16"', (("trainer", "dtype"),))


def kept_logits(spec: Spec) -> Iterator[Finding]:
    """Logits in float32 are never kept."""
    path: KeyPath = ("trainer", "kept_logits")
    for key, value in (("dtype", spec.trainer.given("dtype")), ("head_dtype", spec.trainer.head_dtype)):
        if is_given(spec.trainer, "kept_logits") and value == "float32":
            related: tuple[KeyPath, ...] = (("trainer", key),)
            yield no_effect(
                path, f'trainer.{key} = "float32", and such logits are not kept', "remove it", related
            )
            return


def routing_replay(spec: Spec) -> Iterator[Finding]:
    """The engine has to report the routed experts that are replayed."""
    path: KeyPath = ("trainer", "moe", "routing_replay")
    kind = spec.trainer.moe.routing_replay
    if kind == "engine" and spec.engine.type not in ("sglang", "native"):
        message = f"{spec.engine.type} engines do not report routed experts"
        cure = 'set engine.type = "sglang" or "native"'
        yield Finding(path, message, cure, found=kind, related=(("engine", "type"),))


def balancing(spec: Spec) -> Iterator[Finding]:
    """The bias of experts must be updated, and must be used by the side that chooses the experts."""
    moe, switch = spec.trainer.moe, ("trainer", "moe", "balancing")
    if moe.balancing == "off":
        for name in ("balancing_rate", "balancing_export"):
            if is_given(moe, name):
                cure = 'remove it, or set balancing = "bias"'
                yield no_effect(("trainer", "moe", name), 'balancing = "off"', cure, (switch,))
        return
    if spec.model.implementation == "transformers":
        message = 'is not supported with model.implementation = "transformers"'
        yield Finding(switch, message, "remove it", found="bias", related=(("model", "implementation"),))
    if moe.routing_replay == "engine" and not moe.balancing_export:
        why = "engines choose the experts, and are not sent the bias (balancing_export = false)"
        related: tuple[KeyPath, ...] = (
            ("trainer", "moe", "routing_replay"),
            ("trainer", "moe", "balancing_export"),
        )
        yield no_effect(switch, why, "remove it, or set balancing_export = true", related)


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
            yield Finding(HEAD_DTYPE, message, cure, at_value=False, related=((*path, "type"),))


def compilation(spec: Spec) -> Iterator[Finding]:
    """Features that choose or split operations inside of a layer do not work with compiled layers."""
    if not spec.trainer.compile:
        return
    path: KeyPath = ("trainer", "compile")
    if spec.trainer.activation_checkpointing == "selective":
        related: tuple[KeyPath, ...] = (("trainer", "activation_checkpointing"),)
        message = "selective activation checkpointing cannot choose operations inside of compiled layers"
        yield Finding(
            path, message, 'set activation_checkpointing = "full" or "none"', None, True, related=related
        )
    parallel = spec.trainer.parallel
    if parallel.pipeline > 1 and parallel.pipeline_schedule in SPLIT_SCHEDULES:
        related = (("trainer", "parallel", "pipeline_schedule"), ("trainer", "parallel", "pipeline"))
        message = f"{parallel.pipeline_schedule} cannot split the backward passes of compiled layers"
        cure = 'set pipeline_schedule = "1F1B", or remove `compile`'
        yield Finding(path, message, cure, None, True, related=related)


def micro_batches(spec: Spec) -> Iterator[Finding]:
    """Micro-batches are cut by tokens or by samples, not by both."""
    if spec.trainer.micro_batch_size is not None and is_given(spec.trainer, "max_tokens_per_rank"):
        why = (
            f"micro_batch_size = {spec.trainer.micro_batch_size} cuts micro-batches by samples, not by tokens"
        )
        related: tuple[KeyPath, ...] = (("trainer", "micro_batch_size"),)
        yield no_effect(
            ("trainer", "max_tokens_per_rank"), why, "remove it, or remove micro_batch_size", related
        )


def unsupported_with_shared_prefixes(spec: Spec) -> Iterator[Finding]:
    """Reports settings under which a prefix is not computed once."""
    if not spec.trainer.given("share_prefixes"):
        return
    for obstacle in obstacles(spec):
        path = obstacle.path
        cure = f"set {path[-1]} = {json.dumps(obstacle.supported)}, or remove trainer.share_prefixes"
        message = f"is not supported with trainer.share_prefixes: {obstacle.reason}"
        yield Finding(path, message, cure, found=obstacle.value, related=(SHARE,))


TRAINER_RULES: tuple[Rule, ...] = (
    offloading,
    flash_attention,
    kept_logits,
    routing_replay,
    balancing,
    compilation,
    micro_batches,
    unsupported_with_shared_prefixes,
    unsupported_with_mtp,
)

"""Decides whether engines get adapters alone or a merged model; for the rules, the plan and the job."""

from collections.abc import Iterator

from rlrun.models.adapters import EXPERT_TARGETS
from rlrun.models.families.table import family_named
from rlrun.models.tensor_names import QKV
from rlrun.specs.derived.conflicts.feature import Job
from rlrun.specs.derived.conflicts.features import ADAPTERS_ALONE
from rlrun.specs.derived.conflicts.reading import reasons_against
from rlrun.specs.derived.engine_layout import sleeps
from rlrun.specs.derived.served_adapters import adapters_beside_policy
from rlrun.specs.derived.sglang_arguments import flag_name
from rlrun.specs.sections.job import Spec

_ROOM_ARGUMENTS = ("max-loaded-loras", "max-loras-per-batch")
"""SGLang's arguments that limit how many adapters a server has, and how many it computes with at a time."""


def sends_adapters(spec: Spec, family: str | None) -> bool:
    """Returns whether the policy's engines get adapters alone at an update. `family`: as for `why_merged`."""
    if spec.trainer.lora is None or spec.engine.given("lora_sync") == "merged":
        return False
    return why_merged(spec, family) is None


def why_merged(spec: Spec, family: str | None = None) -> str | None:
    """Returns why the policy's engines cannot take adapters alone; None if they can.

    `family`: the model's; None where config.json has not been read.
    """
    for reason in reasons_against(ADAPTERS_ALONE, Job(spec)):
        return reason
    if spec.engine.type != "sglang":
        return None
    targets = spec.trainer.lora.targets if spec.trainer.lora is not None else None
    return why_not_served(frozenset(targets or ()), family)


def adapter_room(spec: Spec) -> int:
    """Returns how many adapters a server needs room for.

    These are the version that is being loaded, the version before it, and those of running samples, which are
    up to `max_staleness` versions older.
    """
    return 2 + (spec.rollout.max_staleness if spec.rollout.mode == "async" else 0)


def keeps_host_copy(spec: Spec, family: str) -> bool:
    """Returns whether servers copy their frozen model to host memory when they sleep, because no update
    brings it back.
    """
    return spec.engine.type == "sglang" and sleeps(spec) and sends_adapters(spec, family)


def server_room(spec: Spec) -> int:
    """Returns how many adapters a server needs room for, with those of `[[engines]]`, which it always has."""
    return adapter_room(spec) + len(adapters_beside_policy(spec))


def small_rooms(spec: Spec) -> Iterator[tuple[str, int]]:
    """Yields the keys of `[engine.sglang]` that leave too little room for adapters, with their values."""
    for key, value in spec.engine.sglang.items():
        if flag_name(key) in _ROOM_ARGUMENTS and isinstance(value, int) and value < server_room(spec):
            yield key, value


def why_not_beside_policy(spec: Spec, family: str | None = None) -> str | None:
    """Returns why the policy's engines cannot serve another adapter of its model; None if they can.

    `family`: the model's; None where config.json has not been read.
    """
    if spec.trainer.lora is None:
        return "without [trainer.lora] the whole policy is trained, and the adapter belongs to the first one"
    if spec.engine.type == "native":
        return "native engines merge the policy's adapters into one model"
    if spec.engine.type != "sglang":
        return why_merged(spec, family) or "the job starts no SGLang servers for the policy"
    if sleeps(spec):
        return "engines that sleep while the trainer works do not answer then"
    if spec.engine.given("lora_sync") == "merged":
        return 'engine.lora_sync = "merged" replaces the model that the adapter belongs to'
    return why_merged(spec, family)


def why_not_served(targets: frozenset[str], family: str | None) -> str | None:
    """Returns why SGLang cannot serve an adapter with these targets; None if it can.

    A server fuses q, k and v, and gate and up: it fills in k and up alone, ends at a load or at the first
    request where q or v is missing, and silently leaves out up without gate.
    """
    if family is not None and not family_named(family).server.adapters:
        return f"adapters of {family} models were not tried with SGLang"
    if targets.intersection(EXPERT_TARGETS):
        return "SGLang was not tried with adapters of experts, which are in stacks"
    fused = targets.intersection(QKV)
    if fused and not fused.issuperset({"q_proj", "v_proj"}):
        return f"SGLang cannot serve adapters of {' and '.join(sorted(fused))} without both q_proj and v_proj"
    if "up_proj" in targets and "gate_proj" not in targets:
        return "SGLang cannot serve adapters of up_proj without gate_proj"
    return None

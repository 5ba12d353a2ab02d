"""Decides whether engines get adapters alone or a merged model; for the rules, the plan and the job."""

from collections.abc import Iterator

from rlrun.models.adapters import EXPERT_TARGETS
from rlrun.specs.derived.engine_layout import sleeps
from rlrun.specs.derived.server_size import stages_of
from rlrun.specs.derived.sglang_arguments import flag_name
from rlrun.specs.derived.weight_sync import carrier_of
from rlrun.specs.sections.job import Spec

_ROOM_ARGUMENTS = ("max-loaded-loras", "max-loras-per-batch")
"""SGLang's arguments that limit how many adapters a server has, and how many it computes with at a time."""


_SERVED_FAMILIES = ("llama", "qwen2", "qwen3", "qwen3_moe")
"""Families whose attention and feed-forward matrices SGLang gives adapters by their Hugging Face names."""


def sends_adapters(spec: Spec, family: str) -> bool:
    """Returns whether the policy's engines get adapters alone at an update."""
    if spec.trainer.lora is None or spec.engine.lora_sync == "merged":
        return False
    return why_merged(spec, family) is None


def why_merged(spec: Spec, family: str | None = None) -> str | None:
    """Returns why the policy's engines cannot take adapters alone; None if they can.

    `family`: the model's; None where config.json has not been read.
    """
    engine = spec.engine
    if engine.type in ("external", "sleeping"):
        return f"{engine.type} engines only take whole models"
    if sleeps(spec):
        return "engines that sleep drop the model that the adapters belong to, and need all of it each time"
    if engine.type == "native" and carrier_of(spec) == "disk":
        return "native engines on several nodes read whole models from files"
    if spec.trainer.lora is not None and set(EXPERT_TARGETS).intersection(spec.trainer.lora.targets or ()):
        return "engines do not take adapters of experts"
    if engine.type != "sglang":
        return None
    if spec.trainer.lora is not None and (base := spec.trainer.lora.base) is not None:
        return f"the adapters belong to the model in {base} (trainer.lora.base), which servers do not have"
    if engine.model is not None:
        return "the adapters belong to the policy's own model, and servers start from engine.model"
    if engine.router != "rlrun":
        return "every request names its adapter, which the sglang-router was not tried with"
    if stages_of(engine) > 1:
        return "a server's pipeline stages were not tried with adapters"
    if carrier_of(spec) != "tensor" or spec.cluster.nodes > 1:
        return 'servers read adapters from the host\'s shared memory: one node, and weight_sync = "tensor"'
    if family not in (None, *_SERVED_FAMILIES):
        return f"adapters of {family} models were not tried with SGLang"
    return _refused_targets(spec)


def _refused_targets(spec: Spec) -> str | None:
    """A server fuses q, k and v, and ends at the first request whose adapter has k or v without q."""
    targets = spec.trainer.lora.targets if spec.trainer.lora is not None else None
    if targets and "q_proj" not in targets and {"k_proj", "v_proj"}.intersection(targets):
        return "SGLang cannot serve adapters of k_proj or v_proj without q_proj"
    return None


def adapter_room(spec: Spec) -> int:
    """Returns how many adapters a server needs room for.

    These are the version that is being loaded, the version before it, and those of running samples, which are
    up to `max_staleness` versions older.
    """
    return 2 + (spec.rollout.max_staleness if spec.rollout.mode == "async" else 0)


def small_rooms(spec: Spec) -> Iterator[tuple[str, int]]:
    """Yields the keys of `[engine.sglang]` that leave too little room for adapters, with their values."""
    for key, value in spec.engine.sglang.items():
        if flag_name(key) in _ROOM_ARGUMENTS and isinstance(value, int) and value < adapter_room(spec):
            yield key, value

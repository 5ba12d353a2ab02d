"""Counts the memory of a job's engines: the policy's and those of `[[engines]]`."""

from collections.abc import Collection, Iterator

from rlrun.models.adapters import AnyAdapter, adapters
from rlrun.models.architecture import Architecture
from rlrun.runner.planning.activations import ITEM_BYTES
from rlrun.runner.planning.memory import (
    CACHE_BLOCK,
    CACHE_SHARE,
    GPU_PAGE,
    SGLANG_SHARE,
    DraftMemory,
    EngineMemory,
    Part,
    Phase,
    cache_copies,
    copies_of_heads,
    multiply_phase,
    size_engine,
)
from rlrun.runner.planning.model_size import parameter_count
from rlrun.runner.planning.plan import POLICY_NAME
from rlrun.runner.planning.served_weights import adapter_room_bytes, served_model, served_weight_bytes
from rlrun.runner.planning.step_time import PlannedJob
from rlrun.specs.derived.engine_groups import policy_groups
from rlrun.specs.derived.kept_samples import kept_samples
from rlrun.specs.derived.lora_sync import keeps_host_copy, sends_adapters, server_room
from rlrun.specs.derived.served_adapters import adapters_beside_policy
from rlrun.specs.derived.server_size import attention_parts_of, gpus_of
from rlrun.specs.derived.sglang_arguments import flag_name
from rlrun.specs.derived.speculation import verified_tokens
from rlrun.specs.sections.engine import EngineSpec, NamedEngineSpec

_NAMED_ROOM = 2
"""Adapters that a server of `[[engines]]` has room for: its own, and one that is not pinned."""


def policy_engine_memory(job: PlannedJob, free: int) -> tuple[EngineMemory | None, Phase | None]:
    """Returns the memory of the policy's engine with the smallest cache, and the phase of all of its engines
    on the fullest device.

    `free` is the number of bytes free on that device. Both are None without rollouts.
    """
    if not job.plan.engines:
        return None, None
    engines, phases = zip(
        *(_group_memory(job, group.section, free) for group in policy_groups(job.spec)), strict=True
    )
    smallest = min(engines, key=lambda engine: engine.concurrent)
    return smallest, max(phases, key=lambda phase: phase.bytes)


def _group_memory(job: PlannedJob, section: EngineSpec, free: int) -> tuple[EngineMemory, Phase]:
    """Returns the memory of an engine of the policy with these settings, and the phase of such engines."""
    count = 1 if job.on_gpu else job.most_on_a_node(job.plan.engines)
    own, room = _policy_adapters(job), _room(section, server_room(job.spec))
    part = _adapter_part(job, job.model, section, own, room)
    longest = job.plan.max_sample_tokens
    drafts = _drafts(job, job.model, section, POLICY_NAME)
    engine = _engine(job, job.model, section, free // count, longest, adapter_part=part, drafts=drafts)
    return engine, _device_phase(job, engine, section, count)


def named_engine_phases(job: PlannedJob) -> Iterator[Phase]:
    """Yields a phase for each section of `[[engines]]` whose model is known, on one device.

    On CPU it counts all engines of the section on the fullest node, each limited to an equal part of the
    host.
    """
    plan = job.plan
    sharers = 1 if job.on_gpu else job.most_on_a_node((*plan.engines, *plan.named_engines)) + 1
    for section in job.spec.engines:
        if (model := job.named_models.get(section.name)) is not None:
            free, longest = job.device.memory // sharers, section.max_length or model.max_positions
            part = _adapter_part(job, model, section, _named_adapters(job, model, section), _NAMED_ROOM)
            drafts = _drafts(job, model, section, section.name)
            engine = _engine(job, model, section, free, longest, adapter_part=part, drafts=drafts)
            engines = [engine for engine in plan.named_engines if engine.name == section.name]
            count = 1 if job.on_gpu else job.most_on_a_node(engines)
            yield Phase(section.name, _device_phase(job, engine, section, count).parts)


def host_copy_bytes(job: PlannedJob) -> int:
    """Returns the host memory for the frozen model of engines that get adapters alone.

    Servers that sleep have a copy each, and native engines one on each node, which they merge adapters with.
    """
    spec, family = job.spec, job.model.family
    if not job.plan.engines or not sends_adapters(spec, family):
        return 0
    if spec.engine.type == "native":
        return parameter_count(job.model) * ITEM_BYTES[spec.trainer.dtype]
    if not job.on_gpu or not keeps_host_copy(spec, family):
        return 0
    return served_weight_bytes(served_model(job.model, spec.engine), spec.engine)[0]


def _policy_adapters(job: PlannedJob) -> list[AnyAdapter]:
    """Returns the adapters of one version of the policy, and those of `[[engines]]` on the same servers."""
    spec = job.spec
    if spec.trainer.lora is None or not sends_adapters(spec, job.model.family):
        return []
    own = adapters(job.model, spec.trainer.lora.shape)
    for name in adapters_beside_policy(spec):
        own += job.adapters[name].matrices(job.model) if name in job.adapters else []
    return own


def _named_adapters(job: PlannedJob, model: Architecture, section: NamedEngineSpec) -> list[AnyAdapter]:
    stored = job.adapters.get(section.name)
    return [] if stored is None else stored.matrices(model)


def _room(section: EngineSpec, default: int) -> int:
    """Returns `max_loras_per_batch` as the spec passes it to SGLang, or its default."""
    given = (value for key, value in section.sglang.items() if flag_name(key) == "max-loras-per-batch")
    return next((value for value in given if isinstance(value, int)), default)


def _adapter_part(
    job: PlannedJob, model: Architecture, section: EngineSpec, served: Collection[AnyAdapter], slots: int
) -> Part | None:
    """Returns the memory of all of a server's GPUs for adapters; native engines merge theirs."""
    if not served or section.type != "sglang":
        return None
    gpus = gpus_of(section) if job.on_gpu else 1
    item, tensor = ITEM_BYTES[section.dtype], section.tensor if job.on_gpu else 1
    size = adapter_room_bytes(model, served, slots, item, tensor) * gpus
    return Part("adapters", size, f"{slots} × rank {max(each.rank for each in served)}")


def _engine(
    job: PlannedJob,
    model: Architecture,
    section: EngineSpec,
    free: int,
    longest: int,
    *,
    adapter_part: Part | None,
    drafts: DraftMemory | None,
) -> EngineMemory:
    """Returns the memory of an engine whose devices have `free` bytes each."""
    if section.type == "sglang" and job.on_gpu:
        free = min(free, int(job.device.memory * _static_share(section)))
    share = CACHE_SHARE if section.type == "native" else 1.0
    gpus = gpus_of(section) if job.on_gpu else 1
    # A GPU multiplies bfloat16 matrices into float32 results; a CPU casts the head's weights to float32
    # first.
    head_copy = job.spec.trainer.head_dtype == "float32" and not job.on_gpu
    pages = section.type == "native" and job.on_gpu and section.dtype == "bfloat16"
    block = GPU_PAGE if pages else CACHE_BLOCK
    copies = cache_copies(model, section) if job.on_gpu else 1
    return size_engine(
        model,
        section,
        longest,
        gpus * free,
        share,
        head_copy=head_copy,
        block=block,
        copies=copies,
        kept=kept_samples(job.spec, section),
        adapter_part=adapter_part,
        drafts=drafts,
    )


def _drafts(job: PlannedJob, model: Architecture, section: EngineSpec, name: str) -> DraftMemory | None:
    """Returns the memory of all of a server's GPUs for speculative decoding; None if it has none."""
    if section.type != "sglang" or section.speculative.algorithm is None:
        return None
    draft = job.drafts.get(name)
    verified = verified_tokens(section, model.family, draft.block if draft else None)
    # Each GPU has the logits of all its samples' verified tokens, and their probabilities, in float32.
    numbers = section.max_running * verified * model.vocab
    gpus = gpus_of(section) // attention_parts_of(section)
    how = f"estimated, {section.max_running} × {verified} tokens × {model.vocab:,} × 8 bytes"
    logits = Part("verified logits", numbers * 8 * gpus, how)
    if draft is None:
        return DraftMemory(verified, logits=logits)
    item = ITEM_BYTES[section.dtype]
    weights = Part("draft model", draft.parameters * item, f"{draft.parameters:,} × {item} bytes")
    copies = copies_of_heads(draft.heads, section)
    return DraftMemory(verified, (weights,), draft.cached * item * copies, logits)


def _device_phase(job: PlannedJob, engine: EngineMemory, section: EngineSpec, count: int) -> Phase:
    """Returns one device's share of an engine's memory; on CPU, the memory of `count` engines."""
    gpus = gpus_of(section) if job.on_gpu else 1
    if gpus == 1:
        return multiply_phase(engine.phase, count)
    parts = engine.phase.parts
    split = (Part(part.name, -(-part.bytes // gpus), f"({part.how}) / {gpus} GPUs") for part in parts)
    return Phase(engine.phase.name, tuple(split))


def _static_share(section: EngineSpec) -> float:
    """Returns `mem_fraction_static` as the spec passes it to SGLang, or its usual value."""
    fraction = section.sglang.get("mem_fraction_static", SGLANG_SHARE)
    return fraction if isinstance(fraction, float) else SGLANG_SHARE

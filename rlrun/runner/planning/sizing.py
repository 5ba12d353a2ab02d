"""Whether a job fits its devices, what it writes to disk, how long it takes, before anything is started.

spec, plan, architecture, device -> Sizing: memory by phase, warnings, disk, estimate
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from rlrun.converters.architecture import Architecture
from rlrun.converters.config_json import read_architecture
from rlrun.converters.foreign import read_model
from rlrun.runner.planning.estimate import Case, Estimate, estimate
from rlrun.runner.planning.hardware import GIB
from rlrun.runner.planning.memory import (
    CACHE_SHARE,
    CONTEXT,
    SGLANG_SHARE,
    EngineMemory,
    Part,
    Phase,
    checkpoint_bytes,
    critic,
    export_bytes,
    generating,
    offloaded,
    teacher,
    training,
)
from rlrun.specs.hub import download
from rlrun.specs.job import Spec
from rlrun.specs.layout import sleeps
from rlrun.specs.model import ModelSpec
from rlrun.specs.server_size import gpus_of

KEPT_BY_TRAINER = ("parameters", "optimizer", "critic", "teacher", "CUDA and NCCL")
"""What a rank holds while others work."""


@dataclass(frozen=True, slots=True)
class Sizing:
    """The answer."""

    phases: tuple[Phase, ...]
    """On the fullest device; on CPU, of all processes of the fullest node together."""
    engine: EngineMemory | None
    """None without rollouts."""
    reference: int
    """Bytes of host memory for the reference policy, of each rank."""
    offloaded: int
    """Bytes of host memory for the training state that `trainer.offload` keeps there, of each rank."""
    disk: int
    """Bytes of all checkpoints that are kept at once, and of the exported model."""
    estimate: Estimate
    warnings: tuple[str, ...]


def planned_architecture(spec: ModelSpec) -> Architecture:
    """The model's architecture, from its folder or the hub's config.json alone.

    ValueError, with the reason, where neither is at hand or the family is not supported.
    """
    folder = Path(spec.path)
    if folder.is_dir():
        return read_model(folder, spec.implementation)
    if spec.implementation == "transformers":
        raise ValueError(f"{spec.path} is sized from its weights' headers: download it, and give its folder")
    try:
        folder = download(spec.path, ["config.json"], spec.revision)
    except ValueError as error:
        raise ValueError(f"the hub does not give {spec.path}'s config.json: {error}") from None
    return read_architecture(folder)


def size_job(case: Case) -> Sizing:
    """Size a job on devices like `case.device`; on CPU that is a whole host."""
    spec, plan, model = case.spec, case.plan, case.model
    on_gpu = spec.cluster.gpus_per_node > 0
    train = training(model, spec.trainer, plan.max_sample_tokens, gpu=on_gpu)
    train = Phase(train.name, (*train.parts, *_companions(case)))
    waiting = sum(train.part(name) for name in KEPT_BY_TRAINER)
    asleep = sleeps(spec)
    # host memory is not left for the host
    kept = train.part("CUDA and NCCL") if asleep and on_gpu else waiting
    ranks = 1 if on_gpu else max(sum(rank.place.node == node for rank in plan.ranks) for node in _nodes(case))
    engines = (
        1 if on_gpu else max(sum(each.place.node == node for each in plan.engines) for node in _nodes(case))
    )
    shares_device = plan.colocated or not on_gpu
    free = case.device.memory - (ranks * kept if shares_device else 0)
    if spec.engine.type == "sglang" and on_gpu:
        free = min(free, int(case.device.memory * _static_share(spec)))
    share = CACHE_SHARE if spec.engine.type == "native" else 1.0
    over = gpus_of(spec.engine) if on_gpu else 1
    engine = (
        generating(model, spec.engine, plan.max_sample_tokens, over * (free // max(engines, 1)), share)
        if plan.engines
        else None
    )
    phases = [_times(train, ranks)]
    if engine is not None:
        rollout = _times(_split(engine.phase, over), engines)
        phases.append(rollout)
        if shares_device and asleep:
            phases = _in_turns(phases[0], rollout, ranks * waiting, ranks * kept, on_gpu=on_gpu)
        elif shares_device:
            phases = [
                _beside(phases[0], "engines, which keep their memory", rollout.bytes),
                _beside(rollout, "trainer, which keeps its state", ranks * waiting),
            ]
    found = Sizing(
        phases=tuple(phases),
        engine=engine,
        reference=_reference(case) if case.needs.reference and case.spec.reference.engine is None else 0,
        offloaded=offloaded(model, spec.trainer),
        disk=_disk(case),
        estimate=estimate(case, running_samples(case, engine)),
        warnings=(),
    )
    return replace(found, warnings=tuple(_warnings(case, found)))


def _in_turns(train: Phase, rollout: Phase, waiting: int, kept: int, *, on_gpu: bool) -> list[Phase]:
    """Where engines sleep while the trainer works, and it leaves while they do; both are there for an update
    of the weights.
    """
    context = CONTEXT if on_gpu else 0
    update = Phase("weight update", tuple(part for part in rollout.parts if part.name == "weights"))
    return [
        _beside(train, "engines, asleep", context),
        _beside(update, "trainer", waiting + context),
        _beside(rollout, "trainer, which has left" if on_gpu else "trainer", kept + context),
    ]


def running_samples(case: Case, engine: EngineMemory | None) -> int:
    """Samples of mean length that an engine decodes at a time."""
    if engine is None:
        return 0
    mean = max(case.load.prompt + case.load.response, 1)
    return max(1, min(case.spec.engine.max_running, int(engine.cache_tokens / mean)))


def _reference(case: Case) -> int:
    """As large as the policy where that is not offloaded."""
    at_home = case.spec.trainer.model_copy(update={"offload": "none"})
    return training(case.model, at_home, gpu=False).part("parameters")


def _companions(case: Case) -> Iterator[Part]:
    """Other models on the trainer's devices."""
    spec = case.spec
    if case.needs.critic:
        yield critic(case.model, spec.trainer, spec.critic, gpu=spec.cluster.gpus_per_node > 0)
    if case.teacher is not None and spec.teacher is not None:
        yield teacher(case.teacher, spec.trainer, spec.teacher)


def _static_share(spec: Spec) -> float:
    """`mem_fraction_static`, as the spec gives it to SGLang."""
    given = spec.engine.sglang.get("mem_fraction_static", SGLANG_SHARE)
    return given if isinstance(given, float) else SGLANG_SHARE


def gib(count: float) -> str:
    """Bytes as people read them."""
    if count < 0.1 * GIB:
        return f"{count / 2**20:.3g} MiB"
    return f"{count / GIB:.3g} GiB" if count < 1000 * GIB else f"{count / GIB:,.0f} GiB"


def _nodes(case: Case) -> range:
    return range(case.spec.cluster.nodes)


def _times(phase: Phase, processes: int) -> Phase:
    if processes == 1:
        return phase
    parts = tuple(
        Part(part.name, part.bytes * processes, f"{processes} × ({part.how})") for part in phase.parts
    )
    return Phase(phase.name, parts)


def _split(phase: Phase, gpus: int) -> Phase:
    """On one of the GPUs of a server."""
    if gpus == 1:
        return phase
    parts = (Part(part.name, -(-part.bytes // gpus), f"({part.how}) / {gpus} GPUs") for part in phase.parts)
    return Phase(phase.name, tuple(parts))


def _beside(phase: Phase, name: str, held: int) -> Phase:
    return Phase(phase.name, (*phase.parts, Part(name, held, "on the same device")))


def _disk(case: Case) -> int:
    spec = case.spec
    kept = spec.checkpoint.keep if spec.checkpoint.interval else 1
    one_more = 1 if spec.checkpoint.interval else 0  # the oldest goes when a newer one is complete
    exported = export_bytes(case.model) if spec.checkpoint.export_hf else 0
    return (kept + one_more) * checkpoint_bytes(case.model, spec.trainer) + exported


def _warnings(case: Case, found: Sizing) -> list[str]:
    warnings = []
    has = f"{case.device.name} has {gib(case.device.memory)}"
    for phase in found.phases:
        if phase.bytes > case.device.memory:
            largest = max(phase.parts, key=lambda part: part.bytes)
            warnings.append(
                f"{phase.name} needs {gib(phase.bytes)} and {has}: most of it is {largest.name} "
                f"({gib(largest.bytes)}); {_cure(largest.name, case)}"
            )
    if found.engine is not None and not found.engine.concurrent:
        warnings.append(
            f"the KV cache has room for {found.engine.cache_tokens:,} tokens and a sample may have "
            f"{case.plan.max_sample_tokens:,}: generation would not start; use larger devices, more of "
            "them, or shorter samples"
        )
    elif found.engine is not None and found.engine.cache_tokens < found.engine.wanted_tokens:
        warnings.append(
            f"the KV cache has room for {found.engine.cache_tokens:,} of the {found.engine.wanted_tokens:,} "
            f"tokens asked for: {found.engine.concurrent} samples of full length at a time"
        )
    return warnings


def _cure(name: str, case: Case) -> str:
    if name in ("activations", "logits"):
        return "lower trainer.max_tokens_per_rank, or raise trainer.parallel.tensor or context"
    if name in ("KV cache", "engines, which keep their memory"):
        return "lower engine.max_cache_tokens or engine.max_running, or place engines apart"
    if name == "weights":
        return "use larger devices, or servers over more of them (engine.tensor): one holds the whole model"
    return "raise trainer.parallel.fsdp, or tensor and pipeline" + (
        "" if case.spec.trainer.dtype == "bfloat16" else '; or dtype = "bfloat16"'
    )

"""How much memory a job takes on each device in each phase, from its spec and the model's config.json.

Parameters, gradients, optimizer state and KV cache are counted; activations are estimated, and say so.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from rlrun.models.architecture import Architecture
from rlrun.runner.planning.activations import ITEM, activation_bytes, logit_bytes, mask_bytes
from rlrun.runner.planning.model_size import Share, largest_share, parameter_count
from rlrun.specs.sections.companions import CriticSpec, TeacherSpec, companion_layout
from rlrun.specs.sections.engine import EngineSpec
from rlrun.specs.sections.optimizer import OptimizerSpec
from rlrun.specs.sections.trainer import TrainerSpec

CACHE_BLOCK = 16
"""Tokens in a block of the native engine's KV cache."""
CACHE_SHARE = 0.5
"""Of the memory that is free when an engine starts, the native engine's cache takes at most this."""
SGLANG_SHARE = 0.85
"""Of a whole device, SGLang's weights and cache take this, where `mem_fraction_static` does not say."""
_COMPUTED_AGAIN = {"none": "nothing", "selective": "a part", "full": "all but layers' inputs"}
CONTEXT = 1536 * 2**20
"""CUDA's and NCCL's own memory in a process."""


@dataclass(frozen=True, slots=True)
class Part:
    """One use of memory on one device."""

    name: str
    bytes: int
    how: str
    """Where the number comes from."""


@dataclass(frozen=True, slots=True)
class Phase:
    """What is in a device's memory at the same time."""

    name: str
    parts: tuple[Part, ...]

    @property
    def bytes(self) -> int:
        """In all."""
        return sum(part.bytes for part in self.parts)

    def part(self, name: str) -> int:
        """Bytes of one part; 0 where there is none of that name."""
        return sum(part.bytes for part in self.parts if part.name == name)


def training(
    model: Architecture, trainer: TrainerSpec, longest: int = 0, *, gpu: bool, candidates: int = 0
) -> Phase:
    """The rank that holds most, in the backward pass of a full micro-batch, or of one sample of `longest`
    tokens where that is more; where micro-batches have a number of samples, all of them as long.
    """
    samples, context = trainer.micro_batch_size, trainer.parallel.context
    most = max(trainer.max_tokens_per_rank * context, longest) if samples is None else samples * longest
    tokens = -(-most // context)
    share = largest_share(model, trainer.parallel, trainer.freeze)
    alone = trainer.parallel.world_size == 1
    item = ITEM[trainer.dtype]
    parts = list(_state(share, trainer, trainer.offload if gpu else "none"))
    if not alone:
        gathered = 3 * share.block * item
        parts.append(Part("gathered layers", gathered, "two layers and one's gradient, whole, between ranks"))
    how = f"estimated: {_COMPUTED_AGAIN[trainer.activation_checkpointing]} is recomputed"
    parts += [
        Part(
            "activations",
            activation_bytes(model, trainer, share, tokens),
            how,
        ),
        Part("logits", logit_bytes(model, trainer, tokens), f"{trainer.logits_chunk} tokens at a time"),
        Part("sampling masks", mask_bytes(model, trainer, tokens, candidates), f"{candidates} of each token"),
        *([Part("CUDA and NCCL", CONTEXT, "assumed")] if gpu else []),
    ]
    return Phase("training", tuple(part for part in parts if part.bytes))


def _state(share: Share, spec: TrainerSpec, offload: str) -> Iterator[Part]:
    """What a rank holds on its device between forward and backward passes. What is offloaded comes by: a few
    parameters' optimizer state when activations are gone, a layer's shard while it is gathered.
    """
    alone, item = spec.parallel.world_size == 1, ITEM[spec.dtype]
    copies = (item if alone else 0) if offload == "all" else 4 + (item if alone and item < 4 else 0)
    yield Part("parameters", share.parameters * copies, f"{share.parameters:,} × {copies} bytes")
    if offload != "all":
        yield Part("gradients", share.trained * 4, f"{share.trained:,} × 4 bytes")
    if offload == "none":
        state = optimizer_bytes(share, spec)
        yield Part("optimizer", state, f"{spec.optimizer}: {state / max(share.trained, 1):.3g} bytes each")


def critic(model: Architecture, trainer: TrainerSpec, spec: CriticSpec, *, gpu: bool) -> Part:
    """A critic's parameters, gradients and optimizer state."""
    share = critic_share(model, trainer, spec)
    own = trainer.model_copy(
        update={"optimizer": spec.optimizer, "parallel": companion_layout(spec.parallel, _ranks(trainer))}
    )
    size = sum(part.bytes for part in _state(share, own, trainer.offload if gpu else "none"))
    return Part("critic", size, f"{share.parameters:,} parameters, trained by {spec.optimizer}")


def critic_share(model: Architecture, trainer: TrainerSpec, spec: CriticSpec) -> Share:
    """Of the policy with a value head for a head."""
    return largest_share(replace(model, tied=True), companion_layout(spec.parallel, _ranks(trainer)))


def _ranks(trainer: TrainerSpec) -> int:
    return trainer.parallel.world_size


def teacher(model: Architecture, trainer: TrainerSpec, spec: TeacherSpec) -> Part:
    """A teacher's parameters."""
    share = largest_share(model, companion_layout(spec.parallel, _ranks(trainer)))
    item = ITEM[trainer.dtype] if _ranks(trainer) == 1 else 4
    return Part("teacher", share.parameters * item, f"{share.parameters:,} × {item} bytes")


def optimizer_bytes(share: Share, spec: OptimizerSpec) -> int:
    """Optimizer state of a share."""
    match spec.optimizer:
        case "adamw":
            return share.trained * 8
        case "sgd":
            return share.trained * 4
        case "muon":
            return share.hidden * 4 + (share.trained - share.hidden) * 8


def cache_token_bytes(model: Architecture, dtype: str) -> int:
    """KV cache of one token in all layers; latent attention keeps one vector and the key's rotated part."""
    if model.latent is not None:
        return model.layers * (model.latent.kv_rank + model.latent.rotated_dim) * ITEM[dtype]
    return 2 * model.layers * model.kv_heads * model.head_dim * ITEM[dtype]


@dataclass(frozen=True, slots=True)
class EngineMemory:
    """An engine's memory and what fits into its cache."""

    phase: Phase
    cache_tokens: int
    concurrent: int
    """Samples of full length that are decoded at a time; shorter ones make room for more."""
    wanted_tokens: int
    """Cache that the spec asks for."""


def generating(
    model: Architecture,
    engine: EngineSpec,
    longest: int,
    free: int | None,
    share: float = CACHE_SHARE,
    *,
    head_copy: bool = False,
) -> EngineMemory:
    """An engine whose samples have at most `longest` tokens.

    `free`: bytes that are free on its device when it starts; None: enough. `share`: of what the weights leave
    of it, for the cache. `head_copy`: it makes a float32 copy of its head.
    """
    each = cache_token_bytes(model, engine.dtype)
    wanted = engine.max_cache_tokens or engine.max_running * (longest + 2 * CACHE_BLOCK)
    weights = parameter_count(model) * ITEM[engine.dtype]
    head = model.vocab * model.hidden * 4 if head_copy and engine.dtype != "float32" else 0
    left = None if free is None else max(free - weights - head, 0)
    tokens = wanted if left is None else min(wanted, int(left * share) // each // CACHE_BLOCK * CACHE_BLOCK)
    blocks = -(-tokens // CACHE_BLOCK) + 2  # the spare one, and one for the block that a sample begins
    phase = Phase(
        "generation",
        (
            Part("weights", weights, f"{parameter_count(model):,} × {ITEM[engine.dtype]} bytes"),
            *([Part("float32 head", head, "trainer.head_dtype")] if head else []),
            Part("KV cache", blocks * CACHE_BLOCK * each, f"{tokens:,} tokens × {each:,} bytes"),
        ),
    )
    return EngineMemory(phase, tokens, min(engine.max_running, tokens // longest), wanted)


def times(phase: Phase, processes: int) -> Phase:
    """So many processes on one device."""
    if processes == 1:
        return phase
    parts = (Part(part.name, part.bytes * processes, f"{processes} × ({part.how})") for part in phase.parts)
    return Phase(phase.name, tuple(parts))

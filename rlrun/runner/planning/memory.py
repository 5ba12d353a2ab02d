"""Counts the memory of one rank or engine from the spec and the model's config.json.

Parameters, gradients, optimizer state and KV cache are exact counts; activations are estimates and are
labelled as such.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from rlrun.models.adapters import BASE_BYTES, quantised_matrices
from rlrun.models.architecture import Architecture, scoring_model
from rlrun.runner.planning.activations import (
    ITEM_BYTES,
    activation_bytes,
    all_logit_bytes,
    compared_bytes,
    forward_bytes,
    image_bytes,
    logit_bytes,
    mask_bytes,
)
from rlrun.runner.planning.rank_layout import largest_forward_batch, largest_micro_batch
from rlrun.runner.planning.rank_share import RankShare, largest_share, policy_share
from rlrun.runner.planning.served_weights import served_model, served_weight_bytes
from rlrun.specs.derived.server_size import attention_parts_of
from rlrun.specs.sections.auxiliary_models import CriticSpec, TeacherSpec, auxiliary_layout
from rlrun.specs.sections.engine import EngineSpec
from rlrun.specs.sections.optimizer import OptimizerSpec
from rlrun.specs.sections.trainer import LoraSpec, TrainerSpec

CACHE_BLOCK = 16
"""Tokens in a block of the native engine's KV cache."""
GPU_PAGE = 256
"""Tokens in a block of that cache on GPUs in bfloat16, where flash attention reads it."""
CACHE_SHARE = 0.5
"""The largest share of the memory free at an engine's start that the native engine's cache takes."""
SGLANG_SHARE = 0.85
"""The share of a device that SGLang's weights and cache take unless `mem_fraction_static` sets another."""
_CHECKPOINTING = {"none": "without", "selective": "with selective", "full": "with full"}
CUDA_CONTEXT_BYTES = 1536 * 2**20
"""Memory that CUDA and NCCL take in each process."""


@dataclass(frozen=True, slots=True)
class Part:
    """One use of memory on one device."""

    name: str
    bytes: int
    how: str
    """How the number was computed."""


@dataclass(frozen=True, slots=True)
class Phase:
    """A phase of a job, and the parts that are in a device's memory during it."""

    name: str
    parts: tuple[Part, ...]

    @property
    def bytes(self) -> int:
        """Bytes of all parts together."""
        return sum(part.bytes for part in self.parts)

    def part_bytes(self, name: str) -> int:
        """Returns the bytes of the parts with the given name; 0 if the phase has none."""
        return sum(part.bytes for part in self.parts if part.name == name)


def training_phase(
    model: Architecture,
    trainer: TrainerSpec,
    longest: int = 0,
    *,
    gpu: bool,
    candidates: int = 0,
    compared: int = 0,
    wide_stream: bool = False,
) -> Phase:
    """Returns the memory of the fullest rank during the backward pass of its largest micro-batch.

    Samples have at most `longest` tokens. `candidates` is the number of ids per token in sampling masks, and
    `compared` that of the teacher's tokens which the loss compares.
    `wide_stream`: the residual stream is float32, as with `true_on_policy` on GPUs.
    """
    context = trainer.parallel.context
    tokens = -(-largest_micro_batch(trainer, longest) // context)
    forward_tokens = -(-largest_forward_batch(trainer, longest) // context)
    share = policy_share(model, trainer)
    alone = trainer.parallel.world_size == 1
    parts = list(_state(share, trainer, trainer.offload if gpu else "none"))
    if trainer.lora is not None and trainer.lora.base is not None:
        parts.append(_decoded_matrix(model, trainer))
    if not alone:
        parts.append(_gathered_layers(share, trainer))
    how = f"estimated, {_CHECKPOINTING[trainer.activation_checkpointing]} checkpointing"
    activations = activation_bytes(model, trainer, share, tokens, wide_stream=wide_stream)
    if (forward := forward_bytes(model, trainer, forward_tokens)) > activations:
        activations, how = forward, f"estimated, of {forward_tokens:,} tokens without gradients"
    parts += [
        Part("activations", activations, how),
        Part("images", image_bytes(model, trainer, tokens), "estimated, if all tokens show images"),
        Part("logits", logit_bytes(model, trainer, tokens), _how_logits(model, trainer, tokens)),
        Part(
            "sampling masks",
            mask_bytes(model, trainer, max(tokens, forward_tokens), candidates),
            f"{candidates} candidates per token",
        ),
        Part(
            "teacher's top tokens",
            compared_bytes(model, trainer, tokens, compared),
            f"{compared} per token, {trainer.logits_chunk} tokens' logits at a time",
        ),
        *([Part("CUDA and NCCL", CUDA_CONTEXT_BYTES, "assumed")] if gpu else []),
    ]
    return Phase("training", tuple(part for part in parts if part.bytes))


def _how_logits(model: Architecture, trainer: TrainerSpec, tokens: int) -> str:
    how, size = f"{trainer.logits_chunk} tokens at a time", all_logit_bytes(model, trainer, tokens) / 2**20
    return f"{how}, {min(trainer.kept_logits, size):,.0f} of {size:,.0f} MiB kept" if size else how


def _gathered_layers(share: RankShare, trainer: TrainerSpec) -> Part:
    """Returns the layers that FSDP has gathered, and the gradients that it has not reduced yet.

    A pipeline adds up the float32 gradients of all micro-batches before it reduces them. Frozen parameters
    have no gradients.
    """
    item, base = ITEM_BYTES[trainer.dtype], trainer.lora.base if trainer.lora else None
    block = share.block.bytes(item, base)
    keeps = trainer.parallel.keeps_gathered
    size, how = (share.gathered.bytes(item, base), "all") if keeps else (2 * block, "two")
    how += " gathered layers"
    if trainer.lora is not None:
        # a trained layer's gradient comes when the buffer of the next layer is free; adapters' are small
        arriving = 2 if keeps else 1
        size, how = size + arriving * block, f"{how}, and buffers for {arriving} more"
    size = round(size)
    if trainer.parallel.pipeline > 1:
        gradients = share.gathered.trained * 4
        return Part("gathered layers", size + gradients, f"{how}, and all gradients in float32")
    gradients = share.block.trained * item
    return Part("gathered layers", size + gradients, f"{how}, and one layer's gradient")


def _state(share: RankShare, spec: TrainerSpec, offload: str) -> Iterator[Part]:
    """Yields the training state that a rank keeps on its device between passes.

    Offloaded state is not counted: it visits the device a few parameters at a time when the activations are
    gone, or as one layer's shard while that layer is gathered.
    """
    alone, item = spec.parallel.world_size == 1, ITEM_BYTES[spec.dtype]
    copies = (item if alone else 0) if offload == "all" else 4 + (item if alone and item < 4 else 0)
    frozen = share.parameters - share.trained if spec.lora else 0
    if frozen:
        yield _frozen(share.quantised, frozen - share.quantised, item, spec.lora)
    own = share.parameters - frozen
    yield Part("parameters", own * copies, f"{own:,} × {copies} bytes")
    if offload != "all":
        yield Part("gradients", share.trained * 4, f"{share.trained:,} × 4 bytes")
    if offload == "none":
        state = optimizer_bytes(share, spec)
        per_parameter = state / max(share.trained, 1)
        yield Part("optimizer", state, f"{spec.optimizer}: {per_parameter:.3g} bytes per parameter")


def _frozen(quantised: int, others: int, size: int, lora: LoraSpec | None) -> Part:
    """Returns the frozen parameters of a model with adapters; those not quantised take `size` bytes each."""
    nbytes, how = others * size, f"{others:,} × {size} bytes"
    if lora is not None and lora.base is not None:
        per_value = BASE_BYTES[lora.base]
        nbytes += round(quantised * per_value)
        how = f"{quantised:,} × {per_value:.4g} bytes ({lora.base}), {how}"
    return Part("frozen parameters", nbytes, how)


def _decoded_matrix(model: Architecture, trainer: TrainerSpec) -> Part:
    """Returns the memory of a matrix that is decoded for a product: float32 values, and 2 bytes per value for
    the codes before, or the result in bfloat16 after.
    """
    ranks = trainer.parallel.tensor
    largest = max(prod(matrix.shape) for matrix in quantised_matrices(model)) // ranks
    return Part("decoded matrix", largest * 6, f"{largest:,} × 6 bytes")


def critic_part(model: Architecture, trainer: TrainerSpec, spec: CriticSpec, *, gpu: bool) -> Part:
    """Returns the memory of a critic's parameters, gradients and optimizer state on one rank."""
    share = critic_share(model, trainer, spec)
    critics_trainer = trainer.model_copy(
        update={
            "optimizer": spec.optimizer,
            "parallel": auxiliary_layout(spec.parallel, _ranks(trainer)),
            "lora": None,  # a critic is trained as a whole
        }
    )
    size = sum(part.bytes for part in _state(share, critics_trainer, trainer.offload if gpu else "none"))
    return Part("critic", size, f"{share.parameters:,} parameters, trained by {spec.optimizer}")


def critic_share(model: Architecture, trainer: TrainerSpec, spec: CriticSpec) -> RankShare:
    """Returns a rank's largest share of a critic: the policy with a value head in place of the LM head."""
    return largest_share(scoring_model(model), auxiliary_layout(spec.parallel, _ranks(trainer)))


def _ranks(trainer: TrainerSpec) -> int:
    return trainer.parallel.world_size


def teacher_part(model: Architecture, trainer: TrainerSpec, spec: TeacherSpec) -> Part:
    """Returns the memory of a teacher's parameters on one rank."""
    share = largest_share(model, auxiliary_layout(spec.parallel, _ranks(trainer)))
    item = ITEM_BYTES[trainer.dtype] if _ranks(trainer) == 1 else 4
    return Part("teacher", share.parameters * item, f"{share.parameters:,} × {item} bytes")


def optimizer_bytes(share: RankShare, spec: OptimizerSpec) -> int:
    """Returns the bytes of the optimizer state for a rank's share."""
    match spec.optimizer:
        case "adamw":
            return share.trained * 8
        case "adamw_8bit":
            # two codes of one byte, and a float32 scale for each 256 codes; the few parameters whose moments
            # stay in float32 (norms) are counted the same way
            return share.trained * 2 + share.trained // 256 * 8
        case "adamw_stateless":
            return 0
        case "sgd":
            return share.trained * 4
        case "muon":
            return share.hidden * 4 + (share.trained - share.hidden) * 8


def cache_token_bytes(model: Architecture, engine: EngineSpec) -> int:
    """Returns the bytes of one token's KV cache over all layers.

    With latent attention, SGLang caches one latent vector and the rotated part of the key, and for indexers a
    key in FP8 with a float32 scale; the native engine caches the keys and values of every head.
    """
    item = ITEM_BYTES[engine.dtype]
    if model.latent is not None and engine.type != "native":
        index_key = 0 if model.indexer is None else model.indexer.head_dim + 4
        return model.layers * ((model.latent.kv_rank + model.latent.rotated_dim) * item + index_key)
    return 2 * model.attention_layers * model.cached_heads * model.head_dim * item


@dataclass(frozen=True, slots=True)
class EngineMemory:
    """An engine's memory and how much fits into its KV cache."""

    phase: Phase
    cache_tokens: int
    concurrent: int
    """Number of samples of full length that are decoded at a time; more fit if they are shorter."""
    requested_tokens: int
    """Tokens of cache that the spec asks for."""


@dataclass(frozen=True, slots=True)
class DraftMemory:
    """What an SGLang server needs for speculative decoding besides the model that it serves."""

    verified: int = 0
    """Tokens of a sample that are verified in one pass."""
    parts: tuple[Part, ...] = ()
    """The weights of the draft model."""
    token_bytes: int = 0
    """Bytes of one token in the draft model's KV cache, which has as many tokens as the server's own."""
    logits: Part | None = None
    """Logits of all verified tokens, which are outside of the share for weights and caches."""

    def further_parts(self, tokens: int) -> Iterator[Part]:
        """Yields the parts beside the weights, for a cache of this number of tokens."""
        if self.token_bytes:
            how = f"{tokens:,} tokens × {self.token_bytes:,} bytes"
            yield Part("draft KV cache", tokens * self.token_bytes, how)
        if self.logits is not None:
            yield self.logits


def size_engine(
    model: Architecture,
    engine: EngineSpec,
    longest: int,
    free: int | None,
    share: float = CACHE_SHARE,
    *,
    head_copy: bool = False,
    block: int = CACHE_BLOCK,
    copies: int = 1,
    kept: int = 0,
    adapter_part: Part | None = None,
    drafts: DraftMemory | None = None,
) -> EngineMemory:
    """Returns the memory of an engine whose samples have at most `longest` tokens.

    `free` is the number of bytes free on its device when it starts; None means that there are enough. `share`
    is the part of the memory left by the weights that the cache may take. `head_copy` says that the engine
    makes a float32 copy of its head. `block` is the number of tokens in a block of its cache. `copies` is the
    number of devices that hold the same part of a token's cache (`cache_copies`). `kept` is the number of
    ended samples that the engine keeps, in the cache that it has anyway, and with a recurrent state each.
    `adapter_part` is the memory that a server has for adapters, `drafts` that for speculative decoding.
    """
    drafts = drafts or DraftMemory()
    token_bytes = cache_token_bytes(model, engine) * copies
    # SGLang allocates the cache of two passes in advance (mem_cache/allocation_sizing.py).
    requested = engine.max_cache_tokens or engine.max_running * (longest + 2 * block + 2 * drafts.verified)
    weights, how = served_weight_bytes(served_model(model, engine), engine)
    head = model.vocab * model.hidden * 4 if head_copy and engine.dtype != "float32" else 0
    tokens, rows = requested, engine.max_running + 1 + kept  # a spare row takes the padding
    adapters = () if adapter_part is None else (adapter_part,)
    beside_weights = (*adapters, *drafts.parts)
    # A verified token that is wrong is undone by the states before it.
    states = rows * model.state_bytes(ITEM_BYTES[engine.dtype]) * (1 + drafts.verified)
    if free is not None:
        taken = weights + head + states + sum(part.bytes for part in beside_weights)
        cache_bytes = int(max(free - taken, 0) * share)
        tokens = min(requested, cache_bytes // (token_bytes + drafts.token_bytes) // block * block)
    blocks = -(-tokens // block) + 2  # the engine's spare block, and the one that a new sample begins
    phase = Phase(
        "generation",
        (
            Part("weights", weights, how),
            *beside_weights,
            *([Part("float32 head", head, "trainer.head_dtype")] if head else []),
            *([Part("recurrent states", states, f"{rows:,} × {states // rows:,} bytes")] if states else []),
            Part("KV cache", blocks * block * token_bytes, _how_cached(tokens, token_bytes, copies)),
            *drafts.further_parts(blocks * block),
        ),
    )
    return EngineMemory(phase, tokens, min(engine.max_running, tokens // longest), requested)


def _how_cached(tokens: int, token_bytes: int, copies: int) -> str:
    on_several = f" × {copies} copies" if copies > 1 else ""
    return f"{tokens:,} tokens × {token_bytes // copies:,} bytes{on_several}"


def cache_copies(model: Architecture, engine: EngineSpec) -> int:
    """Returns how many GPUs of an SGLang server hold the same part of a token's cache.

    Tensor-parallel ranks divide the heads of keys and values; beyond one head per rank they hold copies.
    Latent attention counts as one head (SGLang's `ModelConfig.get_num_kv_heads`). Data-parallel attention
    gives each of its parts samples of its own.
    """
    return copies_of_heads(1 if model.latent is not None else model.kv_heads, engine)


def copies_of_heads(heads: int, engine: EngineSpec) -> int:
    """Returns how many GPUs of a server hold each of a cache's heads of keys and values."""
    return max(1, engine.tensor // attention_parts_of(engine) // heads)


def multiply_phase(phase: Phase, processes: int) -> Phase:
    """Returns the phase of several equal processes on one device."""
    if processes == 1:
        return phase
    parts = (Part(part.name, part.bytes * processes, f"{processes} × ({part.how})") for part in phase.parts)
    return Phase(phase.name, tuple(parts))

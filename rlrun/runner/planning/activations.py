"""Estimates the memory of forward and backward passes from shapes; `rlrun plan --deep` traces it instead."""

from rlrun.models.architecture import Architecture
from rlrun.models.attention_shapes import DeltaNet
from rlrun.models.computation.delta_rule import CHUNK
from rlrun.runner.planning.rank_share import RankShare
from rlrun.specs.sections.trainer import TrainerSpec

ITEM_BYTES = {"float32": 4, "bfloat16": 2}
"""Bytes of one number, by dtype."""


def activation_bytes(
    model: Architecture, trainer: TrainerSpec, share: RankShare, tokens: int, *, wide_stream: bool = False
) -> int:
    """Returns the bytes that forward passes keep for backward passes.

    `wide_stream`: the residual stream is float32 between layers that compute in bfloat16.

    Without checkpointing these are all activations of every layer. With it, each layer keeps only what is not
    recomputed, and the layer whose backward pass runs has all of its activations.
    """
    parallel = trainer.parallel
    shared = parallel.tensor if parallel.sequence_parallel else 1
    whole = _layer(model, shared, parallel.tensor)
    entry = model.hidden / shared
    match trainer.activation_checkpointing:
        case "none":
            kept, recomputed = whole + _routing(model, parallel.tensor), 0.0
        case "full":
            kept, recomputed = entry, whole
        case "selective":
            kept, recomputed = entry + _selected(model, shared, parallel.tensor), whole
    kept += entry if wide_stream else 0
    in_flight = parallel.pipeline  # the first stage has this many micro-batches between forward and backward
    return int(tokens * (share.layers * kept * in_flight + recomputed) * ITEM_BYTES[trainer.dtype])


def _layer(model: Architecture, shared: int, tensor: int) -> float:
    """Returns the number of elements per token in a layer.

    These are 6 hidden (residual stream, norms, their outputs), 4 queries and 6 keys (projected, normed,
    rotated; the attention's output), and 4 feed-forward (gate, up, silu, product). Only those experts
    count that a token is routed to, with the token's hidden state before and after each of them. Layers with
    Gated DeltaNet count in proportion to their number.
    """
    gates = 2 if model.output_gate else 0  # the gate, and its product with the attention's output
    inner: float = (4 + gates) * model.heads * model.head_dim + 6 * model.kv_heads * model.head_dim
    if delta := model.delta:
        share = len(delta.layers) / model.layers
        inner = (1 - share) * inner + share * _delta_net(delta)
    if experts := model.experts:
        sparse = len(experts.layers) / model.layers
        routed = experts.per_token * (4 * experts.intermediate + 2 * model.hidden)
        routed += 4 * experts.shared
        feed_forward = sparse * routed + (1 - sparse) * 4 * model.intermediate
    else:
        feed_forward = 4 * model.intermediate
    return 6 * model.hidden / shared + (inner + feed_forward) / tensor


def _delta_net(delta: DeltaNet) -> float:
    """Returns the number of elements per token in Gated DeltaNet.

    These are queries, keys and values before and after the convolution, queries and keys scaled and repeated
    for each value head, a row of each head's chunk, and five times the values (gate, output of the rule,
    normed, gated, and the values of the rule).
    """
    repeated = 2 * delta.value_heads * delta.key_dim
    return 2 * delta.channels + repeated + delta.value_heads * CHUNK + 5 * delta.values


def _routing(model: Architecture, tensor: int) -> float:
    """Returns the elements per token that routing adds to `_layer` without activation checkpointing.

    Dry runs show four hidden states for each of a token's experts: their results are weighted in float32.
    """
    if model.experts is None:
        return 0.0
    sparse = len(model.experts.layers) / model.layers
    return sparse * model.experts.per_token * 4 * model.hidden / tensor


def _selected(model: Architecture, shared: int, tensor: int) -> float:
    """Returns the elements per token that selective checkpointing keeps of a layer.

    It keeps the attention's output and every other matrix product; experts are recomputed.
    """
    queries, keys = model.heads * model.head_dim, model.kv_heads * model.head_dim
    dense = 1 - (len(model.experts.layers) / model.layers if model.experts else 0)
    split = queries + 2 * keys + dense * 2 * model.intermediate
    return queries / tensor + (split / tensor + (1 + dense) * model.hidden / shared) / 2


def image_bytes(model: Architecture, trainer: TrainerSpec, tokens: int) -> int:
    """Returns the bytes that a vision tower keeps, and of the patches, if all tokens show images.

    Elements per patch in a block are 6 hidden (residual stream, norms, their outputs), 4 hidden in attention
    (queries, keys, values, output) and 4 feed-forward. A frozen tower has one block's at a time. With
    checkpointing a trained one has those, and every block's input.
    """
    tower = model.tower
    if tower is None:
        return 0
    block = 10 * tower.hidden + 4 * tower.intermediate
    if trainer.vision_tower != "trained":
        kept = block
    elif trainer.activation_checkpointing == "none":
        kept = tower.depth * block
    else:
        kept = block + tower.depth * tower.hidden
    return tokens * tower.merge**2 * (kept * ITEM_BYTES[trainer.dtype] + tower.patch_size * 4)


def logit_bytes(model: Architecture, trainer: TrainerSpec, tokens: int) -> int:
    """Returns the bytes of a chunk's logits with the softmax's two float32 tensors of their size, of kept
    logits, and of the head's gradient.

    With a float32 head no logits are kept, and the head's weights and gradient have a float32 copy each.
    """
    vocab, item = -(-model.vocab // trainer.parallel.tensor), ITEM_BYTES[trainer.dtype]
    rows = min(trainer.logits_chunk, tokens)
    if trainer.head_dtype == "float32" and item < 4:
        return rows * vocab * (4 + 8) + vocab * model.hidden * (4 + 4)
    kept = min(all_logit_bytes(model, trainer, tokens), trainer.kept_logits * 2**20)
    return rows * vocab * (item + 8) + kept + vocab * model.hidden * item


def all_logit_bytes(model: Architecture, trainer: TrainerSpec, tokens: int) -> int:
    """Returns the bytes of half-precision logits of all tokens, which can be kept; 0 for float32 logits."""
    item = ITEM_BYTES[trainer.dtype]
    if trainer.head_dtype == "float32" or item == 4:
        return 0
    return tokens * -(-model.vocab // trainer.parallel.tensor) * item


def mask_bytes(model: Architecture, trainer: TrainerSpec, tokens: int, candidates: int) -> int:
    """Returns the bytes of sampling masks with `candidates` ids per token.

    These are the ids of all tokens of the micro-batch, and for a chunk of tokens the mask of excluded
    vocabulary with the row and column indices of the candidates.
    """
    vocab, rows = -(-model.vocab // trainer.parallel.tensor), min(trainer.logits_chunk, tokens)
    return tokens * (4 * candidates + 8) + rows * (vocab + 1 + 24 * candidates) if candidates else 0

"""Estimates the memory of forward and backward passes from shapes; `rlrun plan --deep` traces it instead."""

from rlrun.models.architecture import INDEX_SCORES, Architecture, DeltaNet
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
    recomputed, and the layer whose backward pass runs has all of its activations. That of experts has the
    gradients of their tokens besides.
    """
    parallel = trainer.parallel
    shared = parallel.tensor if parallel.sequence_parallel else 1
    whole = _layer(model, shared, parallel.tensor, ITEM_BYTES[trainer.dtype])
    entry = model.hidden / shared
    if wide_stream:
        # both sums of the stream take twice the memory, and SiLU's rounded result is kept (`model.target`)
        whole += 2 * entry + model.intermediate / parallel.tensor
        entry *= 2
    match trainer.activation_checkpointing:
        case "none":
            kept, once = whole, 0.0
        case "full":
            kept, once = entry, whole
        case "selective":
            kept, once = entry + _selected(model, shared, parallel.tensor), whole
    once += _expert_gradients(model, parallel.tensor)
    in_flight = parallel.pipeline  # the first stage has this many micro-batches between forward and backward
    passes = share.layers * kept * in_flight
    chosen = _chosen_bytes(model, trainer, tokens) * share.layers / model.layers * in_flight
    return int(tokens * ((passes + once) * ITEM_BYTES[trainer.dtype] + chosen)) + score_bytes(model, tokens)


def _chosen_bytes(model: Architecture, trainer: TrainerSpec, tokens: int) -> int:
    """Returns the bytes per token of the keys that indexers choose, of all layers: int32 positions.

    With full checkpointing only those stay that later layers share; others are chosen again.
    """
    indexer = model.indexer
    if indexer is None or tokens <= indexer.top_k:
        return 0
    kept = sum(
        trainer.activation_checkpointing != "full" or indexer.is_shared(layer, model.layers)
        for layer in indexer.layers
    )
    return 4 * indexer.top_k * kept


def score_bytes(model: Architecture, tokens: int) -> int:
    """Returns the bytes of an indexer's scores of a few queries, which traces do not see."""
    indexer = model.indexer
    if indexer is None or tokens <= indexer.top_k:
        return 0
    return 4 * min(INDEX_SCORES, indexer.heads * tokens**2)


def forward_bytes(model: Architecture, trainer: TrainerSpec, tokens: int) -> int:
    """Returns the bytes of a pass without gradients, which holds the activations of one layer at a time."""
    parallel = trainer.parallel
    shared = parallel.tensor if parallel.sequence_parallel else 1
    item = ITEM_BYTES[trainer.dtype]
    return int(tokens * _layer(model, shared, parallel.tensor, item) * item) + score_bytes(model, tokens)


def _layer(model: Architecture, shared: int, tensor: int, item: int) -> float:
    """Returns the number of elements per token in a layer; `item`: bytes of an element.

    These are 4 hidden (the residual stream before each norm, and the norms' outputs, which tensor-parallel
    ranks have gathered as well), 2 queries (rotated, and the attention's output), 2 keys (rotated, and the
    values), a query and a key more if they are normed or made of two parts, and 3 feed-forward (gate, up,
    product). Only those experts count that a token is routed to, with 3 hidden each: the token's state, and
    the expert's output in float32, which its score is multiplied with. Layers with Gated DeltaNet count in
    proportion to their number.

    They are what `rlrun plan --deep` traces, and what an H200 took (docs/gpu.md).
    """
    gates = 2 if model.output_gate else 0  # the gate, and its product with the attention's output
    each = 3 if model.qk_norm or model.latent else 2
    inner: float = (each + gates) * model.heads * model.head_dim + each * model.kv_heads * model.head_dim
    if delta := model.delta:
        share = len(delta.layers) / model.layers
        inner = (1 - share) * inner + share * _delta_net(delta, item)
    if experts := model.experts:
        sparse = len(experts.layers) / model.layers
        routed = experts.per_token * 3 * (experts.intermediate + model.hidden)
        routed += 3 * experts.shared
        feed_forward = sparse * routed + (1 - sparse) * 3 * model.intermediate
    else:
        feed_forward = 3 * model.intermediate
    hidden = 4 * model.hidden / shared + (2 * model.hidden if shared > 1 else 0)
    return hidden + (inner + feed_forward) / tensor


def _expert_gradients(model: Architecture, tensor: int) -> float:
    """Returns the elements per token that the backward pass of a sparse layer has at a time: the gradients of
    the experts' inputs and outputs, of which those of the outputs are float32 too. Traces show 6 hidden.
    """
    return model.experts.per_token * 6 * model.hidden / tensor if model.experts else 0.0


def _delta_net(delta: DeltaNet, item: int) -> float:
    """Returns the number of elements per token in Gated DeltaNet.

    These are queries, keys and values before and after the convolution, queries and keys scaled and repeated
    for each value head, a row of each head's chunk, and five times the values (gate, output of the rule,
    normed, gated, and the values of the rule). The gate and its SiLU are float32 besides. Context-parallel
    ranks have as much: all tokens of a share of the heads.
    """
    repeated, wide = 2 * delta.value_heads * delta.key_dim, 2 * delta.values * 4 / item
    return 2 * delta.channels + repeated + delta.value_heads * CHUNK + 5 * delta.values + wide


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
    """Returns the bytes of two chunks' logits (the softmax works in the place of one, while the next are
    computed), of kept logits, and of the head's gradient.

    With a float32 head no logits are kept, the softmax has two float32 tensors of their size, and the head's
    weights and gradient have a float32 copy each.
    """
    vocab, item = -(-model.outputs // trainer.parallel.tensor), ITEM_BYTES[trainer.dtype]
    rows = min(trainer.logits_chunk, tokens)
    if item == 2 and trainer.head_dtype != "float32":
        kept = min(all_logit_bytes(model, trainer, tokens), trainer.kept_logits * 2**20)
        return min(2 * rows, tokens) * vocab * item + kept + vocab * model.hidden * item
    if trainer.head_dtype == "float32" and item < 4:
        return rows * vocab * (4 + 8) + vocab * model.hidden * (4 + 4)
    return rows * vocab * (item + 8) + vocab * model.hidden * item


def all_logit_bytes(model: Architecture, trainer: TrainerSpec, tokens: int) -> int:
    """Returns the bytes of half-precision logits of all tokens, which can be kept; 0 for float32 logits."""
    item = ITEM_BYTES[trainer.dtype]
    if trainer.head_dtype == "float32" or item == 4:
        return 0
    return tokens * -(-model.outputs // trainer.parallel.tensor) * item


def compared_bytes(model: Architecture, trainer: TrainerSpec, tokens: int, top_k: int) -> int:
    """Returns the bytes of the comparison with a teacher's `top_k` most probable tokens.

    These are ids and log-probs of all tokens of the micro-batch, and for a chunk of tokens two float32
    tensors of the logits' size (the scaled logits and a temporary one) with some of the k tokens' log-probs.
    """
    vocab, rows = -(-model.vocab // trainer.parallel.tensor), min(trainer.logits_chunk, tokens)
    return tokens * (12 * top_k + 4) + rows * (8 * vocab + 48 * top_k) if top_k else 0


def mask_bytes(model: Architecture, trainer: TrainerSpec, tokens: int, candidates: int) -> int:
    """Returns the bytes of sampling masks with `candidates` ids per token.

    These are the ids of all tokens of the micro-batch, and for a chunk of tokens the mask of excluded
    vocabulary with the row and column indices of the candidates.
    """
    vocab, rows = -(-model.vocab // trainer.parallel.tensor), min(trainer.logits_chunk, tokens)
    return tokens * (4 * candidates + 8) + rows * (vocab + 1 + 24 * candidates) if candidates else 0

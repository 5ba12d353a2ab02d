"""What forward and backward passes take on a rank, estimated from shapes; `rlrun plan --deep` traces it."""

from rlrun.models.architecture import Architecture
from rlrun.runner.planning.model_size import Share
from rlrun.specs.sections.trainer import TrainerSpec

ITEM = {"float32": 4, "bfloat16": 2}
KEPT_LOGITS = 64 * 2**20
"""Half-precision logits of at most this size are kept between the passes."""


def activation_bytes(model: Architecture, trainer: TrainerSpec, share: Share, tokens: int) -> int:
    """What forward passes keep for backward passes: of every layer, or of every layer less what is computed
    again and of one layer everything.
    """
    parallel = trainer.parallel
    shared = parallel.tensor if parallel.sequence_parallel else 1
    whole = _layer(model, shared, parallel.tensor)
    entry = model.hidden / shared
    match trainer.activation_checkpointing:
        case "none":
            kept, again = whole + _routing(model, parallel.tensor), 0.0
        case "full":
            kept, again = entry, whole
        case "selective":
            kept, again = entry + _selected(model, shared, parallel.tensor), whole
    in_flight = parallel.pipeline
    return int(tokens * (share.layers * kept * in_flight + again) * ITEM[trainer.dtype])


def _layer(model: Architecture, shared: int, tensor: int) -> float:
    """A layer's elements for a token:

    6 hidden (residual stream, norms, their outputs), 4 queries and 6 keys (as made, normed, turned; the
    attention's output), and 4 feed-forward (gate, up, silu, product); of experts, those a token is routed to,
    with its hidden state for each of them going in and coming out.
    """
    inner = 4 * model.heads * model.head_dim + 6 * model.kv_heads * model.head_dim
    if experts := model.experts:
        sparse = len(experts.layers) / model.layers
        routed = experts.per_token * (4 * experts.intermediate + 2 * model.hidden)
        routed += 4 * experts.shared
        feed_forward = sparse * routed + (1 - sparse) * 4 * model.intermediate
    else:
        feed_forward = 4 * model.intermediate
    return 6 * model.hidden / shared + (inner + feed_forward) / tensor


def _routing(model: Architecture, tensor: int) -> float:
    """What routing keeps for a token beside `_layer`'s share, where nothing is computed again.

    Four hidden states for each of its experts, as dry runs show: their results are weighted in float32.
    """
    if model.experts is None:
        return 0.0
    sparse = len(model.experts.layers) / model.layers
    return sparse * model.experts.per_token * 4 * model.hidden / tensor


def _selected(model: Architecture, shared: int, tensor: int) -> float:
    """What selective checkpointing keeps of a layer: the attention's output and every other matrix product;
    experts are computed again.
    """
    queries, keys = model.heads * model.head_dim, model.kv_heads * model.head_dim
    dense = 1 - (len(model.experts.layers) / model.layers if model.experts else 0)
    split = queries + 2 * keys + dense * 2 * model.intermediate
    return queries / tensor + (split / tensor + (1 + dense) * model.hidden / shared) / 2


def logit_bytes(model: Architecture, trainer: TrainerSpec, tokens: int) -> int:
    """A chunk's logits and their slopes, what is kept of them, and the head's own gradient; with float32
    logits nothing is kept, and weights and gradient of the head have a float32 copy each.
    """
    vocab, item = -(-model.vocab // trainer.parallel.tensor), ITEM[trainer.dtype]
    rows = min(trainer.logits_chunk, tokens)
    if trainer.head_dtype == "float32" and item < 4:
        return rows * vocab * (4 + 4) + vocab * model.hidden * (4 + 4)
    kept = tokens * vocab * item if item < 4 else 0
    return rows * vocab * (item + 4) + (kept if kept <= KEPT_LOGITS else 0) + vocab * model.hidden * item


def mask_bytes(model: Architecture, trainer: TrainerSpec, tokens: int, candidates: int) -> int:
    """Sampling masks of so many candidates: the pack's ids, and for a chunk of tokens the excluded part of
    the vocabulary with the rows and columns of the candidates.
    """
    vocab, rows = -(-model.vocab // trainer.parallel.tensor), min(trainer.logits_chunk, tokens)
    return tokens * (4 * candidates + 8) + rows * (vocab + 1 + 24 * candidates) if candidates else 0

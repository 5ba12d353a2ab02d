"""Lists every tensor of a model."""

from collections.abc import Iterator

from rlrun.models.architecture import MTP_COPIES, Architecture
from rlrun.models.hf_tensor import HEADS, LANGUAGE_MODEL, HfTensor, is_of_text_model, transformers_tensor

QKV, GATE_UP = ("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj")
"""Matrices that engines multiply together, in the order in which they are fused into one."""
FUSED_RUNS = (QKV, GATE_UP, ("w1", "w3"))
"""All such matrices; some families name an expert's gate and up w1 and w3."""
SCORE = "score.weight"
"""transformers' name for the head of a model that classifies."""
SCORE_BIAS = "score.bias"
"""A number that SGLang 0.5.23 adds to the scores of Qwen's classifiers, and draws at random for a folder
without it (models/qwen3_classification.py); transformers has none, and warns of it."""
TOWER = "visual."
"""The names of the vision tower's parameters begin with this."""
INDEXER = ".indexer."
"""The names of an indexer's tensors and parameters contain this, and those of no others."""


def hf_tensors(model: Architecture) -> list[HfTensor]:
    """Returns all tensors that the trainer holds: the text model's (`text_tensors`), its vision tower's, and
    its MTP layer's.
    """
    tensors, tower = text_tensors(model) + mtp_tensors(model), model.tower
    if tower is not None:
        tensors += [
            HfTensor(f"{tower.prefix}{name}", shape, f"{TOWER}{name}") for name, shape in tower.tensors()
        ]
    return tensors


def text_tensors(model: Architecture) -> list[HfTensor]:
    """Returns the tensors of the text model in the order in which engines read them.

    q, k, v are adjacent, and so are gate and up, because engines fuse them into one matrix.
    """
    if model.stored_tensors:
        return [transformers_tensor(name, shape, model.prefix) for name, shape in model.stored_tensors]
    embedding = f"{model.prefix}embed_tokens.weight"
    tensors = [HfTensor(embedding, (model.vocab, model.hidden), "tok_embeddings.weight")]
    for layer in range(model.layers):
        tensors += _layer(model, layer)
    tensors.append(HfTensor(f"{model.prefix}norm.weight", (model.hidden,), "norm.weight"))
    if model.scores:
        tensors.append(HfTensor(SCORE, (1, model.hidden), "lm_head.weight"))
    elif not model.tied:
        tensors.append(HfTensor("lm_head.weight", (model.vocab, model.hidden), "lm_head.weight"))
    return tensors


def mtp_tensors(model: Architecture) -> list[HfTensor]:
    """Returns the tensors of the MTP layer, if it is trained, in the order in which engines read them."""
    if model.mtp is None:
        return []
    hf, ours = f"{model.prefix}layers.{model.layers}.", f"layers.{model.layers}."
    block = (model.mtp.in_checkpoint(tensor, hf) for tensor in _layer(model, model.layers))
    return [*model.mtp.tensors(model.hidden, ours), *block]


def is_derived(name: str, model: Architecture) -> bool:
    """Returns whether a checkpoint's tensor is not part of the policy.

    Such tensors follow from others, or are beside the policy (`is_beside_policy`).
    """
    if is_beside_policy(name, model):
        return True
    return name.endswith(".rotary_emb.inv_freq") or (model.tied and name in HEADS)


def is_beside_policy(name: str, model: Architecture) -> bool:
    """Returns whether a checkpoint's tensor is neither trained nor computed, and is exported unchanged.

    These tensors predict further tokens (the layers that DeepSeek, Kimi and GLM store after the last, MiMo's
    `mtp_layers` and Qwen's `mtp`), or belong to the vision tower of a multimodal checkpoint.
    """
    if model.stored_tensors:
        return model.prefix != LANGUAGE_MODEL and not is_of_text_model(name, model.prefix)
    if model.mtp is not None and name.startswith(model.mtp.prefix):
        return name.removeprefix(model.mtp.prefix) in MTP_COPIES
    layer = name.removeprefix("model.layers.").partition(".")[0]
    if name.startswith("model.layers.") and layer.isdecimal() and int(layer) >= model.layers:
        return model.has_layers_behind
    if model.vision is not None and name.startswith(model.vision.prefix):
        return not model.vision.loaded
    return name.startswith(model.beside_policy)


def _layer(model: Architecture, layer: int) -> Iterator[HfTensor]:
    hf, ours, hidden = f"{model.prefix}layers.{layer}", f"layers.{layer}", model.hidden
    yield HfTensor(f"{hf}.input_layernorm.weight", (hidden,), f"{ours}.attention_norm.weight")
    if model.is_delta(layer):
        yield from _delta_net(model, f"{hf}.linear_attn", f"{ours}.attention")
    else:
        attention = _attention if model.latent is None else _latent_attention
        yield from attention(model, f"{hf}.self_attn", f"{ours}.attention")
        if model.indexer is not None and layer in model.indexer.layers:
            yield from _indexer(model, f"{hf}.self_attn.indexer", f"{ours}.attention{INDEXER}")
    yield HfTensor(f"{hf}.post_attention_layernorm.weight", (hidden,), f"{ours}.ffn_norm.weight")
    if model.is_sparse(layer):
        yield from _expert_tensors(model, layer)
    else:
        yield from _feed_forward_tensors(
            f"{hf}.mlp", f"{ours}.feed_forward", model.intermediate, hidden, bias=model.mlp_bias
        )


def _attention(model: Architecture, hf: str, ours: str) -> Iterator[HfTensor]:
    queries, keys = model.heads * model.head_dim, model.kv_heads * model.head_dim
    hidden = model.hidden
    gates = queries if model.output_gate else 0
    projections = (("q", queries + gates), ("k", keys), ("v", keys))
    for name, rows in projections:
        yield HfTensor(f"{hf}.{name}_proj.weight", (rows, hidden), f"{ours}.qkv_linear.w{name}.weight")
    for name, rows in projections if model.qkv_bias else ():
        yield HfTensor(f"{hf}.{name}_proj.bias", (rows,), f"{ours}.qkv_linear.w{name}.bias")
    if model.qk_norm:
        sizes = (queries, keys) if model.joint_qk_norm else (model.head_dim,) * 2
        for name, size in zip(("q", "k"), sizes, strict=True):
            yield HfTensor(f"{hf}.{name}_norm.weight", (size,), f"{ours}.{name}_norm.weight")
    yield HfTensor(f"{hf}.o_proj.weight", (hidden, queries), f"{ours}.wo.weight")
    if model.output_bias:
        yield HfTensor(f"{hf}.o_proj.bias", (hidden,), f"{ours}.wo.bias")
    if model.sinks:
        yield HfTensor(f"{hf}.sinks", (model.heads,), f"{ours}.sinks")


def _delta_net(model: Architecture, hf: str, ours: str) -> Iterator[HfTensor]:
    delta, hidden = model.delta, model.hidden
    assert delta is not None
    channels, heads = delta.channels, delta.value_heads
    if delta.by_head:
        projections = {"in_proj_qkvz": channels + delta.values, "in_proj_ba": 2 * heads}
    else:
        projections = {"in_proj_qkv": channels, "in_proj_z": delta.values, "in_proj_b": heads}
        projections["in_proj_a"] = heads
    for name, rows in projections.items():
        sections = delta.rows if name == "in_proj_qkv" else ()
        yield HfTensor(f"{hf}.{name}.weight", (rows, hidden), f"{ours}.{name}.weight", sections=sections)
    yield HfTensor(
        f"{hf}.conv1d.weight", (channels, 1, delta.taps), f"{ours}.conv1d.weight", sections=delta.rows
    )
    for name in ("A_log", "dt_bias"):
        yield HfTensor(f"{hf}.{name}", (heads,), f"{ours}.{name}")
    yield HfTensor(f"{hf}.norm.weight", (delta.value_dim,), f"{ours}.norm.weight")
    yield HfTensor(f"{hf}.out_proj.weight", (hidden, delta.values), f"{ours}.out_proj.weight")


def _latent_attention(model: Architecture, hf: str, ours: str) -> Iterator[HfTensor]:
    latent, hidden, heads = model.latent, model.hidden, model.heads
    assert latent is not None
    queries = heads * model.head_dim
    if latent.query_rank is None:
        yield HfTensor(f"{hf}.q_proj.weight", (queries, hidden), f"{ours}.wq.weight")
    else:
        rank = latent.query_rank
        yield HfTensor(f"{hf}.q_a_proj.weight", (rank, hidden), f"{ours}.wq_a.weight")
        yield HfTensor(f"{hf}.q_a_layernorm.weight", (rank,), f"{ours}.q_norm.weight")
        yield HfTensor(f"{hf}.q_b_proj.weight", (queries, rank), f"{ours}.wq_b.weight")
    inner = latent.kv_rank + latent.rotated_dim
    yield HfTensor(f"{hf}.kv_a_proj_with_mqa.weight", (inner, hidden), f"{ours}.wkv_a.weight")
    yield HfTensor(f"{hf}.kv_a_layernorm.weight", (latent.kv_rank,), f"{ours}.kv_norm.weight")
    outer = heads * (latent.unrotated_dim + latent.value_dim)
    yield HfTensor(f"{hf}.kv_b_proj.weight", (outer, latent.kv_rank), f"{ours}.wkv_b.weight")
    yield HfTensor(f"{hf}.o_proj.weight", (hidden, heads * latent.value_dim), f"{ours}.wo.weight")


def _indexer(model: Architecture, hf: str, ours: str) -> Iterator[HfTensor]:
    indexer, latent, hidden = model.indexer, model.latent, model.hidden
    assert indexer is not None and latent is not None and latent.query_rank is not None
    size = indexer.head_dim
    yield HfTensor(f"{hf}.wq_b.weight", (indexer.heads * size, latent.query_rank), f"{ours}query.weight")
    yield HfTensor(f"{hf}.wk.weight", (size, hidden), f"{ours}key.weight")
    for name in ("weight", "bias"):
        yield HfTensor(f"{hf}.k_norm.{name}", (size,), f"{ours}key_norm.{name}")
    yield HfTensor(f"{hf}.weights_proj.weight", (indexer.heads, hidden), f"{ours}head_weights.weight")


def _expert_tensors(model: Architecture, layer: int) -> Iterator[HfTensor]:
    """Yields the tensors of the mixture of experts of a sparse layer."""
    assert model.experts is not None
    yield from (_gpt_oss_experts if model.experts.clamped_gate else _swiglu_experts)(model, layer)


def _feed_forward_tensors(
    hf: str, ours: str, inner: int, hidden: int, *, bias: bool = False
) -> Iterator[HfTensor]:
    """Yields the tensors of a dense feed-forward."""
    matrices = _swiglu_matrices(inner, hidden)
    for name, ffn, shape in matrices:
        yield HfTensor(f"{hf}.{name}_proj.weight", shape, f"{ours}.{ffn}.weight")
    for name, ffn, shape in matrices if bias else ():
        yield HfTensor(f"{hf}.{name}_proj.bias", shape[:1], f"{ours}.{ffn}.bias")


def _swiglu_experts(model: Architecture, layer: int) -> Iterator[HfTensor]:
    experts = model.experts
    assert experts is not None
    naming = experts.names
    hf, ours = f"{model.prefix}layers.{layer}.{naming.block}", f"layers.{layer}.moe"
    yield HfTensor(f"{hf}.gate.weight", (experts.count, model.hidden), f"{ours}.router.gate.weight")
    if experts.correction_bias:
        yield HfTensor(f"{hf}.{naming.correction}", (experts.count,), f"{ours}.expert_bias_E")
    if experts.shared:
        yield from _feed_forward_tensors(
            f"{hf}.{naming.shared}", f"{ours}.shared_experts", experts.shared, model.hidden
        )
    if experts.shared_gate:
        gate = f"{hf}.shared_expert_gate.weight"
        yield HfTensor(gate, (1, model.hidden), f"{ours}.shared_experts.gate.weight")
    stacks = {"w1": "w1_EFD", "w2": "w2_EDF", "w3": "w3_EFD"}
    for expert in range(experts.count):
        matrices = _swiglu_matrices(experts.intermediate, model.hidden)
        for matrix, (_, ffn, shape) in zip((naming.gate, naming.up, naming.down), matrices, strict=True):
            parameter = f"{ours}.routed_experts.inner_experts.{stacks[ffn]}"
            yield HfTensor(f"{hf}.experts.{expert}.{matrix}.weight", shape, parameter, expert)


def _gpt_oss_experts(model: Architecture, layer: int) -> Iterator[HfTensor]:
    """Yields gpt-oss's four tensors for all experts of a layer; its matrices have their inputs first."""
    experts, hidden = model.experts, model.hidden
    assert experts is not None
    hf, ours, count = f"model.layers.{layer}.mlp", f"layers.{layer}.moe", experts.count
    yield HfTensor(f"{hf}.router.weight", (count, hidden), f"{ours}.router.gate.weight")
    yield HfTensor(f"{hf}.router.bias", (count,), f"{ours}.router.gate.bias")
    inner, both = f"{ours}.routed_experts.inner_experts", 2 * experts.intermediate
    for name, parameter, shape in (
        ("gate_up_proj", "mlp1_weight_EGD", (count, hidden, both)),
        ("gate_up_proj_bias", "mlp1_bias_EG", (count, both)),
        ("down_proj", "mlp2_weight_EDF", (count, experts.intermediate, hidden)),
        ("down_proj_bias", "mlp2_bias_ED", (count, hidden)),
    ):
        transposed = len(shape) == 3
        yield HfTensor(
            f"{hf}.experts.{name}",
            shape,
            f"{inner}.{parameter}",
            holds_all_experts=True,
            transposed=transposed,
        )


def _swiglu_matrices(inner: int, hidden: int) -> tuple[tuple[str, str, tuple[int, int]], ...]:
    """Returns Hugging Face's name, torchtitan's name and the shape of each of SwiGLU's matrices."""
    return (
        ("gate", "w1", (inner, hidden)),
        ("up", "w3", (inner, hidden)),
        ("down", "w2", (hidden, inner)),
    )

"""Every tensor of a model: its Hugging Face name and shape, and the torchtitan parameter that holds it."""

from collections.abc import Iterator
from dataclasses import dataclass

from rlrun.models.architecture import Architecture


@dataclass(frozen=True, slots=True)
class HfTensor:
    """One tensor of a checkpoint.

    Example: `HfTensor("model.layers.0.self_attn.q_proj.weight", (256, 256),
    "layers.0.attention.qkv_linear.wq.weight")`
    """

    name: str
    shape: tuple[int, ...]
    parameter: str
    """torchtitan's name; the tensors of all experts share one, stacked along a first dimension."""
    expert: int | None = None
    """Place in that stack."""
    stack: bool = False
    """It holds all experts of a layer by itself (gpt-oss)."""
    transposed: bool = False
    """The parameter has the last two dimensions in the other order."""

    @property
    def routed(self) -> bool:
        """Of experts that tokens are routed to."""
        return self.stack or self.expert is not None

    @property
    def parameter_shape(self) -> tuple[int, ...]:
        """Its shape, or its expert's, as a parameter."""
        return (*self.shape[:-2], self.shape[-1], self.shape[-2]) if self.transposed else self.shape


def hf_tensors(model: Architecture) -> list[HfTensor]:
    """All tensors of the checkpoint in the order engines read them: q, k, v side by side, then gate, up."""
    if model.stored:
        return [HfTensor(name, shape, name) for name, shape in model.stored]
    tensors = [
        HfTensor("model.embed_tokens.weight", (model.vocab, model.hidden), "tok_embeddings.weight"),
    ]
    for layer in range(model.layers):
        tensors += _layer(model, layer)
    tensors.append(HfTensor("model.norm.weight", (model.hidden,), "norm.weight"))
    if not model.tied:
        tensors.append(HfTensor("lm_head.weight", (model.vocab, model.hidden), "lm_head.weight"))
    return tensors


def is_derived(name: str, model: Architecture) -> bool:
    """Tensors that some checkpoints store and that are not the policy's: they follow from others, or predict
    further tokens (DeepSeek's layers after the last).
    """
    layer = name.removeprefix("model.layers.").partition(".")[0]
    if name.startswith("model.layers.") and layer.isdecimal() and int(layer) >= model.layers:
        return model.latent is not None
    return name.endswith(".rotary_emb.inv_freq") or (model.tied and name == "lm_head.weight")


def _layer(model: Architecture, layer: int) -> Iterator[HfTensor]:
    hf, ours, hidden = f"model.layers.{layer}", f"layers.{layer}", model.hidden
    yield HfTensor(f"{hf}.input_layernorm.weight", (hidden,), f"{ours}.attention_norm.weight")
    attention = _attention if model.latent is None else _latent_attention
    yield from attention(model, f"{hf}.self_attn", f"{ours}.attention")
    yield HfTensor(f"{hf}.post_attention_layernorm.weight", (hidden,), f"{ours}.ffn_norm.weight")
    if model.experts and layer in model.experts.layers:
        yield from (_clamped if model.experts.clamped else _sparse)(model, layer)
    else:
        yield from _feed_forward(f"{hf}.mlp", f"{ours}.feed_forward", model.intermediate, hidden)


def _attention(model: Architecture, hf: str, ours: str) -> Iterator[HfTensor]:
    queries, keys = model.heads * model.head_dim, model.kv_heads * model.head_dim
    hidden = model.hidden
    projections = (("q", queries), ("k", keys), ("v", keys))
    for name, rows in projections:
        yield HfTensor(f"{hf}.{name}_proj.weight", (rows, hidden), f"{ours}.qkv_linear.w{name}.weight")
    for name, rows in projections if model.qkv_bias else ():
        yield HfTensor(f"{hf}.{name}_proj.bias", (rows,), f"{ours}.qkv_linear.w{name}.bias")
    if model.qk_norm:
        for name in ("q", "k"):
            yield HfTensor(f"{hf}.{name}_norm.weight", (model.head_dim,), f"{ours}.{name}_norm.weight")
    yield HfTensor(f"{hf}.o_proj.weight", (hidden, queries), f"{ours}.wo.weight")
    if model.sinks:
        yield HfTensor(f"{hf}.o_proj.bias", (hidden,), f"{ours}.wo.bias")
        yield HfTensor(f"{hf}.sinks", (model.heads,), f"{ours}.sinks")


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
    inner = latent.rank + latent.rotated
    yield HfTensor(f"{hf}.kv_a_proj_with_mqa.weight", (inner, hidden), f"{ours}.wkv_a.weight")
    yield HfTensor(f"{hf}.kv_a_layernorm.weight", (latent.rank,), f"{ours}.kv_norm.weight")
    outer = heads * (latent.plain + latent.value)
    yield HfTensor(f"{hf}.kv_b_proj.weight", (outer, latent.rank), f"{ours}.wkv_b.weight")
    yield HfTensor(f"{hf}.o_proj.weight", (hidden, heads * latent.value), f"{ours}.wo.weight")


def _feed_forward(hf: str, ours: str, inner: int, hidden: int) -> Iterator[HfTensor]:
    for name, ffn, shape in _matrices(inner, hidden):
        yield HfTensor(f"{hf}.{name}_proj.weight", shape, f"{ours}.{ffn}.weight")


def _sparse(model: Architecture, layer: int) -> Iterator[HfTensor]:
    experts = model.experts
    assert experts is not None
    hf, ours = f"model.layers.{layer}.mlp", f"layers.{layer}.moe"
    yield HfTensor(f"{hf}.gate.weight", (experts.count, model.hidden), f"{ours}.router.gate.weight")
    if experts.correction_bias:
        yield HfTensor(f"{hf}.gate.e_score_correction_bias", (experts.count,), f"{ours}.expert_bias_E")
    if experts.shared:
        yield from _feed_forward(
            f"{hf}.shared_experts", f"{ours}.shared_experts", experts.shared, model.hidden
        )
    stacks = {"w1": "w1_EFD", "w2": "w2_EDF", "w3": "w3_EFD"}
    for expert in range(experts.count):
        for name, ffn, shape in _matrices(experts.intermediate, model.hidden):
            parameter = f"{ours}.routed_experts.inner_experts.{stacks[ffn]}"
            yield HfTensor(f"{hf}.experts.{expert}.{name}_proj.weight", shape, parameter, expert)


def _clamped(model: Architecture, layer: int) -> Iterator[HfTensor]:
    """gpt-oss: a layer's experts in four tensors, matrices with their inputs first."""
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
            f"{hf}.experts.{name}", shape, f"{inner}.{parameter}", stack=True, transposed=transposed
        )


def _matrices(inner: int, hidden: int) -> tuple[tuple[str, str, tuple[int, int]], ...]:
    """SwiGLU's matrices: HF's name, torchtitan's, shape."""
    return (
        ("gate", "w1", (inner, hidden)),
        ("up", "w3", (inner, hidden)),
        ("down", "w2", (hidden, inner)),
    )

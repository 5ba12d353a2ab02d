"""Lists every tensor of a model: its Hugging Face name and shape, and the torchtitan parameter for it.

The shapes' letters: a parameter's suffix names its dimensions, such as `w1_EFD` for experts, inner width and
hidden width.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from rlrun.models.architecture import Architecture


@dataclass(frozen=True, slots=True)
class ExpertFactor:
    """The layout of an adapter's factor for all experts of a layer.

    peft has two dimensions: the first factor is `[experts · rank, in]`, and the second `[out, rank ·
    experts]`, whose neighbouring columns belong to different experts. The parameters are `[experts, in,
    rank]` and `[experts, out, rank]`.
    """

    experts: int
    rank: int
    first: bool
    """Whether it is the first factor."""
    halves: int = 1
    """2: the outputs are those of gate and up. peft has them one after the other, the parameter in turns, so
    that ranks which split the outputs have both of a pair."""


@dataclass(frozen=True, slots=True)
class HfTensor:
    """One tensor of a checkpoint.

    Example: `HfTensor("model.layers.0.self_attn.q_proj.weight", (256, 256),
    "layers.0.attention.qkv_linear.wq.weight")`
    """

    name: str
    shape: tuple[int, ...]
    parameter: str
    """torchtitan's name. The tensors of all experts of a layer are one parameter, stacked along its first
    dimension."""
    expert: int | None = None
    """Index of the tensor in that stack."""
    holds_all_experts: bool = False
    """The one tensor holds all experts of a layer (gpt-oss)."""
    transposed: bool = False
    """The parameter has the last two dimensions swapped."""
    sections: tuple[int, ...] = ()
    """The tensor has one section after the other, and the parameter has, for each head, this many rows of
    each section. So ranks can split the parameter by heads. Empty: rows are in the same order."""
    factor: ExpertFactor | None = None
    """The tensor is a factor of the experts' adapters."""

    @property
    def is_routed_expert(self) -> bool:
        """The tensor belongs to experts that tokens are routed to; shared experts are not among them."""
        return self.holds_all_experts or self.expert is not None

    @property
    def parameter_shape(self) -> tuple[int, ...]:
        """The tensor's shape within the parameter."""
        if self.factor is not None:
            outer = self.shape[1 if self.factor.first else 0]
            return (self.factor.experts, outer, self.factor.rank)
        return (*self.shape[:-2], self.shape[-1], self.shape[-2]) if self.transposed else self.shape


_BESIDE_THE_POLICY = ("mtp.", "model.visual.")
"""Beginnings of the names of tensors that predict further tokens, and of the vision tower's."""


def hf_tensors(model: Architecture) -> list[HfTensor]:
    """Returns all tensors of the checkpoint in the order in which engines read them.

    q, k, v are adjacent, and so are gate and up, because engines fuse them into one matrix.
    """
    if model.stored_tensors:
        return [HfTensor(name, shape, name) for name, shape in model.stored_tensors]
    embedding = f"{model.prefix}embed_tokens.weight"
    tensors = [HfTensor(embedding, (model.vocab, model.hidden), "tok_embeddings.weight")]
    for layer in range(model.layers):
        tensors += _layer(model, layer)
    tensors.append(HfTensor(f"{model.prefix}norm.weight", (model.hidden,), "norm.weight"))
    if not model.tied:
        tensors.append(HfTensor("lm_head.weight", (model.vocab, model.hidden), "lm_head.weight"))
    return tensors


def is_derived(name: str, model: Architecture) -> bool:
    """Returns whether a checkpoint's tensor is not part of the policy.

    Such tensors follow from others, or are beside the policy (`is_beside_policy`).
    """
    if is_beside_policy(name, model):
        return True
    return name.endswith(".rotary_emb.inv_freq") or (model.tied and name == "lm_head.weight")


def is_beside_policy(name: str, model: Architecture) -> bool:
    """Returns whether a checkpoint's tensor is neither trained nor computed, and is exported unchanged.

    These tensors predict further tokens (the layers that DeepSeek stores after the last, and Qwen's `mtp`),
    or belong to the vision tower of a multimodal checkpoint.
    """
    layer = name.removeprefix("model.layers.").partition(".")[0]
    if name.startswith("model.layers.") and layer.isdecimal() and int(layer) >= model.layers:
        return model.latent is not None
    return model.output_gate and name.startswith(_BESIDE_THE_POLICY)


def _layer(model: Architecture, layer: int) -> Iterator[HfTensor]:
    hf, ours, hidden = f"{model.prefix}layers.{layer}", f"layers.{layer}", model.hidden
    yield HfTensor(f"{hf}.input_layernorm.weight", (hidden,), f"{ours}.attention_norm.weight")
    if model.is_delta(layer):
        yield from _delta_net(model, f"{hf}.linear_attn", f"{ours}.attention")
    else:
        attention = _attention if model.latent is None else _latent_attention
        yield from attention(model, f"{hf}.self_attn", f"{ours}.attention")
    yield HfTensor(f"{hf}.post_attention_layernorm.weight", (hidden,), f"{ours}.ffn_norm.weight")
    if model.experts and layer in model.experts.layers:
        yield from (_gpt_oss_experts if model.experts.clamped_gate else _experts)(model, layer)
    else:
        yield from _feed_forward(
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
        for name in ("q", "k"):
            yield HfTensor(f"{hf}.{name}_norm.weight", (model.head_dim,), f"{ours}.{name}_norm.weight")
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


def _feed_forward(hf: str, ours: str, inner: int, hidden: int, *, bias: bool = False) -> Iterator[HfTensor]:
    matrices = _swiglu_matrices(inner, hidden)
    for name, ffn, shape in matrices:
        yield HfTensor(f"{hf}.{name}_proj.weight", shape, f"{ours}.{ffn}.weight")
    for name, ffn, shape in matrices if bias else ():
        yield HfTensor(f"{hf}.{name}_proj.bias", shape[:1], f"{ours}.{ffn}.bias")


def _experts(model: Architecture, layer: int) -> Iterator[HfTensor]:
    experts = model.experts
    assert experts is not None
    hf, ours = f"{model.prefix}layers.{layer}.mlp", f"layers.{layer}.moe"
    yield HfTensor(f"{hf}.gate.weight", (experts.count, model.hidden), f"{ours}.router.gate.weight")
    if experts.correction_bias:
        yield HfTensor(f"{hf}.gate.e_score_correction_bias", (experts.count,), f"{ours}.expert_bias_E")
    if experts.shared:
        name = "shared_expert" if experts.shared_gate else "shared_experts"
        yield from _feed_forward(f"{hf}.{name}", f"{ours}.shared_experts", experts.shared, model.hidden)
    if experts.shared_gate:
        gate = f"{hf}.shared_expert_gate.weight"
        yield HfTensor(gate, (1, model.hidden), f"{ours}.shared_experts.gate.weight")
    stacks = {"w1": "w1_EFD", "w2": "w2_EDF", "w3": "w3_EFD"}
    for expert in range(experts.count):
        for name, ffn, shape in _swiglu_matrices(experts.intermediate, model.hidden):
            parameter = f"{ours}.routed_experts.inner_experts.{stacks[ffn]}"
            yield HfTensor(f"{hf}.experts.{expert}.{name}_proj.weight", shape, parameter, expert)


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

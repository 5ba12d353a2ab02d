"""Every tensor of a model: its Hugging Face name and shape, and the torchtitan parameter that holds it."""

from collections.abc import Iterator
from dataclasses import dataclass

from rlrun.converters.architecture import Architecture


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


def hf_tensors(model: Architecture) -> list[HfTensor]:
    """All tensors of the checkpoint in the order engines read them: q, k, v side by side, then gate, up."""
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
    """Tensors that some checkpoints store and that follow from others."""
    return name.endswith(".rotary_emb.inv_freq") or (model.tied and name == "lm_head.weight")


def _layer(model: Architecture, layer: int) -> Iterator[HfTensor]:
    hf, ours = f"model.layers.{layer}", f"layers.{layer}"
    queries, keys = model.heads * model.head_dim, model.kv_heads * model.head_dim
    hidden = model.hidden
    yield HfTensor(f"{hf}.input_layernorm.weight", (hidden,), f"{ours}.attention_norm.weight")
    projections = (("q", queries), ("k", keys), ("v", keys))
    for name, rows in projections:
        parameter = f"{ours}.attention.qkv_linear.w{name}.weight"
        yield HfTensor(f"{hf}.self_attn.{name}_proj.weight", (rows, hidden), parameter)
    for name, rows in projections if model.qkv_bias else ():
        parameter = f"{ours}.attention.qkv_linear.w{name}.bias"
        yield HfTensor(f"{hf}.self_attn.{name}_proj.bias", (rows,), parameter)
    if model.qk_norm:
        for name in ("q", "k"):
            parameter = f"{ours}.attention.{name}_norm.weight"
            yield HfTensor(f"{hf}.self_attn.{name}_norm.weight", (model.head_dim,), parameter)
    yield HfTensor(f"{hf}.self_attn.o_proj.weight", (hidden, queries), f"{ours}.attention.wo.weight")
    yield HfTensor(f"{hf}.post_attention_layernorm.weight", (hidden,), f"{ours}.ffn_norm.weight")
    if model.experts and layer in model.experts.layers:
        yield from _sparse(model, layer)
    else:
        inner = model.intermediate
        for name, ffn, shape in _matrices(inner, hidden):
            yield HfTensor(f"{hf}.mlp.{name}_proj.weight", shape, f"{ours}.feed_forward.{ffn}.weight")


def _sparse(model: Architecture, layer: int) -> Iterator[HfTensor]:
    experts = model.experts
    assert experts is not None
    hf, ours = f"model.layers.{layer}.mlp", f"layers.{layer}.moe"
    yield HfTensor(f"{hf}.gate.weight", (experts.count, model.hidden), f"{ours}.router.gate.weight")
    stacks = {"w1": "w1_EFD", "w2": "w2_EDF", "w3": "w3_EFD"}
    for expert in range(experts.count):
        for name, ffn, shape in _matrices(experts.intermediate, model.hidden):
            parameter = f"{ours}.routed_experts.inner_experts.{stacks[ffn]}"
            yield HfTensor(f"{hf}.experts.{expert}.{name}_proj.weight", shape, parameter, expert)


def _matrices(inner: int, hidden: int) -> tuple[tuple[str, str, tuple[int, int]], ...]:
    """SwiGLU's matrices: HF's name, torchtitan's, shape."""
    return (
        ("gate", "w1", (inner, hidden)),
        ("up", "w3", (inner, hidden)),
        ("down", "w2", (hidden, inner)),
    )

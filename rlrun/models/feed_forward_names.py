"""Lists the tensors of feed-forwards, dense ones and mixtures of experts."""

from collections.abc import Iterator

from rlrun.models.architecture import Architecture
from rlrun.models.hf_tensor import HfTensor


def expert_tensors(model: Architecture, layer: int) -> Iterator[HfTensor]:
    """Yields the tensors of the mixture of experts of a sparse layer."""
    assert model.experts is not None
    yield from (_gpt_oss_experts if model.experts.clamped_gate else _swiglu_experts)(model, layer)


def feed_forward_tensors(
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
        yield from feed_forward_tensors(
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

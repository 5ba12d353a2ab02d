"""Qwen3-Next and Qwen3.5: Gated DeltaNet in three layers of four, and gated attention in the fourth."""

from dataclasses import replace

from rlrun.models.architecture import Architecture, ExpertNames
from rlrun.models.attention_config import read_delta_net
from rlrun.models.decoder_config import decoder
from rlrun.models.families.qwen import read_softmax_experts
from rlrun.models.family import DENSE, SPARSE, Config, Family, ServerFacts, Support, TextModel
from rlrun.models.vision import TowerFacts

_OWN_LAYERS = "rlrun.models.families.qwen_next"
_BESIDE_POLICY = ("mtp.", "model.visual.")
"""Beginnings of the names of tensors that predict further tokens, and of the vision tower's."""
_TOWER = TowerFacts(prefix="model.visual.", image_token=248056)
_EXPERT_NAMES = ExpertNames(shared="shared_expert")
_DELTA_NET: Config = {
    "max_position_embeddings": 32768,
    "head_dim": 256,
    "full_attention_interval": 4,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_value_head_dim": 128,
    "partial_rotary_factor": 0.25,
}
_EXPERTS: Config = {
    "num_key_value_heads": 2,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
}


def _read_next(config: Config) -> Architecture:
    return _with_experts(_recurrent(decoder(config, partial_rope=True), config, by_head=True), config)


def _read_dense(config: Config) -> Architecture:
    return _recurrent(decoder(config, partial_rope=True), config)


def _read_sparse(config: Config) -> Architecture:
    """Reads Qwen3.5's MoE, which has no dense feed-forward but its shared experts."""
    shared = config["shared_expert_intermediate_size"]
    return _with_experts(_recurrent(decoder(config, partial_rope=True, intermediate=shared), config), config)


def _recurrent(model: Architecture, config: Config, *, by_head: bool = False) -> Architecture:
    delta = read_delta_net(config, by_head=by_head)
    return replace(model, qk_norm=True, delta=delta, output_gate=True, offset_norms=True)


def _with_experts(model: Architecture, config: Config) -> Architecture:
    shared = config["shared_expert_intermediate_size"]
    return replace(model, experts=replace(read_softmax_experts(config), shared=shared, shared_gate=True))


FAMILIES = (
    Family(
        model_type="qwen3_next",
        support=Support("Qwen3-Next", SPARSE, native_engine=True, sglang=True, recurrent=True),
        defaults={
            **_DELTA_NET,
            **_EXPERTS,
            "decoder_sparse_step": 1,
            "mlp_only_layers": (),
            "norm_topk_prob": True,
            "num_experts": 512,
            "num_experts_per_tok": 10,
        },
        read=_read_next,
        own_layers=_OWN_LAYERS,
        expert_names=_EXPERT_NAMES,
        native_biases=False,
        beside_policy=_BESIDE_POLICY,
        server=ServerFacts(undeclared_mtp_layers=1),
    ),
    Family(
        model_type="qwen3_5",
        support=Support(
            "Qwen3.5 with its vision tower", DENSE, native_engine=True, images=True, recurrent=True
        ),
        text=TextModel("qwen3_5_text"),
        tower=_TOWER,
        torchtitan_package="qwen3_5",
    ),
    Family(
        model_type="qwen3_5_text",
        support=Support("Qwen3.5", DENSE, native_engine=True, sglang=True, recurrent=True),
        defaults={**_DELTA_NET, "num_key_value_heads": 4},
        read=_read_dense,
        own_layers=_OWN_LAYERS,
        native_biases=False,
        beside_policy=_BESIDE_POLICY,
    ),
    Family(
        model_type="qwen3_5_moe",
        support=Support(
            "Qwen3.5 MoE with its vision tower", SPARSE, native_engine=True, images=True, recurrent=True
        ),
        text=TextModel("qwen3_5_moe_text"),
        tower=_TOWER,
        torchtitan_package="qwen3_5",
    ),
    Family(
        model_type="qwen3_5_moe_text",
        support=Support("Qwen3.5 MoE", SPARSE, native_engine=True, recurrent=True),
        defaults={**_DELTA_NET, **_EXPERTS, "num_experts": 256, "num_experts_per_tok": 8},
        read=_read_sparse,
        own_layers=_OWN_LAYERS,
        expert_names=_EXPERT_NAMES,
        native_biases=False,
        beside_policy=_BESIDE_POLICY,
    ),
)

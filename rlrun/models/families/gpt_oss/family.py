"""gpt-oss: attention with sinks and windows, and experts with biases and a clamped gate."""

from dataclasses import replace

from rlrun.models.architecture import Architecture, ClampedGate, Experts
from rlrun.models.attention_config import check_layer_types
from rlrun.models.decoder_config import decoder
from rlrun.models.family import SPARSE, Config, Family, Support


def _read(config: Config) -> Architecture:
    return replace(decoder(config), experts=_read_experts(config), sinks=True, windows=_read_windows(config))


def _read_experts(config: Config) -> Experts:
    """Reads the experts.

    The router takes the softmax over the logits of the chosen experts only, which equals a softmax over all
    experts whose chosen weights are normalised.
    """
    return Experts(
        count=config["num_local_experts"],
        per_token=config["num_experts_per_tok"],
        intermediate=config["intermediate_size"],
        normalize=True,
        layers=frozenset(range(config["num_hidden_layers"])),
        clamped_gate=ClampedGate(config["swiglu_limit"], config["swiglu_alpha"]),
    )


def _read_windows(config: Config) -> tuple[int | None, ...]:
    """Reads the window of each layer. Without `layer_types` every other layer has one, beginning with the
    first.
    """
    layers = config["num_hidden_layers"]
    layer_types = config.get("layer_types") or [
        "full_attention" if layer % 2 else "sliding_attention" for layer in range(layers)
    ]
    check_layer_types(layer_types, layers, ("full_attention", "sliding_attention"))
    return tuple(
        config["sliding_window"] if layer_type == "sliding_attention" else None for layer_type in layer_types
    )


def _refuse_variants(config: Config) -> None:
    if not config["attention_bias"]:
        raise ValueError("attention_bias = false in config.json is not supported for gpt_oss")


FAMILIES = (
    Family(
        model_type="gpt_oss",
        support=Support("gpt-oss", SPARSE, windows=True),
        defaults={
            "max_position_embeddings": 131072,
            "num_key_value_heads": 8,
            "attention_bias": True,
            "head_dim": 64,
            "num_experts_per_tok": 4,
            "num_local_experts": 128,
            "rms_norm_eps": 1e-5,
            "rope_theta": 150000.0,
            "sliding_window": 128,
            "swiglu_alpha": 1.702,
            "swiglu_limit": 7.0,
        },
        default_rope={
            "rope_type": "yarn",
            "factor": 32.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
            "original_max_position_embeddings": 4096,
        },
        read=_read,
        own_layers="rlrun.models.families.gpt_oss",
        refuse=_refuse_variants,
        trains_attention_bias=True,
        adapts_experts=False,
        unquantised_because="engines do not load its experts as separate matrices",
    ),
)

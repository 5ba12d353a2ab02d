"""Qwen2.5-VL and Qwen3-VL: text models of Qwen2 and Qwen3 behind a vision tower."""

from rlrun.models.families.qwen import read_qwen2, read_qwen3
from rlrun.models.family import Family, Support, TextModel
from rlrun.models.vision import QWEN3_TOWER_DEFAULTS, TowerFacts

_IMAGE_TOKEN = 151655

FAMILIES = (
    Family(
        model_type="qwen2_5_vl",
        support=Support("Qwen2.5-VL", native_engine=True, adapters=False, precision=False, images=True),
        text=TextModel("qwen2_5_vl_text", prefix="model.", may_be_flat=True),
        tower=TowerFacts(
            prefix="visual.",
            image_token=_IMAGE_TOKEN,
            loaded_by_default=True,
            defaults={
                **QWEN3_TOWER_DEFAULTS,
                "depth": 32,
                "hidden_size": 3584,
                "intermediate_size": 3420,
                "patch_size": 14,
                "num_position_embeddings": 0,
            },
        ),
    ),
    Family(
        model_type="qwen2_5_vl_text",
        defaults={
            "max_position_embeddings": 32768,
            "num_key_value_heads": 8,
            "rms_norm_eps": 1e-5,
            "rope_theta": 1000000.0,
        },
        read=read_qwen2,
        trains_attention_bias=True,
    ),
    Family(
        model_type="qwen3_vl",
        support=Support("Qwen3-VL, dense", native_engine=True, adapters=False, precision=False, images=True),
        text=TextModel("qwen3_vl_text"),
        tower=TowerFacts(
            prefix="model.visual.",
            image_token=_IMAGE_TOKEN,
            loaded_by_default=True,
            deepstack_layers=(8, 16, 24),
        ),
    ),
    Family(
        model_type="qwen3_vl_text",
        defaults={
            "max_position_embeddings": 128000,
            "num_key_value_heads": 32,
            "head_dim": 128,
            "rope_theta": 500000.0,
        },
        read=read_qwen3,
    ),
)

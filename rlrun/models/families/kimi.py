"""Kimi-K2: DeepSeek-V3 with other sizes. Its configuration class has DeepSeek-V3's defaults."""

from rlrun.models.families.deepseek.family import DEFAULTS, OWN_LAYERS, read_deepseek
from rlrun.models.family import SPARSE, Family, Support

FAMILIES = (
    Family(
        model_type="kimi_k2",
        support=Support("Kimi-K2", SPARSE, native_engine=True),
        defaults=DEFAULTS,
        read=read_deepseek,
        own_layers=OWN_LAYERS,
        expert_bias=True,
        has_layers_behind=True,
    ),
    Family(model_type="kimi_k25", torchtitan_package="kimi_k2_7"),
)

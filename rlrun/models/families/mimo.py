"""MiMo-7B: a Qwen2 with a layer that predicts the token after the next one.

Its configuration class has Qwen2's defaults.
"""

from rlrun.models.architecture import MtpLayer
from rlrun.models.families.qwen import QWEN2_DEFAULTS, read_qwen2
from rlrun.models.family import DENSE, Family, Support


def _next_layer(layers: int) -> MtpLayer:
    """Returns the MTP layer as SGLang 0.5.23 reads it (models/mimo_mtp.py)."""
    names = ("hidden_layernorm", "token_layernorm", "input_proj", "final_layernorm")
    return MtpLayer("model.mtp_layers.0.", *names, hidden_first=True, blind_start=True)


FAMILIES = (
    Family(
        model_type="mimo",
        support=Support("MiMo-7B", DENSE, native_engine=True, sglang=True),
        defaults=QWEN2_DEFAULTS,
        read=read_qwen2,
        trains_attention_bias=True,
        mtp=_next_layer,
        beside_policy=("model.mtp_layers.",),
    ),
)

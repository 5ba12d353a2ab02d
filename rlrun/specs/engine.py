"""`[engine]`: what generates."""

from typing import Literal

from pydantic import Field

from rlrun.specs.section import Section


class EngineSpec(Section):
    """The embedded native engine."""

    type: Literal["native"] = "native"
    """`native`: rlrun's own engine, on CPU or one GPU."""
    count: int | None = Field(default=None, ge=1)
    """Engines; prompts are spread over them. None: one on each node, or on each GPU they may use."""
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    """Precision of weights and KV cache; log-probs are always float32."""
    max_running: int = Field(default=256, ge=1)
    """Samples decoded together in one engine; others wait."""
    max_cache_tokens: int | None = Field(default=None, ge=1)
    """Tokens of KV cache. None: room for `max_running` samples of full length."""
    port: int | None = Field(default=None, ge=1024, le=65535)
    """First port; engine i listens on port + i. None: free ports."""
    start_timeout: float = Field(default=120.0, gt=0)
    """Seconds an engine may take to answer."""

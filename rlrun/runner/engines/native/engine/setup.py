"""What an engine needs to start."""

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class EngineSetup:
    """One native engine."""

    model_folder: str
    """Local Hugging Face folder: config.json, *.safetensors, and tokenizer.json for stop strings."""
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    """Of weights, activations and KV cache; log-probs are float32."""
    max_running: int = 256
    """Samples decoded together; others wait."""
    max_cache_tokens: int | None = None
    """Tokens of KV cache. None: `max_running` samples of `max_length`, or what fits in memory."""
    max_length: int | None = None
    """Prompt and response together. None: the model's own limit."""
    host: str = "127.0.0.1"
    port: int | None = None
    """None: a free one."""
    threads: int | None = None
    """CPU threads of the engine's computation. None: torch's default."""
    seed: int = 0
    """Of requests that bring no seed."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto: a GPU where one is visible."""
    api_key: str | None = field(default=None, repr=False)
    """Asked for with every request but `/health`; None: no key is asked for."""
    job: str | None = None
    """Name of the job whose shared-memory segments it may adopt as weights; None: it adopts none."""
    weight_folders: tuple[str, ...] = ()
    """It may read new weights from folders below these, and below `model_folder`, and from no others."""
    head_dtype: Literal["model", "float32"] = "model"
    """Precision of logits. `model`: `dtype`; `float32`: the head multiplies in float32, by weights that stay
    in `dtype`."""

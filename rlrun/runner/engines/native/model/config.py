"""The models that the native engine runs, and the weights that it needs for them."""

from pathlib import Path

from rlrun.models.architecture import Architecture
from rlrun.models.config_json import architecture, read_config
from rlrun.models.tensor_names import hf_tensors

FAMILIES = ("qwen3", "llama", "qwen3_5", "qwen3_5_text")
ROPE_TYPES = ("default", "linear", "llama3")


def engine_architecture(folder: str | Path) -> Architecture:
    """Returns the architecture of a Hugging Face folder.

    Raises ValueError for a broken `config.json`, and for a family or an option that the engine does not
    compute.
    """
    path = Path(folder) / "config.json"
    config = read_config(Path(folder))
    if config.get("model_type") not in FAMILIES:
        raise ValueError(
            f"{path}: the native engine does not run model_type {config.get('model_type')!r}, only "
            f'{", ".join(FAMILIES)}; use engine.type = "sglang" for others'
        )
    try:
        model = architecture(config, str(path), with_biases=True)
    except ValueError as error:
        raise ValueError(f"the native engine cannot run {folder}: {error}") from None
    if model.rope.type not in ROPE_TYPES:
        raise ValueError(
            f"{path}: the native engine does not compute rope_type {model.rope.type!r}, only "
            f'{", ".join(ROPE_TYPES)}; use engine.type = "sglang" for others'
        )
    return model


def weight_shapes(model: Architecture) -> dict[str, tuple[int, ...]]:
    """Returns the shape of every tensor that the engine needs, by its Hugging Face name."""
    return {tensor.name: tensor.shape for tensor in hf_tensors(model)}

"""The models that the native engine runs, and the weights that it needs for them."""

from pathlib import Path

from rlrun.models.architecture import Architecture
from rlrun.models.config_json import architecture, read_config
from rlrun.models.families.table import NATIVE
from rlrun.models.tensor_names import text_tensors

FAMILIES = tuple(name for name, support in NATIVE.items() if support.native_engine)


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
        return architecture(config, str(path), with_biases=True)
    except ValueError as error:
        raise ValueError(f"the native engine cannot run {folder}: {error}") from None


def weight_shapes(model: Architecture) -> dict[str, tuple[int, ...]]:
    """Returns the shape of every tensor of the text model, by its Hugging Face name."""
    return {tensor.name: tensor.shape for tensor in text_tensors(model)}

"""The models that the native engine runs, and the weights that it needs for them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlrun.models.architecture import Architecture
from rlrun.models.config_json import architecture, read_config
from rlrun.models.families.by_transformers import TRANSFORMERS
from rlrun.models.families.table import NATIVE
from rlrun.models.tensor_names import text_tensors
from rlrun.models.transformers_models import read_transformers_model

FAMILIES = tuple(name for name, support in NATIVE.items() if support.native_engine)


def engine_architecture(folder: str | Path) -> Architecture:
    """Returns the architecture of a Hugging Face folder, whose layers rlrun computes, or else transformers.

    Raises ValueError for a broken `config.json`, and for a family or an option that the engine does not
    compute.
    """
    path = Path(folder)
    config = read_config(path)
    return read_transformers_model(path) if by_transformers(config, path) else own_layers(config, path)


def own_layers(config: Mapping[str, Any], folder: Path) -> Architecture:
    """Returns the architecture of a folder with this `config.json`, whose layers rlrun computes.

    Raises ValueError for a broken `config.json`, and for an option that the engine does not compute.
    """
    try:
        return architecture(config, str(folder / "config.json"), with_biases=True)
    except ValueError as error:
        raise ValueError(f"the native engine cannot run {folder}: {error}") from None


def by_transformers(config: Mapping[str, Any], folder: Path) -> bool:
    """Returns whether transformers' layers compute the model of a folder with this `config.json`.

    Raises ValueError for a family that the engine does not run.
    """
    model_type = config.get("model_type")
    if model_type not in (*NATIVE, *TRANSFORMERS):
        raise ValueError(
            f"{folder / 'config.json'}: the native engine does not run model_type {model_type!r} "
            '(docs/families.md); use engine.type = "sglang"'
        )
    return model_type not in FAMILIES


def weight_shapes(model: Architecture) -> dict[str, tuple[int, ...]]:
    """Returns the shape of every tensor of the text model, by its Hugging Face name."""
    return {tensor.name: tensor.shape for tensor in text_tensors(model)}

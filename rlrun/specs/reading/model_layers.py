"""Fills in whose layers compute the policy, where the spec leaves it open."""

from pathlib import Path
from typing import Any

from rlrun.models.config_json import read_config
from rlrun.models.families.table import TABLES
from rlrun.models.hub import cached_config


def fill_in_layers(data: dict[str, Any]) -> str | None:
    """Sets `model.implementation` to transformers for a family that only transformers' layers compute.

    Returns the line that says so. None: the spec sets the key, the trainer's own layers compute the family,
    or the family is not known, because the model is not on this host yet or has no valid config.json.
    """
    model = data.get("model")
    if not isinstance(model, dict) or "implementation" in model or not isinstance(model.get("path"), str):
        return None
    family = _family(model["path"], model.get("revision"))
    if family in TABLES["torchtitan"] or family not in TABLES["transformers"]:
        return None
    model["implementation"] = "transformers"
    return f'model.implementation is "transformers": the trainer has no layers of its own for {family}'


def _family(path: str, revision: object) -> object:
    """Returns the `model_type` of a folder, or of a model of the hub that is in the cache; else None."""
    folder: Path | None = Path(path)
    if not Path(path).is_absolute():
        folder = cached_config(path, revision if isinstance(revision, str) else None)
    try:
        return None if folder is None else read_config(folder).get("model_type")
    except (OSError, ValueError):
        return None

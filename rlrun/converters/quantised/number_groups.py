"""Reads how compressed-tensors describes the numbers of a checkpoint in `quantization_config`."""

from collections.abc import Mapping
from typing import Any


def number_groups(settings: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Returns the description of the weights of each group of modules.

    Raises ValueError if a weight is more than numbers times scales: rotated, sparse, or of another format.
    """
    if settings.get("transform_config"):
        raise ValueError("quantization_config has a transform_config: rlrun does not read rotated weights")
    sparsity = settings.get("sparsity_config") or {}
    kind = sparsity.get("format", "dense") if isinstance(sparsity, Mapping) else sparsity
    if kind != "dense":
        raise ValueError(f"quantization_config describes sparse weights ({kind})")
    groups = settings.get("config_groups")
    if not isinstance(groups, Mapping) or not groups:
        raise ValueError("quantization_config has no config_groups, which describe the numbers")
    for name, group in groups.items():
        if not isinstance(group, Mapping) or not isinstance(group.get("weights"), Mapping):
            raise ValueError(f"{name} in quantization_config does not describe weights")
        if (layout := group.get("format")) is not None and layout != settings.get("format"):
            raise ValueError(f"{name} in quantization_config has the format {layout}, unlike the checkpoint")
    return [group["weights"] for group in groups.values()]

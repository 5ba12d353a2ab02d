"""Fields that the weight updates of several carriers have in SGLang's JSON."""

from collections.abc import Sequence
from typing import Any

from rlrun.runner.contracts.weight_updates import UpdatedModels

TENSORS = "/update_weights_from_tensor"
FLATTENED = "flattened_bucket"
"""SGLang's load format for tensors that are stored one after the other in one buffer of bytes."""


def adapter_name(version: int) -> str:
    """Returns the name under which a server has the adapters of a version."""
    return f"policy-v{version}"


def handles(payloads: Sequence[str]) -> dict[str, Any]:
    """`payloads`: one for each process of a server."""
    return {"serialized_named_tensors": payloads, "load_format": FLATTENED}


def update_fields(version: int, models: UpdatedModels) -> dict[str, Any]:
    """Returns the fields of an update of an SGLang server through tensors."""
    return version_fields(version) | {"selector": models}


def version_fields(version: int) -> dict[str, Any]:
    """Returns the fields that every update of an SGLang server has.

    The update also drops the cached prefixes of the old weights: a separate /flush_cache would collect
    garbage too, which takes the server a second.
    """
    return {"weight_version": str(version), "flush_cache": True}

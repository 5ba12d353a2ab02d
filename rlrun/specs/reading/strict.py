"""Validates TOML documents strictly: "8" and 8.0 are not accepted as whole numbers."""

import json
from collections.abc import Mapping
from typing import Any

from rlrun.specs.sections.job import Spec


def as_json(data: Mapping[str, Any]) -> str:
    """Returns a TOML document as JSON; dates and times become strings."""
    return json.dumps(data, default=str)


def validate_spec(data: Mapping[str, Any]) -> Spec:
    """Returns the spec of a document. Raises pydantic's ValidationError with every mistake in its sections.

    The document is validated as JSON, because pydantic then applies strict mode to scalars only: an array is
    accepted for a tuple, which strict mode in Python refuses.
    """
    return Spec.model_validate_json(as_json(data), strict=True)

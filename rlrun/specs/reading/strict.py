"""Strict validation of TOML documents: "8" and 8.0 are no whole numbers, arrays fit tuples and lists."""

import json
from collections.abc import Mapping
from typing import Any

from rlrun.specs.sections.job import Spec


def as_json(data: Mapping[str, Any]) -> str:
    """A TOML document as JSON; dates and times become strings."""
    return json.dumps(data, default=str)


def validate_spec(data: Mapping[str, Any]) -> Spec:
    """The spec a document describes; pydantic's ValidationError with all that is wrong in its sections.

    By way of JSON, where pydantic's strictness is about scalars alone.
    """
    return Spec.model_validate_json(as_json(data), strict=True)

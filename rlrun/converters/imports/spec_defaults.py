"""The default of a key of the spec."""

from typing import Any

from rlrun.specs.problems.suggestions import section_models
from rlrun.specs.sections.job import Spec
from rlrun.specs.sections.section import is_derived

UNKNOWN = object()
"""The default of keys that plugins add, and of those that follow from other keys."""


def spec_default(key: str) -> Any:
    """Returns the default of a dotted key, or UNKNOWN."""
    model: Any = Spec
    *parents, leaf = key.split(".")
    for part in parents:
        field = model.model_fields.get(part)
        model = next(section_models(field.annotation), None) if field else None
        if model is None:
            return UNKNOWN
    field = model.model_fields.get(leaf)
    if field is None or is_derived(field) or field.is_required():
        return UNKNOWN
    return field.get_default(call_default_factory=True)

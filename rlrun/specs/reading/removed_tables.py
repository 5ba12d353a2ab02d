"""Removes tables that a spec sets to `false`: `lora = false` removes the `[trainer.lora]` of a base.

TOML has no value for "not set", and a table can otherwise only be merged or replaced.
"""

from typing import Any, get_args, get_origin

from rlrun.specs.problems.suggestions import section_models
from rlrun.specs.sections.job import Spec


def remove_tables(data: Any, models: tuple[Any, ...] = (Spec,)) -> None:
    """Removes, in place, each key of the document whose value is false where the spec has a table.

    `models`: the sections that `data` may be; an array of tables is removed as well.
    """
    if isinstance(data, list):
        for element in data:
            remove_tables(element, models)
    if not isinstance(data, dict):
        return
    fields = {name: field.annotation for model in models for name, field in model.model_fields.items()}
    for name in fields.keys() & data.keys():
        inner = tuple(section_models(fields[name]))
        if data[name] is False and is_table(fields[name]):
            del data[name]
        elif inner:
            remove_tables(data[name], inner)


def is_table(annotation: Any) -> bool:
    """Returns whether an annotation allows a table or an array of tables, as `LoraSpec | None` does."""
    return any(section_models(annotation)) or _is_free(annotation)


def _is_free(annotation: Any) -> bool:
    return get_origin(annotation) is dict or any(map(_is_free, get_args(annotation)))

"""Lists the keys of a section from its model, for the documentation, `rlrun plugins show` and `rlrun
init`."""

import json
import re
import types
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from rlrun.specs.problems.docstrings import field_docstrings
from rlrun.specs.problems.suggestions import section_models
from rlrun.specs.sections.section import is_derived


@dataclass(frozen=True, slots=True)
class Setting:
    """One key of a section."""

    name: str
    """The key; dotted for a key of a table inside the section: `parallel.fsdp`."""
    type: str
    """Type in words: `whole number ≥ 1`, `"sync" or "async"`, `array of strings`."""
    default: str
    """Default in TOML; `required` for a key without one, `unset` for None, and `derived` for a default that
    follows from other keys, the model or the host."""
    about: str
    """The field's docstring on one line."""


_NAMES: dict[Any, str] = {
    bool: "true or false",
    int: "whole number",
    float: "number",
    str: "string",
    Any: "anything",
}
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_BOUNDS = (("ge", "≥"), ("gt", ">"), ("le", "≤"), ("lt", "<"))


def list_settings(model: type[BaseModel], prefix: str = "") -> list[Setting]:
    """Returns the keys of a section and of the tables inside it, but not those of arrays of tables."""
    settings = []
    for name, field in model.model_fields.items():
        inner = next(section_models(field.annotation), None)
        is_single = inner is not None and get_origin(field.annotation) is not tuple
        if not is_single or field.default is None:
            about = field_docstrings(model).get(name, "").replace("None:", "Unset:")
            settings.append(Setting(prefix + name, _type_of(field), _default_of(field), about))
        if inner is not None and is_single:
            settings.extend(list_settings(inner, f"{prefix}{name}."))
    return settings


def as_toml(value: Any) -> str:
    """Returns a value in TOML; None is `unset`."""
    if value is None:
        return "unset"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, float):
        return repr(value).replace("e-0", "e-")
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(as_toml, value))}]"
    if isinstance(value, dict):
        pairs = ", ".join(
            f"{_key(name)} = {as_toml(inner)}" for name, inner in value.items() if inner is not None
        )
        return f"{{ {pairs} }}" if pairs else "{}"
    return str(value)


def as_document(table: Mapping[str, Any]) -> str:
    """Returns a table as a TOML document, with one line for each of its keys."""
    return "".join(f"{_key(key)} = {as_toml(value)}\n" for key, value in table.items() if value is not None)


def _key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else json.dumps(name, ensure_ascii=False)


def _default_of(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    return "derived" if is_derived(field) else as_toml(field.get_default(call_default_factory=True))


def _type_of(field: FieldInfo) -> str:
    bounds = [f"{sign} {value}" for name, sign in _BOUNDS if (value := _bound(field, name)) is not None]
    return " ".join([_name_of(field.annotation), *bounds])


def _bound(field: FieldInfo, name: str) -> float | None:
    return next((getattr(item, name) for item in field.metadata if hasattr(item, name)), None)


def _name_of(annotation: Any) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        return " or ".join(_name_of(argument) for argument in arguments if argument is not type(None))
    if origin is Annotated:
        return _name_of(arguments[0])
    if origin is Literal:
        return " or ".join(map(as_toml, arguments))
    if origin in (list, tuple):
        inner = dict.fromkeys(_name_of(argument) for argument in arguments if argument is not ...)
        if len(inner) > 1:
            return f"[{', '.join(inner)}]"
        [item] = inner
        return f"array of {item}" if item.endswith("]") else f"array of {item}s"
    if origin is dict or (isinstance(annotation, type) and issubclass(annotation, (BaseModel, dict))):
        return "table"
    return _NAMES.get(annotation, str(annotation))

"""Reads YAML that other programs' users wrote, without building values that would fill the memory."""

from typing import Any

import yaml

_MAX_ALIASES = 20
"""Limits YAML aliases, because nested aliases can expand to gigabytes."""
_MAX_DEPTH = 50
"""Limits nesting: PyYAML takes minutes and gigabytes for thousands of brackets, which it all looks at before
it finds the first one that is not closed."""


def yaml_table(text: str) -> dict[str, Any]:
    """Returns the table in a YAML text. Raises ValueError with the problem."""
    settings = yaml_value(text)
    if not isinstance(settings, dict):
        raise ValueError("does not contain a table of settings")
    return settings


def yaml_value(text: str) -> Any:
    """Returns the value of a YAML text. Raises ValueError with the problem."""
    try:
        _check_events(text)
        value = yaml.safe_load(text)
    # PyYAML's functions for `!!int` and other tags fail in many ways for values of other types
    except (yaml.YAMLError, AttributeError, LookupError, TypeError) as error:
        raise ValueError(f"is not valid YAML: {' '.join(str(error).split())[:120]}") from None
    if _contains_itself(value):
        raise ValueError("has a value that contains itself")
    return value


def _check_events(text: str) -> None:
    """Raises ValueError for a text that would expand to gigabytes, without building any of it."""
    depth = num_aliases = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        num_aliases += isinstance(event, yaml.AliasEvent)
        if depth > _MAX_DEPTH:
            raise ValueError(f"is nested more than {_MAX_DEPTH} deep")
        if num_aliases > _MAX_ALIASES:
            raise ValueError("has too many aliases to be read")


def _contains_itself(value: Any, outer: tuple[Any, ...] = ()) -> bool:
    """Returns whether a list or table is a part of itself, by an alias."""
    if not isinstance(value, dict | list):
        return False
    if any(value is other for other in outer):
        return True
    parts = value.values() if isinstance(value, dict) else value
    return any(_contains_itself(part, (*outer, value)) for part in parts)

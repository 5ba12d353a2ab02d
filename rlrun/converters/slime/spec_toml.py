"""Writes a spec as TOML, with a comment on each key."""

from collections.abc import Iterator, Mapping
from typing import Any

from rlrun.specs.reading.reference import as_toml
from rlrun.specs.sections.job import Spec

_MAX_COLUMN = 60
"""The column at which comments begin, at most."""


def spec_toml(values: Mapping[str, Any], comments: Mapping[str, str], title: str) -> str:
    """Returns a spec as TOML: the title as a comment, then the sections in the reference's order.

    `comments`: by dotted key, with numbers for the elements of arrays, as in `rewards.0.type`.
    """
    order = list(Spec.model_fields)
    names = sorted(values, key=order.index)
    plain = [name for name in names if not isinstance(values[name], (dict, list))]
    lines = [f"# {title}", *_lines({name: values[name] for name in plain}, "", comments)]
    for name in names:
        if name not in plain:
            lines += _table(name, values[name], name, comments)
    return "\n".join(lines) + "\n"


def _table(header: str, value: Any, path: str, comments: Mapping[str, str]) -> Iterator[str]:
    """Yields the lines of a table, or of an array of tables, and of the tables inside."""
    if isinstance(value, list):
        for number, element in enumerate(value):
            yield from ["", f"[[{header}]]", *_lines(element, f"{path}.{number}.", comments)]
        return
    inner = {name: item for name, item in value.items() if _is_table(item)}
    plain = {name: item for name, item in value.items() if name not in inner}
    if plain or not inner:
        yield from ["", f"[{header}]", *_lines(plain, f"{path}.", comments)]
    for name, item in inner.items():
        yield from _table(f"{header}.{name}", item, f"{path}.{name}", comments)


def _lines(table: Mapping[str, Any], prefix: str, comments: Mapping[str, str]) -> list[str]:
    """Returns a line for each key, `type` first, with the comments in one column."""
    table = {name: table[name] for name in sorted(table, key="type".__ne__)}
    pairs = [(f"{name} = {as_toml(value)}", comments.get(prefix + name)) for name, value in table.items()]
    width = max((len(text) for text, comment in pairs if comment), default=0)
    return [f"{text:{min(width, _MAX_COLUMN)}}  # {comment}" if comment else text for text, comment in pairs]


def _is_table(value: Any) -> bool:
    return isinstance(value, dict) or (isinstance(value, list) and bool(value) and isinstance(value[0], dict))

"""Names of `[[engines]]` in a spec.

A section or a plugin's `Params` declares a name by its type, `engine: EngineName`, and `rlrun validate` then
refuses one that no table of `[[engines]]` has.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import BaseModel

from rlrun.specs.problems.codes import Code
from rlrun.specs.problems.findings import Finding
from rlrun.specs.problems.positions import KeyPath
from rlrun.specs.problems.spelling import nearest


@dataclass(frozen=True, slots=True)
class EngineMarker:
    """Marks a field as the name of one of `[[engines]]`, or as a list of names, in its type annotation."""


EngineName = Annotated[str, EngineMarker()]
"""The name of one of `[[engines]]`."""
EngineNames = Annotated[tuple[str, ...], EngineMarker()]
"""Names of `[[engines]]`."""
_TABLES: tuple[KeyPath, ...] = (("engines",),)


def engine_fields(model: type[BaseModel]) -> Iterator[str]:
    """Yields the names of the fields that are declared as names of engines."""
    for name, field in model.model_fields.items():
        if any(isinstance(item, EngineMarker) for item in field.metadata):
            yield name


def unknown_engine(path: KeyPath, value: object, names: Sequence[str]) -> Iterator[Finding]:
    """Yields a finding for each name in `value`, a name or a list of them, that is not among `names`."""
    if isinstance(value, list | tuple):
        for number, item in enumerate(value):
            yield from unknown_engine((*path, number), item, names)
    elif isinstance(value, str) and value not in names:
        suggestion = nearest(value, names)
        message = f'no table of [[engines]] is named "{value}"'
        cure = f'add a table [[engines]] with `name = "{value}"`'
        cure = f'did you mean "{suggestion}"?' if suggestion else cure
        listed = f"; the tables are named {', '.join(names)}" if names and not suggestion else ""
        yield Finding(path, message + listed, cure, suggestion, value, related=_TABLES, code=Code.ENGINE)

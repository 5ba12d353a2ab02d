"""Data in object stores: a launch copies it to this machine, and sources read the copies.

data.path = "s3://bucket/rows.jsonl@[:100]" ─▶ launch: stage_data ─▶ with_copies ─▶ a source's Params
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel

from rlrun.models.object_store import is_address
from rlrun.models.staged_files import stage_file, staged_file
from rlrun.specs.paths import path_fields
from rlrun.specs.problems.suggestions import section_models
from rlrun.specs.sections.job import Spec
from rlrun.specs.sections.section import PluginSection

_SLICED = re.compile(r"(?P<address>.*?)(?P<slice>@\[[^\]]*\])?", re.DOTALL)

Params = TypeVar("Params", bound=BaseModel)


def stage_data(spec: Spec, say: Callable[[str], None]) -> None:
    """Copies every object that a data source of the spec names. ValueError if one cannot be copied."""
    for source in (spec.data, *spec.eval.datasets):
        for address in _addresses(source.type, source.params):
            stage_file(address, say)


def is_here(source: str, params: Mapping[str, Any]) -> bool:
    """Whether this machine has a copy of every object that the parameters of a data source name."""
    return all(staged_file(address) is not None for address in _addresses(source, params))


def with_copies(params: Params) -> Params:
    """Returns the parameters of a plugin with the paths of copies in the place of addresses.

    Raises ValueError for an object that this machine has no copy of.
    """
    copies = {
        name: local_path(value)
        for name in _data_fields(type(params))
        if isinstance(value := getattr(params, name), str)
    }
    changed = {name: path for name, path in copies.items() if path != getattr(params, name)}
    return params.model_copy(update=changed) if changed else params


def local_path(path: str) -> str:
    """Returns the path of an object's copy, with the slice that follows the address; any other path as it is.

    Raises ValueError if this machine has no copy.
    """
    address, row_slice = _split(path)
    if not is_address(address):
        return path
    copy = staged_file(address)
    if copy is None:
        raise ValueError(f"{address} is not on this machine yet: rlrun launch copies it")
    return f"{copy}{row_slice}"


def _split(path: str) -> tuple[str, str]:
    match = _SLICED.fullmatch(path)
    assert match is not None
    return match["address"], match["slice"] or ""


def _data_fields(model: type[BaseModel]) -> list[str]:
    return [name for name, marker in path_fields(model) if marker.kind == "data"]


def _addresses(source: str, params: Mapping[str, Any]) -> Iterator[str]:
    """Yields the addresses, without slices, in the fields of a data source that are paths of data, also in
    those of sources within it. A source that reads an object store itself has other fields for that.
    """
    from rlrun.plugins.registry import load, names  # it imports this module

    model = load("data", source).Params
    for name in _data_fields(model):
        if isinstance(value := params.get(name), str) and is_address(address := _split(value)[0]):
            yield address
    for name, field in model.model_fields.items():
        if any(issubclass(table, PluginSection) for table in section_models(field.annotation)):
            continue  # a plugin of another kind, such as an environment
        value = params.get(name)
        for inner in value if isinstance(value, list | tuple) else (value,):
            kind = inner.get("type") if isinstance(inner, Mapping) else None
            if isinstance(kind, str) and (kind in names("data") or ".py:" in kind):
                yield from _addresses(kind, inner)

"""Data in object stores: a launch copies it to this machine, where sources read the copies."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rlrun.models.object_store import is_address
from rlrun.models.staged_files import stage_file, staged_file
from rlrun.plugins.data_copies import data_fields, split_slice
from rlrun.plugins.registry import load, names
from rlrun.specs.problems.suggestions import section_models
from rlrun.specs.sections.job import Spec
from rlrun.specs.sections.section import PluginSection


def stage_data(spec: Spec, say: Callable[[str], None]) -> None:
    """Copies every object that a data source of the spec names. ValueError if one cannot be copied."""
    for source in (spec.data, *spec.eval.datasets):
        for address in _addresses(source.type, source.params):
            stage_file(address, say)


def is_here(source: str, params: Mapping[str, Any]) -> bool:
    """Whether this machine has a copy of every object that the parameters of a data source name."""
    return all(staged_file(address) is not None for address in _addresses(source, params))


def _addresses(source: str, params: Mapping[str, Any]) -> Iterator[str]:
    """Yields the addresses, without slices, in the fields of a data source that are paths of data, also in
    those of sources within it. A source that reads an object store itself has other fields for that.
    """
    model = load("data", source).Params
    for name in data_fields(model):
        if isinstance(value := params.get(name), str) and is_address(address := split_slice(value)[0]):
            yield address
    for name, field in model.model_fields.items():
        if any(issubclass(table, PluginSection) for table in section_models(field.annotation)):
            continue  # a plugin of another kind, such as an environment
        value = params.get(name)
        for inner in value if isinstance(value, list | tuple) else (value,):
            kind = inner.get("type") if isinstance(inner, Mapping) else None
            if isinstance(kind, str) and (kind in names("data") or ".py:" in kind):
                yield from _addresses(kind, inner)

"""Paths of data as a source reads them: this machine's copy in the place of an object's address.

data.path = "s3://bucket/rows.jsonl@[:100]" ─▶ with_copies ─▶ a source's Params with "…/rows.jsonl@[:100]"
"""

import re
from typing import TypeVar

from pydantic import BaseModel

from rlrun.models.object_store import is_address
from rlrun.models.staged_files import staged_file
from rlrun.specs.paths import path_fields

_SLICED = re.compile(r"(?P<address>.*?)(?P<slice>@\[[^\]]*\])?", re.DOTALL)

Params = TypeVar("Params", bound=BaseModel)


def with_copies(params: Params) -> Params:
    """Returns the parameters of a plugin with the paths of copies in the place of addresses.

    Raises ValueError for an object that this machine has no copy of.
    """
    copies = {
        name: local_path(value)
        for name in data_fields(type(params))
        if isinstance(value := getattr(params, name), str)
    }
    changed = {name: path for name, path in copies.items() if path != getattr(params, name)}
    return params.model_copy(update=changed) if changed else params


def local_path(path: str) -> str:
    """Returns the path of an object's copy, with the slice that follows the address; any other path as it is.

    Raises ValueError if this machine has no copy.
    """
    address, row_slice = split_slice(path)
    if not is_address(address):
        return path
    copy = staged_file(address)
    if copy is None:
        raise ValueError(f"{address} is not on this machine yet: rlrun launch copies it")
    return f"{copy}{row_slice}"


def split_slice(path: str) -> tuple[str, str]:
    """Returns a path or address without the slice that may follow it, and the slice."""
    match = _SLICED.fullmatch(path)
    assert match is not None
    return match["address"], match["slice"] or ""


def data_fields(model: type[BaseModel]) -> list[str]:
    """Returns the fields of a plugin's parameters that are paths of data."""
    return [name for name, marker in path_fields(model) if marker.kind == "data"]

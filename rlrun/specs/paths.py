"""Paths in a spec: relative to the file that sets them, or `package:` for files that rlrun ships.

A section or a plugin's `Params` declares a path by its type: `path: SpecPath`. When the spec is loaded the
value becomes an absolute path, so that a run does not depend on where it was started.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel

from rlrun.specs.spelling import nearest

RECIPES = Path(__file__).parent / "recipes"
"""Shipped specs and the files they refer to."""

_PACKAGE_PREFIX = "package:"
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(?:/[A-Za-z0-9][\w.-]*)?")
_SLICE = re.compile(r"@\[[^\]]*\]$")


@dataclass(frozen=True, slots=True)
class PathMarker:
    """Annotation of a field that holds a path."""

    kind: Literal["input", "model"] = "input"
    """`input`: an existing file or folder. `model`: an existing folder with config.json, or an id on the HF
    hub."""


SpecPath = Annotated[str, PathMarker()]
"""A file or folder that must exist; a slice such as `rows.jsonl@[:100]` may follow the name."""

ModelPath = Annotated[str, PathMarker("model")]
"""An HF model folder or id."""


class PathError(ValueError):
    """A path that leads nowhere; says where it was looked for, and what is there instead."""

    def __init__(self, message: str, path: Path) -> None:
        super().__init__(message)
        self.suggestion = similar_file(path)


def path_fields(model: type[BaseModel]) -> Iterator[tuple[str, PathMarker]]:
    """Fields of a model that are declared as paths."""
    for name, field in model.model_fields.items():
        for item in field.metadata:
            if isinstance(item, PathMarker):
                yield name, item


def absolute_path(value: str, folder: Path) -> Path:
    """Where `value`, set by a file in `folder`, leads."""
    if value.startswith(_PACKAGE_PREFIX):
        return RECIPES / value.removeprefix(_PACKAGE_PREFIX)
    return Path(os.path.normpath(folder.absolute() / Path(value).expanduser()))


def resolve_path(value: str, folder: Path, marker: PathMarker) -> str:
    """The absolute path that `value`, set by a file in `folder`, means; an HF id stays as it is.

    Raises PathError where nothing is there.
    """
    slice_of = _SLICE.search(value)
    end = slice_of[0] if slice_of else ""
    path = absolute_path(value.removesuffix(end), folder)
    if marker.kind == "model":
        return _resolve_model(value, path)
    if not path.exists():
        raise PathError(f"there is no {path}", path)
    return f"{path}{end}"


def similar_file(path: Path) -> str | None:
    """A neighbour of a path that is not there, spelt much like it; as one would name it from here."""
    if path.exists() or not path.parent.is_dir():
        return None
    found = nearest(path.name, (each.name for each in path.parent.iterdir()))
    return shown_path(path.parent / found) if found else None


def shown_path(path: Path) -> str:
    """Relative to the working folder where it lies beneath it, else absolute."""
    name = os.path.relpath(path)
    return str(path.absolute()) if name.startswith("..") else name


def _resolve_model(value: str, path: Path) -> str:
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise PathError(f"{path} is not an HF model folder: it has no config.json", path)
        return str(path)
    if _HUB_ID.fullmatch(value):
        return value
    raise PathError(f"neither an id on the Hugging Face hub nor a folder: there is no {path}", path)

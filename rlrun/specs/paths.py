"""Paths in a spec: relative to the file that sets them, or `package:` for files that rlrun ships.

A section or a plugin's `Params` declares a path by its type: `path: SpecPath`. When the spec is loaded the value becomes an
absolute path, so that a run does not depend on where it was started.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel

RECIPES = Path(__file__).parent / "recipes"
"""Shipped specs and the files they refer to."""

PACKAGE_PREFIX = "package:"
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(?:/[A-Za-z0-9][\w.-]*)?")


@dataclass(frozen=True, slots=True)
class PathMarker:
    """Annotation of a field that holds a path."""

    kind: Literal["input", "model"] = "input"
    """`input`: an existing file or folder. `model`: an existing folder with config.json, or an id on the HF hub."""


SpecPath = Annotated[str, PathMarker()]
"""A file or folder that must exist."""

ModelPath = Annotated[str, PathMarker("model")]
"""An HF model folder or id."""


class PathError(ValueError):
    """A path that leads nowhere; says where it was looked for."""


def path_fields(model: type[BaseModel]) -> Iterator[tuple[str, PathMarker]]:
    """Fields of a model that are declared as paths."""
    for name, field in model.model_fields.items():
        for item in field.metadata:
            if isinstance(item, PathMarker):
                yield name, item


def resolve_path(value: str, folder: Path, marker: PathMarker) -> str:
    """The absolute path that `value`, set by a file in `folder`, means; an HF id stays as it is.

    Raises PathError where nothing is there.
    """
    if value.startswith(PACKAGE_PREFIX):
        path = RECIPES / value.removeprefix(PACKAGE_PREFIX)
    else:
        path = folder / Path(value).expanduser()
    path = path.absolute()
    if marker.kind == "model":
        return _resolve_model(value, path)
    if not path.exists():
        raise PathError(f"there is no {path}")
    return str(path)


def _resolve_model(value: str, path: Path) -> str:
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise PathError(f"{path} is not an HF model folder: it has no config.json")
        return str(path)
    if _HUB_ID.fullmatch(value):
        return value
    raise PathError(f"neither an id on the Hugging Face hub nor a folder: there is no {path}")

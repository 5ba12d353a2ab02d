"""Paths in a spec: relative to the file that sets them, or `package:` for files that rlrun ships.

A section or a plugin's `Params` declares a path by its type: `path: SpecPath`. When the spec is loaded the
value becomes an absolute path, so that a run does not depend on where it was started.
"""

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel

from rlrun.specs.problems.spelling import nearest

RECIPES = Path(__file__).parent / "recipes"
"""Shipped specs and the files they refer to."""

_PACKAGE_PREFIX = "package:"
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(?:/[A-Za-z0-9][\w.-]*)?")
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_HUB_ADDRESS = re.compile(r"https?://(?:www\.)?huggingface\.co/([\w.-]+/[\w.-]+)")
_SLICE = re.compile(r"@\[[^\]]*\]$")


@dataclass(frozen=True, slots=True)
class PathMarker:
    """Annotation of a field that holds a path."""

    kind: Literal["input", "model"] = "input"
    """`input`: an existing file or folder. `model`: a folder with config.json, or an id on the HF hub."""


SpecPath = Annotated[str, PathMarker()]
"""A file or folder that must exist; a slice such as `rows.jsonl@[:100]` may follow the name."""

ModelPath = Annotated[str, PathMarker("model")]
"""An HF model folder or id."""


class PathError(ValueError):
    """A path that leads nowhere; says where it was looked for, and what is there instead."""

    def __init__(self, message: str, suggestion: str | None) -> None:
        super().__init__(message)
        self.suggestion = suggestion


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
    try:
        path = Path(value).expanduser()
    except RuntimeError:  # the home of a user who is not there
        path = Path(value)
    return Path(os.path.normpath(folder.absolute() / path))


def path_kind(path: Path) -> Literal["file", "folder"] | None:
    """What is there; None where nothing is, or nothing that can be looked at."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return None
    return "folder" if stat.S_ISDIR(mode) else "file"


def resolve_path(value: str, folder: Path, marker: PathMarker) -> str:
    """The absolute path that `value`, set by a file in `folder`, means; an HF id stays as it is.

    Raises PathError where nothing is there.
    """
    slice_of = _SLICE.search(value)
    end = slice_of[0] if slice_of else ""
    if not value.strip():
        raise PathError("the path is empty", None)
    path = absolute_path(value.removesuffix(end), folder)
    if marker.kind == "model":
        return _resolve_model(value, path)
    if path_kind(path) is None and _ADDRESS.match(value):
        raise PathError(f"{value} is a web address, and files are read from disk: download it first", None)
    if path_kind(path) is None and "*" in path.name:
        raise PathError(f"there is no {path}: a path names one file, and patterns are not expanded", None)
    if path_kind(path) is None:
        raise PathError(f"there is no {path}", suggest_path(value.removesuffix(end), path))
    return f"{path}{end}"


def suggest_path(written: str, path: Path) -> str | None:
    """What `written`, which means `path`, might have meant: a neighbour that is spelt much like it."""
    if path_kind(path) or not written.endswith(path.name):
        return None
    try:
        found = nearest(path.name, (each.name for each in path.parent.iterdir()))
    except (OSError, ValueError):
        return None
    return written.removesuffix(path.name) + found if found else None


def display_path(path: Path) -> str:
    """Relative to the working folder where it lies beneath it, else absolute."""
    name = os.path.relpath(path)
    return str(path.absolute()) if name.startswith("..") else name


def _resolve_model(value: str, path: Path) -> str:
    if path_kind(path) == "folder":
        if path_kind(path / "config.json") != "file":
            raise PathError(f"{path} is not an HF model folder: it has no config.json{_instead(path)}", None)
        return str(path)
    if path_kind(path) == "file":
        raise PathError(
            f"{path} is a file; a model is a folder with config.json, tokenizer and weights", None
        )
    if _HUB_ID.fullmatch(value):
        return value
    if _ADDRESS.match(value):
        own = _HUB_ADDRESS.match(value)
        cure = "" if own else ": download it and give its folder"
        raise PathError(f"{value} is a web address{cure}", own[1] if own else None)
    message = f"neither an id on the Hugging Face hub nor a folder: there is no {path}"
    raise PathError(message, suggest_path(value, path))


def _instead(path: Path) -> str:
    """What to name instead of a run's folder, or of a checkpoint in it."""
    if path_kind(path / "model" / "config.json"):
        return f"; it is a run's folder, whose trained model is {path / 'model'}"
    for checkpoint in (path, path.parent):
        if path_kind(checkpoint / "trainer") == "folder" and path_kind(checkpoint / "driver.json"):
            return f"; it is a checkpoint: rlrun convert dcp-to-hf {checkpoint / 'trainer'} DST exports it"
    if path_kind(path / "checkpoints") == "folder":
        return "; it is the folder of a run that has not exported its model yet (rlrun convert dcp-to-hf)"
    return ""

"""Paths in a spec: relative to the file that sets them, or `package:` for files that rlrun ships.

A section or a plugin's `Params` declares a path by its type: `path: SpecPath`. The loader replaces the value
by an absolute path, so that a run does not depend on the folder where it was started.
"""

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel

from rlrun.models.object_store import address_fault, is_address
from rlrun.specs.problems.spelling import nearest

RECIPES = Path(__file__).parent / "recipes"
"""Folder of the specs that rlrun ships, and of the files they refer to."""

_PACKAGE_PREFIX = "package:"
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(?:/[A-Za-z0-9][\w.-]*)?")
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_HUB_ADDRESS = re.compile(r"https?://(?:www\.)?huggingface\.co/([\w.-]+/[\w.-]+)")
_SLICE = re.compile(r"@\[[^\]]*\]$")


@dataclass(frozen=True, slots=True)
class PathMarker:
    """Marks a field as a path, in its type annotation."""

    kind: Literal["input", "data", "model"] = "input"
    """`input`: an existing file or folder. `data`: the same, or the address of an object (`s3://…`). `model`:
    a folder with config.json, an id on the Hugging Face hub, or the address of such a folder."""


SpecPath = Annotated[str, PathMarker()]
"""A file or folder that must exist; a slice such as `rows.jsonl@[:100]` may follow the name."""

DataPath = Annotated[str, PathMarker("data")]
"""As `SpecPath`, or the address of an object in an object store, which a launch copies to this machine."""

ModelPath = Annotated[str, PathMarker("model")]
"""A Hugging Face model folder or id."""


class PathError(ValueError):
    """A path that does not exist. The message says where it was looked for and what exists instead."""

    def __init__(self, message: str, suggestion: str | None) -> None:
        super().__init__(message)
        self.suggestion = suggestion


def path_fields(model: type[BaseModel]) -> Iterator[tuple[str, PathMarker]]:
    """Yields the names of the fields that are declared as paths, with their markers."""
    for name, field in model.model_fields.items():
        for item in field.metadata:
            if isinstance(item, PathMarker):
                yield name, item


def absolute_path(value: str, folder: Path) -> Path:
    """Returns the absolute path that `value` means in a file of `folder`."""
    if value.startswith(_PACKAGE_PREFIX):
        return RECIPES / value.removeprefix(_PACKAGE_PREFIX)
    try:
        path = Path(value).expanduser()
    except RuntimeError:  # `~name` of a user that does not exist
        path = Path(value)
    return Path(os.path.normpath(folder.absolute() / path))


def path_kind(path: Path) -> Literal["file", "folder"] | None:
    """Returns whether the path is a file or a folder; None if it does not exist or cannot be read."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return None
    return "folder" if stat.S_ISDIR(mode) else "file"


def resolve_path(value: str, folder: Path, marker: PathMarker) -> str:
    """Returns the absolute path that `value` means in a file of `folder`.

    A Hugging Face id and an address of an object store are returned unchanged. Raises PathError if the path
    does not exist.
    """
    slice_match = _SLICE.search(value)
    row_slice = slice_match[0] if slice_match else ""
    if not value.strip():
        raise PathError("the path is empty", None)
    if marker.kind in ("data", "model") and is_address(value.removesuffix(row_slice)):
        if (fault := address_fault(value.removesuffix(row_slice))) is not None:
            raise PathError(f"the address {fault}", None)
        return value
    path = absolute_path(value.removesuffix(row_slice), folder)
    if marker.kind == "model":
        return _resolve_model(value, path)
    if path_kind(path) is None and _ADDRESS.match(value):
        raise PathError(f"{value} is a URL, and rlrun only reads files on disk: download it first", None)
    if path_kind(path) is None and "*" in path.name:
        raise PathError(f"there is no {path}: patterns are not expanded; name a single file", None)
    if path_kind(path) is None:
        raise PathError(f"there is no {path}", suggest_path(value.removesuffix(row_slice), path))
    return f"{path}{row_slice}"


def suggest_path(written: str, path: Path) -> str | None:
    """Returns the path that `written` was probably meant to be: its folder with the most similar name there.

    `path` is the absolute path of `written`. None if the path exists, or no name of the folder is similar.
    """
    if path_kind(path) or not written.endswith(path.name):
        return None
    try:
        similar = nearest(path.name, (neighbour.name for neighbour in path.parent.iterdir()))
    except (OSError, ValueError):
        return None
    return written.removesuffix(path.name) + similar if similar else None


def display_path(path: Path) -> str:
    """Returns the path for messages: relative to the working folder if it is inside it, else absolute."""
    name = os.path.relpath(path)
    return str(path.absolute()) if name.startswith("..") else name


def _resolve_model(value: str, path: Path) -> str:
    if path_kind(path) == "folder":
        if path_kind(path / "config.json") != "file":
            raise PathError(
                f"{path} is not a Hugging Face model folder: it has no config.json{_advice(path)}", None
            )
        return str(path)
    if path_kind(path) == "file":
        raise PathError(
            f"{path} is a file; name the folder that has config.json, tokenizer and weights", None
        )
    if _HUB_ID.fullmatch(value):
        return value
    if _ADDRESS.match(value):
        hub_page = _HUB_ADDRESS.match(value)
        cure = "" if hub_page else ": download the model and name its folder"
        raise PathError(f"{value} is a URL{cure}", hub_page[1] if hub_page else None)
    message = f"neither a Hugging Face id nor a folder: there is no {path}"
    raise PathError(message, suggest_path(value, path))


def _advice(path: Path) -> str:
    """Returns what to name instead of a run's folder or a checkpoint in it; empty for any other folder."""
    if path_kind(path / "model" / "config.json"):
        return f"; it is the folder of a run, whose trained model is {path / 'model'}"
    for checkpoint in (path, path.parent):
        if path_kind(checkpoint / "trainer") == "folder" and path_kind(checkpoint / "driver.json"):
            return (
                f"; it is a checkpoint: export it with rlrun convert dcp-to-hf {checkpoint / 'trainer'} DST"
            )
    if path_kind(path / "checkpoints") == "folder":
        return "; it is the folder of a run without an exported model: use rlrun convert dcp-to-hf"
    return ""

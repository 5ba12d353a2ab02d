"""Prompts from a file of JSON lines, read when they are asked for: a file may be larger than memory."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import field_validator

from rlrun.plugins.types import Row
from rlrun.specs.paths import SpecPath
from rlrun.specs.section import Section

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
else:
    from rlrun.plugins import lazy_numpy as np

_SLICED = re.compile(r"(?P<path>.+)@\[(?P<start>-?\d*):(?P<end>-?\d*)\]")


class JsonlParams(Section):
    """The file and the keys that a line's values stand under."""

    path: SpecPath
    """File of JSON lines; `train.jsonl@[100:200]` takes some of its rows, counted as in Python."""
    prompt_key: str = "prompt"
    """Text, or a list of chat messages."""
    label_key: str | None = "label"
    """What rewards compare with. None: there is no label."""
    metadata_key: str = "metadata"
    """A table of anything else the rewards need; may be missing."""
    response_key: str | None = None
    """The demonstration for SFT, the preferred answer for DPO. None: rows are prompts only; or, for SFT, chats
    that end with an answer, of which all answers are trained."""
    rejected_key: str | None = None
    """The answer that the other was preferred to, for DPO. None: there is none."""

    @field_validator("path")
    @classmethod
    def _slice_is_well_formed(cls, path: str) -> str:
        split_slice(path)
        return path


def split_slice(path: str) -> tuple[str, slice]:
    """`rows.jsonl@[2:9]` -> `("rows.jsonl", slice(2, 9))`; ValueError where the slice is malformed."""
    found = _SLICED.fullmatch(path)
    if found is None:
        if "@[" in path:
            raise ValueError(
                f"{path!r} ends in no valid slice; write rows.jsonl@[start:end], either may be left out"
            )
        return path, slice(None)
    start, end = (int(found[name]) if found[name] else None for name in ("start", "end"))
    return found["path"], slice(start, end)


class Jsonl:
    """Row i is the file's i-th line that is not blank, counted after the slice."""

    Params = JsonlParams
    api_version = 1

    def __init__(self, params: JsonlParams) -> None:
        """Finds where lines begin. ValueError for a missing or empty file."""
        self.params = params
        path, rows = split_slice(params.path)
        self.path = Path(path)
        if not self.path.is_file():
            raise ValueError(f"there is no file {self.path}")
        offsets, lines = _index_lines(self.path)
        self._offsets, self._lines = offsets[rows], lines[rows]
        if not len(self._offsets):
            raise ValueError(f"{params.path} has no rows (the file has {len(offsets)})")

    def __len__(self) -> int:
        return len(self._offsets)

    def __getitem__(self, index: int) -> Row:
        """ValueError for a broken line, naming the file, the line and what is wrong."""
        where = f"{self.path.name}:{self._lines[index]}"
        with self.path.open("rb") as file:
            file.seek(self._offsets[index])
            line = file.readline()
        try:
            return self._row(json.loads(line), str(self._lines[index]))
        except UnicodeDecodeError as error:
            raise ValueError(f"{where}: not UTF-8 ({error})") from error
        except (json.JSONDecodeError, RecursionError) as error:
            raise ValueError(f"{where}: not JSON ({error})") from error
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from error

    def _row(self, values: Any, row_id: str) -> Row:
        if not isinstance(values, dict):
            raise ValueError(f"expected a JSON object, found {type(values).__name__}")
        params = self.params
        metadata = values.get(params.metadata_key) or {}
        if not isinstance(metadata, dict):
            raise ValueError(f"{params.metadata_key!r} is not a table but {type(metadata).__name__}")
        return Row(
            id=row_id,
            prompt=_prompt(_required(values, params.prompt_key), params.prompt_key),
            label=_required(values, params.label_key) if params.label_key is not None else None,
            metadata=metadata,
            response=_response(values, params.response_key),
            rejected=_response(values, params.rejected_key),
        )


def _index_lines(path: Path) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Byte offset and number (from 1) of every line that is not blank."""
    offsets, numbers, position = [], [], 0
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.isspace():
                offsets.append(position)
                numbers.append(number)
            position += len(line)
    return np.array(offsets, dtype=np.int64), np.array(numbers, dtype=np.int64)


def _required(values: dict[str, Any], key: str) -> Any:
    if key not in values:
        raise ValueError(f"no key {key!r}; the line has {', '.join(map(repr, values)) or 'no keys'}")
    return values[key]


def _prompt(value: Any, key: str) -> str | list[dict[str, Any]]:
    if isinstance(value, str) and value:
        return value
    if isinstance(value, list) and value and all(isinstance(item, dict) and "role" in item for item in value):
        return value
    raise ValueError(f"{key!r} must be text or a list of messages with a role, neither empty")


def _response(values: dict[str, Any], key: str | None) -> str | None:
    if key is None:
        return None
    response = _required(values, key)
    if not isinstance(response, str) or not response:
        raise ValueError(f"{key!r} must be text and not empty")
    return response

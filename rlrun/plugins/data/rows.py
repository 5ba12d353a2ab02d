"""From a table's values to a Row: what the sources that read files have in common."""

import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, Protocol, Self

from pydantic import AfterValidator, model_validator

from rlrun.plugins.data.chat_messages import read_messages, refuse_encoded
from rlrun.plugins.data.columns import PROMPT_NAMES, likely
from rlrun.plugins.types import Row
from rlrun.specs.paths import SpecPath
from rlrun.specs.sections.section import Section

_SLICED = re.compile(r"(?P<path>.+)@\[(?P<start>-?\d*):(?P<end>-?\d*)\]")
_TEMPLATE_PART = re.compile(r"\{\{|\}\}|\{([A-Za-z_][^{}]*)\}")
"""A doubled brace, or a column's name in braces; `{}` and `{1}`, as in LaTeX, are neither."""


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


def _well_formed(path: str) -> str:
    split_slice(path)
    return path


SlicedPath = Annotated[SpecPath, AfterValidator(_well_formed)]
"""A path in a spec that may end in a slice."""


class RowKeys(Section):
    """The keys, or columns, that a row's values stand under."""

    prompt_key: str = "prompt"
    """Text, or a list of chat messages."""
    prompt_template: str | None = None
    """The prompt, with each `{column}` replaced by the row's value in that column; `{{` and `}}` are braces.
    None: the prompt is the value under `prompt_key`."""
    label_key: str = "label"
    """What rewards compare with. A row without this key has no label."""
    metadata_key: str = "metadata"
    """A table of anything else the rewards need; may be missing."""
    metadata_columns: tuple[str, ...] = ()
    """Other columns to carry along in the metadata, such as images; each must be there."""
    tools_key: str | None = None
    """Tools for the chat template, as JSON schemas or their text; `tools` in the metadata. A row without this
    key has no tools. None: no row has."""
    system_prompt: str | None = None
    """Stands before every prompt that has no system message of its own. None: nothing does."""
    response_key: str | None = None
    """The demonstration for SFT, the preferred answer for DPO. None: rows are prompts only; or, for SFT,
    chats that end with an answer, of which all answers are trained."""
    rejected_key: str | None = None
    """The answer that the other was preferred to, for DPO. None: there is none."""
    unique: bool = False
    """Of rows with the same prompt only the first is used; the whole source is read once to find them."""

    @model_validator(mode="after")
    def _one_prompt(self) -> Self:
        if self.prompt_template is not None and "prompt_key" in self.model_fields_set:
            raise ValueError(
                "prompt_template makes the prompt, so prompt_key has no effect: give one of the two"
            )
        return self


class Rows(Protocol):
    """What can be read by position."""

    def __len__(self) -> int:
        """Number of rows."""

    def __getitem__(self, index: int) -> Row:
        """Row `index`; ValueError for a broken one."""


def row_of(values: Any, keys: RowKeys, row_id: str) -> Row:
    """The row in one table of values. ValueError says what is missing or wrong."""
    if not isinstance(values, dict):
        raise ValueError(f"expected a JSON object, found {type(values).__name__}")
    return Row(
        id=row_id,
        prompt=_with_system(_prompt(values, keys), keys.system_prompt),
        label=values.get(keys.label_key),
        metadata=_metadata(values, keys),
        response=_response(values, keys.response_key),
        rejected=_response(values, keys.rejected_key),
    )


def first_of_each_prompt(rows: Rows) -> list[int]:
    """Indices of the rows whose prompt no row before has; broken rows stay, to be counted as broken."""
    seen: set[str] = set()
    kept = []
    for index in range(len(rows)):
        try:
            prompt = json.dumps(rows[index].prompt, default=str)
        except ValueError:
            kept.append(index)
            continue
        if prompt not in seen:
            seen.add(prompt)
            kept.append(index)
    return kept


def required(values: Mapping[str, Any], key: str) -> Any:
    """The value under a key. ValueError with the keys that the row has."""
    if key not in values:
        raise ValueError(f"the row has no {key!r}; it has {_listed(values)}")
    return values[key]


def _listed(values: Mapping[str, Any]) -> str:
    return ", ".join(map(repr, values)) or "no keys"


def fill(template: str, values: Mapping[str, Any]) -> str:
    """The template with each `{column}` replaced by the row's value. ValueError for an unknown column."""

    def part(match: re.Match[str]) -> str:
        column = match[1]
        return match[0][0] if column is None else str(required(values, column))

    return _TEMPLATE_PART.sub(part, template)


def _metadata(values: Mapping[str, Any], keys: RowKeys) -> dict[str, Any]:
    metadata = values.get(keys.metadata_key) or {}
    if not isinstance(metadata, dict):
        raise ValueError(f"{keys.metadata_key!r} is not a table but {type(metadata).__name__}")
    carried = {column: required(values, column) for column in keys.metadata_columns}
    if keys.tools_key is not None and (tools := values.get(keys.tools_key)) is not None:
        carried["tools"] = json.loads(tools) if isinstance(tools, str) else tools
    return {**metadata, **carried}


def _with_system(prompt: str | list[dict[str, Any]], system: str | None) -> str | list[dict[str, Any]]:
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    if system is None or messages[0]["role"] == "system":
        return prompt
    return [{"role": "system", "content": system}, *messages]


def _prompt(values: Mapping[str, Any], keys: RowKeys) -> str | list[dict[str, Any]]:
    if keys.prompt_template is not None:
        return fill(keys.prompt_template, values)
    key = keys.prompt_key
    if key not in values and (column := likely(values, PROMPT_NAMES)):
        raise ValueError(f'the row has no {key!r}; it has {_listed(values)}: set prompt_key = "{column}"')
    value = required(values, key)
    if isinstance(value, str) and value:
        refuse_encoded(value, key)
        return value
    if isinstance(value, list) and value:
        return read_messages(value, key)
    raise ValueError(f"{key!r} must be text or a list of messages with a role, neither empty")


def _response(values: Mapping[str, Any], key: str | None) -> str | None:
    if key is None:
        return None
    response = required(values, key)
    if not isinstance(response, str) or not response:
        raise ValueError(f"{key!r} must be text and not empty")
    return response

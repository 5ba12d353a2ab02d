"""Makes a Row from one record of a file or a table; used by all data sources that read files.

The messages of a chat are checked here: a chat template would render malformed ones without an error.
"""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol, Self

from pydantic import AfterValidator, model_validator

from rlrun.models.json_files import check_depth, parse_json
from rlrun.plugins.data.row_images import ImageKeys, with_images
from rlrun.plugins.rewards.extraction import Pattern, last_match
from rlrun.plugins.types import Row
from rlrun.specs.paths import DataPath
from rlrun.specs.text_template import TEMPLATE_PART

_SLICED = re.compile(r"(?P<path>.+)@\[(?P<start>-?\d*):(?P<end>-?\d*)\]")
_SHOWN = 60
"""Number of characters at the end of a label that an error message quotes."""
_ROLES = {"human": "user", "gpt": "assistant", "bot": "assistant", "ai": "assistant"}
"""Role names of other formats, which chat templates do not know, and the names to use instead."""
PROMPT_NAMES = (
    *("prompt", "question", "problem", "instruction", "query", "input", "messages", "conversations", "text"),
)
LABEL_NAMES = (
    *("label", "answer", "final_answer", "ground_truth", "target", "gold", "solution", "expected_answer"),
    *("output", "tests"),
)
RESPONSE_NAMES = ("response", "completion", "output", "chosen", "answer", "solution")


def split_slice(path: str) -> tuple[str, slice]:
    """Splits a path from its slice: `rows.jsonl@[2:9]` gives `rows.jsonl` and `slice(2, 9)`.

    Raises ValueError if the slice is malformed.
    """
    match = _SLICED.fullmatch(path)
    if match is None:
        if "@[" in path:
            raise ValueError(
                f"{path!r} ends in an invalid slice; write rows.jsonl@[start:end], where both numbers are "
                "optional"
            )
        return path, slice(None)
    start, end = (int(match[name]) if match[name] else None for name in ("start", "end"))
    return match["path"], slice(start, end)


def _well_formed(path: str) -> str:
    split_slice(path)
    return path


SlicedPath = Annotated[DataPath, AfterValidator(_well_formed)]
"""A path in a spec that may end in a slice."""


class RowKeys(ImageKeys):
    """The keys, or columns, that hold a row's prompt, label and other values."""

    prompt_key: str = "prompt"
    """Key of the prompt: text, or a list of chat messages."""
    prompt_template: str | None = None
    """The prompt, with each `{column}` replaced by the row's value in that column; `{{` and `}}` are braces.
    None: the prompt is the value under `prompt_key`."""
    label_key: str = "label"
    """Key of the label, which rewards compare the answer with; for KTO, whether the response is good: true or
    false, or 1 or 0. `reward_model.ground_truth` is a key of the table `reward_model`. A row without this key
    has no label."""
    label_pattern: Pattern | None = None
    """Regular expression; the first group of its last match in that value is the label: `"#### (.*)"` takes
    the result of an answer of GSM8K. None: the whole value."""
    metadata_key: str = "metadata"
    """Key of a table with any other values that the rewards need. A row may lack it."""
    metadata_columns: tuple[str, ...] = ()
    """Further columns to copy into the metadata, such as images. Every row must have them."""
    tools_key: str | None = None
    """Key of the tools for the chat template, as a list of JSON schemas or its JSON text; they become `tools`
    in the metadata. A row without this key has no tools. None: no row has tools."""
    system_prompt: str | None = None
    """System message that begins every prompt without a system message of its own. None: none is added."""
    response_key: str | None = None
    """Key of the demonstration for SFT, of the preferred answer for DPO, or of the labelled answer for KTO.
    None: rows are prompts only; for SFT, they are chats that end with an answer, and all of a chat's answers
    are trained."""
    rejected_key: str | None = None
    """Key of the rejected answer, for DPO. None: rows have no rejected answer."""
    last_answer: Literal["keep", "label", "drop"] = "keep"
    """What happens to an assistant message that ends a chat. `"keep"`: it remains, and SFT trains on it.
    `"label"`: it is removed, and its text becomes the row's label. `"drop"`: it is removed."""
    unique: bool = False
    """Uses only the first of several rows with the same prompt. The whole source is read once at the start
    to find them."""

    @model_validator(mode="after")
    def _one_prompt(self) -> Self:
        if self.prompt_template is not None and "prompt_key" in self.model_fields_set:
            raise ValueError(
                "prompt_template makes the prompt, so prompt_key has no effect: give one of the two"
            )
        if self.last_answer == "label" and "label_key" in self.model_fields_set:
            raise ValueError(
                'last_answer = "label" makes the label, so label_key has no effect: give one of the two, or '
                'last_answer = "drop"'
            )
        return self


class Rows(Protocol):
    """A sequence of rows."""

    def __len__(self) -> int:
        """Number of rows."""

    def __getitem__(self, index: int) -> Row:
        """Returns row `index`. Raises ValueError for a broken row."""


def row_of(values: Any, keys: RowKeys, row_id: str, folder: Path | None = None) -> Row:
    """Returns the row that the values of one record make. `folder`: that of the data, for images' paths.

    Raises ValueError, naming the key, if a value is missing or wrong.
    """
    if not isinstance(values, dict):
        raise ValueError(f"expected a JSON object, found {type(values).__name__}")
    check_depth(values)
    prompt, label = _without_answer(_prompt(values, keys), _at(values, keys.label_key), keys)
    prompt, images = with_images(prompt, values, keys, folder)
    return Row(
        id=row_id,
        prompt=_with_system(prompt, keys.system_prompt),
        label=_label(label, keys.label_pattern),
        metadata=_metadata(values, keys),
        response=_response(values, keys.response_key),
        rejected=_response(values, keys.rejected_key),
        images=images,
    )


def first_of_each_prompt(rows: Rows) -> list[int]:
    """Returns the indices of the rows whose prompt no earlier row has.

    Broken rows are kept, so that the run still counts them as broken.
    """
    prompts_so_far: set[str] = set()
    kept_indices = []
    for index in range(len(rows)):
        try:
            row = rows[index]
            prompt = json.dumps([row.prompt, [image.digest for image in row.images]], default=str)
        except ValueError:
            kept_indices.append(index)
            continue
        if prompt not in prompts_so_far:
            prompts_so_far.add(prompt)
            kept_indices.append(index)
    return kept_indices


def required(values: Mapping[str, Any], key: str) -> Any:
    """Returns the value of a key. Raises ValueError, listing the row's keys, if the row lacks it."""
    if key not in values:
        raise ValueError(f"the row has no {key!r}; it has {_listed(values)}")
    return values[key]


def _listed(values: Mapping[str, Any]) -> str:
    return ", ".join(map(repr, values)) or "no keys"


def fill(template: str, values: Mapping[str, Any]) -> str:
    """Returns the template with each `{column}` replaced by the row's value.

    Raises ValueError for a column that the row does not have.
    """

    def replacement(match: re.Match[str]) -> str:
        column = match[1]
        return match[0][0] if column is None else str(required(values, column))

    return TEMPLATE_PART.sub(replacement, template)


def _metadata(values: Mapping[str, Any], keys: RowKeys) -> dict[str, Any]:
    metadata = values.get(keys.metadata_key) or {}
    if not isinstance(metadata, dict):
        raise ValueError(f"{keys.metadata_key!r} is not a table but {type(metadata).__name__}")
    carried = {column: required(values, column) for column in keys.metadata_columns}
    if keys.tools_key is not None and (tools := values.get(keys.tools_key)) is not None:
        carried["tools"] = _tools(tools, keys.tools_key)
    return {**metadata, **carried}


def _tools(tools: Any, key: str) -> Any:
    try:
        return parse_json(tools) if isinstance(tools, str) else tools
    except ValueError as error:
        raise ValueError(f"{key!r} is not the JSON text of a list of tools: {error}") from None


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
    raise ValueError(f"{key!r} must be text or a list of messages with a role, and not empty")


def _without_answer(
    prompt: str | list[dict[str, Any]], label: Any, keys: RowKeys
) -> tuple[str | list[dict[str, Any]], Any]:
    """Returns the prompt and the label after `last_answer` is applied to a chat that ends with an answer."""
    if keys.last_answer == "keep" or isinstance(prompt, str) or prompt[-1]["role"] != "assistant":
        return prompt, label
    if len(prompt) == 1:
        raise ValueError(f"{keys.prompt_key!r} has only an answer, and no message before it")
    return prompt[:-1], prompt[-1]["content"] if keys.last_answer == "label" else label


def _at(values: Mapping[str, Any], key: str) -> Any:
    """Returns the value of a key, or of a key with dots the value within tables; None without one.

    Names of columns may have dots themselves: the longest that leads to a value counts.
    """
    if key in values:
        return values[key]
    table, inner = key, ""
    while "." in table:
        table, _, name = table.rpartition(".")
        inner = f"{name}.{inner}" if inner else name
        within = values.get(table)
        if isinstance(within, dict) and (found := _at(within, inner)) is not None:
            return found
    return None


def _label(value: Any, pattern: str | None) -> Any:
    if value is None or pattern is None:
        return value
    label = last_match(str(value), pattern)
    if label is None:
        raise ValueError(f"label_pattern matches nothing in the label {str(value)[-_SHOWN:]!r}")
    return label


def _response(values: Mapping[str, Any], key: str | None) -> str | None:
    if key is None:
        return None
    response = required(values, key)
    if not isinstance(response, str) or not response:
        raise ValueError(f"{key!r} must be text and not empty")
    return response


def read_messages(value: list[Any], key: str) -> list[dict[str, Any]]:
    """Returns the messages, with content that is a list of text parts joined into one text.

    Parts that are images become `{"type": "image"}`, with the image as `image` if the part has one.

    Raises ValueError, naming the key and the message, for one that chat templates would render wrongly.
    """
    return [_read(message, f"{key!r}, message {number}") for number, message in enumerate(value, start=1)]


def refuse_encoded(text: str, key: str) -> None:
    """Raises ValueError for a list of messages stored as JSON text, which would become the prompt."""
    if not text.lstrip().startswith("[") or '"role"' not in text:
        return
    try:
        value = parse_json(text)
    except ValueError:
        return
    if isinstance(value, list) and value and all(isinstance(item, dict) and "role" in item for item in value):
        raise ValueError(f"{key!r} is the text of a list of messages: store the list itself (json.loads)")


def _read(message: Any, where: str) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise ValueError(f"{where} is not a table with role and content but {type(message).__name__}")
    if "role" not in message and {"from", "value"} <= message.keys():
        raise ValueError(
            f"{where} has 'from' and 'value', as in ShareGPT's form: rename them to 'role' and 'content', "
            "and their roles human and gpt to user and assistant"
        )
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise ValueError(f"{where} has no role: give it one such as user, assistant or system")
    if role in _ROLES:
        raise ValueError(f"{where} has the role {role!r}; chat templates call it {_ROLES[role]!r}")
    return {**message, "content": _content(message, where)}


def _content(message: Mapping[str, Any], where: str) -> str | list[dict[str, Any]] | None:
    content = message.get("content")
    if isinstance(content, list):
        parts = [_part(part, where) for part in content]
        texts = all(part["type"] == "text" for part in parts)
        return "".join(part["text"] for part in parts) if texts else parts
    if isinstance(content, str) or (content is None and message.get("tool_calls")):
        return content
    actual = "there is none" if content is None else f"it is {type(content).__name__}"
    raise ValueError(f"{where}: its content must be text, and {actual}")


def _part(part: Any, where: str) -> dict[str, Any]:
    """Returns a part of a message: a text, or an image in any of the forms that chat formats have."""
    kind = part.get("type") if isinstance(part, dict) else type(part).__name__
    if isinstance(part, dict) and kind == "text" and isinstance(part.get("text"), str):
        return {"type": "text", "text": part["text"]}
    # Tables of Parquet and datasets have all keys of all parts, with None for those that are not set.
    fields = (
        {key: value for key, value in part.items() if value is not None} if isinstance(part, dict) else {}
    )
    source = {key: value for key, value in fields.items() if key not in ("type", "text")}
    if kind == "image" and not source:
        return {"type": "image"}
    if kind in ("image", "image_url") and source:
        image = source.get("image", source.get("image_url", source))
        return {"type": "image", "image": image.get("url", image) if isinstance(image, dict) else image}
    raise ValueError(
        f"{where}: its content has a part of type {kind!r}, and prompts can only hold text and images"
    )


def likely(columns: Collection[str], names: Sequence[str]) -> str | None:
    """Returns the column whose name comes first in `names`, ignoring case; None if no name matches."""
    by_name = {column.lower(): column for column in columns}
    return next((by_name[name] for name in names if name in by_name), None)

"""Checks the chat messages of a row. A chat template would render malformed messages without an error."""

from collections.abc import Mapping
from typing import Any

from rlrun.models.json_files import parse_json

_ROLES = {"human": "user", "gpt": "assistant", "bot": "assistant", "ai": "assistant"}
"""Role names of other formats, which chat templates do not know, and the names to use instead."""


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

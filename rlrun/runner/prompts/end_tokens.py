"""Reads the tokens that end a response from all files of a model folder that name any.

SGLang ends a sample at each of them: those of config.json, those of generation_config.json, and the
tokenizer's, which is often the only one that instruction tuning changes.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rlrun.models.config_defaults import text_config
from rlrun.models.json_files import read_json_object


def end_token_ids(folder: Path) -> tuple[int, ...]:
    """Returns all end tokens, the tokenizer's first, without loading the tokenizer.

    Raises ValueError if a file has something else in their place.
    """
    try:
        end_token = _own_end_token(folder)
        return tuple(
            dict.fromkeys([*([] if end_token is None else [end_token]), *declared_end_tokens(folder)])
        )
    except (TypeError, LookupError, AttributeError) as error:
        raise ValueError(
            f"the end tokens of {folder} cannot be read ({error!r}): copy its files again"
        ) from None


def declared_end_tokens(folder: Path) -> list[int]:
    """Returns the end tokens of generation_config.json and config.json."""
    token_ids: list[int] = []
    for name in ("generation_config.json", "config.json"):
        ids = text_config(_table(folder / name)).get("eos_token_id")
        token_ids += ids if isinstance(ids, list) else [] if ids is None else [ids]
    return [number for number in dict.fromkeys(token_ids) if number >= 0]  # -1 means that there is none


def _own_end_token(folder: Path) -> int | None:
    """Returns the tokenizer's end token; None if its files name none, or do not give it a number."""
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        token = _table(folder / name).get("eos_token")
        text = token.get("content") if isinstance(token, dict) else token
        if isinstance(text, str):
            return next((number for content, number in _numbered(folder) if content == text), None)
    return None


def _numbered(folder: Path) -> Iterator[tuple[str, int]]:
    """Yields tokens with their numbers, first the added tokens, which usually include the end tokens."""
    added = _table(folder / "tokenizer_config.json").get("added_tokens_decoder") or {}
    yield from ((token["content"], int(number)) for number, token in added.items())
    tokenizer = _table(folder / "tokenizer.json")
    yield from ((token["content"], token["id"]) for token in tokenizer.get("added_tokens") or ())
    yield from _table(folder / "added_tokens.json").items()
    vocabulary = (tokenizer.get("model") or {}).get("vocab")
    if isinstance(vocabulary, list):  # Unigram models: pieces with their scores, in order
        yield from ((piece[0], number) for number, piece in enumerate(vocabulary))
    yield from (vocabulary if isinstance(vocabulary, dict) else _table(folder / "vocab.json")).items()


def _table(path: Path) -> dict[str, Any]:
    """Returns the object of a JSON file; an empty one if the file does not exist."""
    return read_json_object(path) if path.is_file() else {}

"""Which tokens end a response, by all the files of a model folder that name any.

SGLang ends a sample at each of them: those of config.json and of generation_config.json, and the tokenizer's
own, which instruction tuning often changes alone.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rlrun.models.json_files import read_json_object


def end_token_ids(folder: Path) -> tuple[int, ...]:
    """All of them, without loading a tokenizer; its own first."""
    own = _own_end_token(folder)
    return tuple(dict.fromkeys([*([] if own is None else [own]), *declared_end_tokens(folder)]))


def declared_end_tokens(folder: Path) -> list[int]:
    """Those of generation_config.json and config.json."""
    found: list[int] = []
    for name in ("generation_config.json", "config.json"):
        ids = _table(folder / name).get("eos_token_id")
        found += ids if isinstance(ids, list) else [] if ids is None else [ids]
    return [number for number in dict.fromkeys(found) if number >= 0]  # -1 stands for none


def _own_end_token(folder: Path) -> int | None:
    """The tokenizer's; None where its files name none, or name one that they give no number."""
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        token = _table(folder / name).get("eos_token")
        text = token.get("content") if isinstance(token, dict) else token
        if isinstance(text, str):
            return next((number for content, number in _numbered(folder) if content == text), None)
    return None


def _numbered(folder: Path) -> Iterator[tuple[str, int]]:
    """Tokens and their numbers: added ones first, among which end tokens usually are."""
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
    """A JSON file's table; an empty one where there is no file."""
    return read_json_object(path) if path.is_file() else {}

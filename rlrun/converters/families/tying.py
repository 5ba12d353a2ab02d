"""Ties or unties embedding and head."""

from collections.abc import Mapping
from typing import Any

import torch

from rlrun.converters.tensors.content import Content, as_bytes, blocks
from rlrun.converters.tensors.stored import Files

_EMBEDDING, _HEAD = "model.embed_tokens.weight", "lm_head.weight"
_BLOCK_BYTES = 16 << 20


def set_tying(
    contents: dict[str, Content], config: dict[str, Any], tied: bool | None
) -> tuple[dict[str, Content], dict[str, Any]]:
    """Returns tensors and config, tied or untied (None: unchanged).

    Raises ValueError if embedding and head differ, so that they cannot be tied.
    """
    if tied is None or tied == bool(config.get("tie_word_embeddings", False)):
        return contents, config
    if _EMBEDDING not in contents:
        raise ValueError(f"the model has no {_EMBEDDING} to tie or untie")
    config = config | {"tie_word_embeddings": tied}
    if not tied:
        return contents | {_HEAD: contents[_EMBEDDING]}, config
    _check_same(contents)
    return {name: content for name, content in contents.items() if name != _HEAD}, config


def _check_same(contents: Mapping[str, Content]) -> None:
    """Raises ValueError if the head differs from the embedding."""
    embedding, head, files = contents[_EMBEDDING], contents.get(_HEAD), Files()
    same = head is None or (
        embedding.tensor == head.tensor
        and all(
            torch.equal(as_bytes(embedding.rows(files, *block)), as_bytes(head.rows(files, *block)))
            for block in blocks(embedding, _BLOCK_BYTES)
        )
    )
    files.close()
    if not same:
        raise ValueError(f"{_HEAD} and {_EMBEDDING} differ, so they cannot be tied: omit --tie")

"""One sample as the page shows it: its texts, and a value per token where the record has them."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlrun.models.json_files import parse_json
from rlrun.runner.records.encoded_arrays import FLOAT_DTYPE, INT_DTYPE, decode_array
from rlrun.runner.records.growing_lines import GrowingLines
from rlrun.runner.records.packed_lines import UnreadableFile, parse_record, read_lines
from rlrun.specs.paths import display_path

SHOWN_CHARACTERS = 200_000
"""Characters of one text that are sent unless the whole text is asked for."""
_SHOWN_TOKENS = 50_000
"""Tokens of one sample that are sent."""
_ARRAYS = {"log_probs": 6, "trainer_log_probs": 6, "loss_mask": 2, "advantages": 4}
"""Fields with one number per token, with the digits after the point that are sent."""
_WEIGHTS = ("cross_entropy", "policy_weights", "kl_weights")
_ENCODED = ("prompt_tokens", "response_tokens", "experts", "sampling_mask", *_WEIGHTS, *_ARRAYS)
_TEXTS = ("prompt", "response", "label", "failure", "info", "details", "metadata")


def read_records_of(path: Path, lines: set[int]) -> dict[int, dict[str, Any]]:
    """Returns the records of some lines. Raises ValueError for a line that is missing or broken."""
    records = {}
    for number, line in read_lines(path):
        if number in lines:
            records[number] = parse_record(path, number, line)
        if len(records) == len(lines):
            return records
    raise UnreadableFile(f"{display_path(path)} has no line {min(lines - records.keys())}")


def detail(
    record: Mapping[str, Any], vocabulary: Mapping[int, Any], *, whole: bool = False
) -> dict[str, Any]:
    """Returns what the page shows of a record. `whole`: long texts are not cut."""
    shown = {name: value for name, value in record.items() if name not in _ENCODED}
    if not whole:
        for name in _TEXTS:
            shown[name], cut = shorten(shown.get(name))
            if cut:
                shown.setdefault("cut", {})[name] = cut
    shown["token_values"] = token_values(record, vocabulary)
    return shown


def shorten(value: Any) -> tuple[Any, int]:
    """Returns a value of which no more than SHOWN_CHARACTERS remain, and how many characters were cut.

    A value that is not text is turned into text if it is cut.
    """
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    cut = len(text) - SHOWN_CHARACTERS
    if cut <= 0:
        return value, 0
    return text[:SHOWN_CHARACTERS], cut


def token_values(record: Mapping[str, Any], vocabulary: Mapping[int, Any]) -> dict[str, Any] | None:
    """Returns the pieces of the response and the values of its tokens; None if the record has no tokens."""
    try:
        tokens = decode_array(record["response_tokens"], INT_DTYPE).tolist()
        arrays = {
            name: decode_array(record[name], FLOAT_DTYPE).tolist() for name in _ARRAYS if record.get(name)
        }
    except (KeyError, TypeError, ValueError):
        return None
    if not tokens or any(len(values) != len(tokens) for values in arrays.values()):
        return None
    shown: dict[str, Any] = {"num_tokens": len(tokens), "ids": tokens[:_SHOWN_TOKENS]}
    shown["pieces"] = join_bytes([vocabulary.get(token) for token in tokens[:_SHOWN_TOKENS]])
    for name, values in arrays.items():
        shown[name] = [
            round(value, _ARRAYS[name]) if math.isfinite(value) else None for value in values[:_SHOWN_TOKENS]
        ]
    return shown


def join_bytes(pieces: list[Any]) -> list[str | None]:
    """Returns the text of each token: parts of one character become that character on the last of them.

    A token that the vocabulary lacks has None.
    """
    texts: list[str | None] = []
    pending = b""
    for piece in pieces:
        if isinstance(piece, bytes):
            pending += piece
            try:
                texts.append(pending.decode())
                pending = b""
            except UnicodeDecodeError:
                texts.append("")
                if len(pending) > 4:  # no character has more bytes
                    texts[-1], pending = pending.decode(errors="replace"), b""
        else:
            lost, pending = pending.decode(errors="replace"), b""
            texts.append(None if piece is None else lost + piece)
    if pending and texts:
        texts[-1] = pending.decode(errors="replace")
    return texts


class VocabularyReader:
    """The texts of tokens that a run has saved, read as its file grows."""

    def __init__(self, path: Path) -> None:
        self._lines = GrowingLines(path)
        self._pieces: dict[int, Any] = {}

    def read(self) -> Mapping[int, Any]:
        """Returns the text, or the bytes, of each token. Broken lines are left out."""
        if self._lines.was_replaced():
            self._pieces.clear()
        for _, line in self._lines.read_new():
            self._add(line)
        return self._pieces

    def _add(self, line: bytes) -> None:
        try:
            token, piece = parse_json(line)
            self._pieces[int(token)] = piece if isinstance(piece, str) else bytes.fromhex(piece["hex"])
        except (ValueError, TypeError, KeyError, OverflowError):
            return

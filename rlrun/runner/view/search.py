"""Searches the texts of samples by reading their files, newest first.

An index of all words would be as large as the samples themselves.

A search ends after some time with the step that it reached, and the next request continues there.
"""

import json
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rlrun.runner.records.packed_lines import UnreadableFile, parse_record, read_lines
from rlrun.runner.view.summary import summarise
from rlrun.specs.step_names import ROLLOUTS, Kind, list_step_paths

SECONDS = 1.0
"""A request returns after about this time."""
MAX_HITS = 100
_AROUND = 60
"""Characters shown on both sides of a hit."""
_FIELDS = ("prompt", "response", "label", "failure", "id", "row")


def search(
    rollouts: Path, kind: Kind, text: str, before: int | None, seconds: float = SECONDS
) -> dict[str, Any]:
    """Returns samples that contain a text, in steps before `before` (None: from the newest step on).

    `next` is the step to continue before; None when every file was searched. Case does not matter for
    letters of ASCII.
    """
    deadline = time.monotonic() + seconds
    paths = list_step_paths(rollouts, ROLLOUTS, kind)
    steps = sorted((step for step in paths if before is None or step < before), reverse=True)
    hits: list[dict[str, Any]] = []
    for number, step in enumerate(steps, start=1):
        hits += [{"kind": kind, "step": step, **hit} for hit in _hits(paths[step], text)]
        is_last = number == len(steps)
        if not is_last and (len(hits) >= MAX_HITS or time.monotonic() > deadline):
            return {"rows": hits, "next": step, "searched": number, "files": len(steps)}
    return {"rows": hits, "next": None, "searched": len(steps), "files": len(steps)}


def excerpt(value: object, text: str) -> str | None:
    """Returns the part of a value around its first occurrence of a text; None if it does not contain it."""
    shown = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    start = fold(shown).find(fold(text))
    if start < 0:
        return None
    begin, end = max(0, start - _AROUND), start + len(text) + _AROUND
    return ("…" if begin else "") + shown[begin:end] + ("…" if end < len(shown) else "")


def fold(text: str) -> str:
    """Returns a text of the same length in which letters of ASCII are lower-case."""
    return text.translate(_LOWER)


def _hits(path: Path, text: str) -> Iterator[dict[str, Any]]:
    needle = json.dumps(text, ensure_ascii=False)[1:-1].encode(errors="replace").lower()
    try:
        for number, line in read_lines(path):
            if needle in line.lower() and (hit := _hit(path, number, line, text)) is not None:
                yield hit
    except UnreadableFile:
        return  # the index names it


def _hit(path: Path, number: int, line: bytes, text: str) -> dict[str, Any] | None:
    try:
        record = parse_record(path, number, line)
    except UnreadableFile:
        return None
    for name in _FIELDS:
        if (found := excerpt(record.get(name, ""), text)) is not None:
            summary = asdict(summarise(record))
            return {**summary, "version": summary["oldest_version"], "line": number, "excerpt": found}
    return None


_LOWER = {upper: upper + 32 for upper in range(ord("A"), ord("Z") + 1)}

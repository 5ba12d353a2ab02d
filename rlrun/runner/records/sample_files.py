"""Chooses which samples of a step or of an evaluation are saved, and writes them.

groups of a step ─▶ about 32 samples, or every sample ─▶ rollouts/step-N.jsonl.zst
removed samples  ─▶ at most 16                        ─▶ rollouts/dropped-N.jsonl.zst
evaluation       ─▶ about 512 per dataset             ─▶ rollouts/eval-N.jsonl.zst
while it runs    ─▶ every sample, for `rlrun eval`    ─▶ evaluated.jsonl
their tokens     ─▶ those that are new                ─▶ rollouts/vocabulary.jsonl
their images     ─▶ each once                         ─▶ rollouts/images/<digest>.png

A line of the vocabulary is `[17, "the"]`, or `[18, {"hex": "e282"}]` for a token that is only a part of a
character. With it, readers of saved samples need no tokenizer.
"""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlrun.models.foreign_files import open_regular
from rlrun.models.json_files import parse_json
from rlrun.plugins.types import Group, Sample
from rlrun.runner.host.atomic_files import write_bytes
from rlrun.runner.records.run_folder import RunFolder
from rlrun.runner.records.saved_images import find_in_folder, write_images
from rlrun.runner.records.saved_rollouts import map_records, records_to_groups, rollout_path, write_records

_KEPT_SAMPLES = 32
"""Approximate number of samples per step that are written."""
_KEPT_REMOVED = 16
"""The most samples per step that are written although the step did not train on them."""
_KEPT_EVALUATED = 512
"""Approximate number of samples per dataset of an evaluation that are written."""
Pieces = Callable[[Sequence[int]], Sequence[bytes]]
"""Returns the bytes of each token (rlrun.runner.prompts.tokenizer)."""


class SampleFiles:
    """Writes the files of samples of one run; every method is called on the journal's thread."""

    def __init__(self, folder: RunFolder, *, keeps_every: bool) -> None:
        """`keeps_every` saves everything that training needs of every sample."""
        self._folder = folder
        self._keeps_every = keeps_every
        self._vocabulary: Vocabulary | None = None

    def save_tokens(self, pieces: Pieces) -> None:
        """Saves the texts of tokens too from now on."""
        self._vocabulary = Vocabulary(self._folder.vocabulary, pieces)

    def write_step(self, step: int, groups: Sequence[Group], removed: Sequence[Group]) -> None:
        """Writes samples that a step trained on, and samples that it did not train on."""
        trained = _chosen(groups, None if self._keeps_every else _KEPT_SAMPLES)
        if trained:
            records = map_records(trained, whole=self._keeps_every)
            write_records(rollout_path(self._folder.rollouts, step), records)
        not_trained = _chosen(removed, _KEPT_REMOVED)[:_KEPT_REMOVED]
        if not_trained:
            records = map_records(not_trained, whole=False)
            write_records(rollout_path(self._folder.rollouts, step, "dropped"), records)
        self._add_shared([*trained, *not_trained])

    def write_evaluation(self, step: int, groups: Mapping[str, Sequence[Group]]) -> None:
        """Writes the samples of an evaluation; their records have the name of their dataset."""
        most = None if self._keeps_every else _KEPT_EVALUATED
        chosen = {name: _chosen(answered, most) for name, answered in groups.items()}
        records = [
            record | {"dataset": name}
            for name, samples in chosen.items()
            for record in map_records(samples, whole=self._keeps_every)
        ]
        if records:
            write_records(rollout_path(self._folder.rollouts, step, "eval"), records)
        for samples in chosen.values():
            self._add_shared(samples)

    def append_evaluated(self, dataset: str, groups: Sequence[Group]) -> None:
        """Writes groups of an evaluation that is not finished, with the images that they need."""
        write_images(self._folder.rollouts, (sample for group in groups for sample in group.samples))
        append_groups(self._folder, dataset, groups)

    def _add_shared(self, samples: Iterable[tuple[Group, Sample]]) -> None:
        """Writes what files of samples share: the images, and the texts of tokens."""
        write_images(self._folder.rollouts, (sample for _, sample in samples))
        if self._vocabulary is not None:
            self._vocabulary.add(sample.tokens for _, sample in samples)


def _chosen(groups: Sequence[Group], most: int | None) -> list[tuple[Group, Sample]]:
    """Returns about `most` samples: whole groups, evenly spread over the step. None: every sample."""
    if not groups:
        return []
    size = max(1, len(groups[0].samples))
    stride = 1 if most is None else max(1, math.ceil(len(groups) * size / most))
    return [(group, sample) for group in groups[::stride] for sample in group.samples]


class Vocabulary:
    """The file, and the tokens that this launch has written to it."""

    def __init__(self, path: Path, pieces: Pieces) -> None:
        self._path = path
        self._pieces = pieces
        self._written: set[int] = set()

    def add(self, arrays: Iterable[NDArray[np.int32]]) -> None:
        """Appends the tokens of these arrays that are new."""
        tokens = {token for array in arrays for token in np.unique(array).tolist()} - self._written
        if not tokens:
            return
        new = sorted(tokens)
        lines = [
            json.dumps([token, _as_json(piece)], ensure_ascii=False)
            for token, piece in zip(new, self._pieces(new), strict=True)
        ]
        with self._path.open("a", encoding="utf-8") as file:
            file.write("".join(f"{line}\n" for line in lines))
        self._written |= tokens


def _as_json(piece: bytes) -> str | dict[str, str]:
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return {"hex": piece.hex()}


# The samples that an evaluation has so far, which it continues from when it is resumed.
#
# each group, as soon as it is scored ──▶ a line of evaluated.jsonl ──▶ the groups, when resumed
# all groups                          ──▶ rollouts/eval-0.jsonl.zst, and evaluated.jsonl is removed
def append_groups(folder: RunFolder, dataset: str, groups: Sequence[Group]) -> None:
    """Adds a line for each group, with all of its samples."""
    lines = []
    for group in groups:
        records = list(map_records(((group, sample) for sample in group.samples), whole=True))
        line = {"dataset": dataset, "samples": records}
        lines.append(json.dumps(line, ensure_ascii=False, default=str) + "\n")
    with folder.evaluated.open("a", encoding="utf-8", errors="backslashreplace") as file:
        file.write("".join(lines))


def read_earlier(folder: RunFolder) -> Mapping[str, Sequence[Group]]:
    """Returns the groups of each dataset that earlier launches finished; removes a line that a crash cut."""
    groups: dict[str, list[Group]] = {}
    lines, find_image = list(_complete_lines(folder)), find_in_folder(folder.rollouts)
    for _, record in lines:
        groups.setdefault(record["dataset"], []).extend(records_to_groups(record["samples"], find_image))
    if folder.evaluated.exists():
        write_bytes(folder.evaluated, b"".join(line for line, _ in lines))
    return groups


def _complete_lines(folder: RunFolder) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Yields each line that is complete, and its content."""
    try:
        with open_regular(folder.evaluated) as file:
            lines = file.read().splitlines(keepends=True)
    except FileNotFoundError:
        return
    for line in lines:
        if not line.endswith(b"\n"):
            return
        yield line, parse_json(line)

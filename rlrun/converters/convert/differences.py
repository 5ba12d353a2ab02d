"""Compares two checkpoints tensor by tensor. Their formats may differ where the model is known."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from rlrun.converters.convert.sources import hf_contents
from rlrun.converters.folders.dcp_folder import DcpFolder
from rlrun.converters.folders.locate import Checkpoint
from rlrun.converters.tensors.content import Content, blocks, plain
from rlrun.converters.tensors.stored import Files

_BLOCK_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class Difference:
    """The comparison of one tensor in two checkpoints."""

    name: str
    note: str
    """Why the tensors cannot be compared: only one checkpoint has it, or the shapes differ. Otherwise
    empty."""
    largest: float = 0.0
    """Largest absolute difference of two values; NaN if only one of them is NaN."""
    changed: float = 0.0
    """Share of values that differ."""

    @property
    def differs(self) -> bool:
        """Whether the tensors differ."""
        return bool(self.note) or self.changed > 0

    def as_json(self) -> dict[str, Any]:
        """Returns the comparison for `--json`."""
        return asdict(self)


def compare_checkpoints(first: Checkpoint, second: Checkpoint) -> Iterator[Difference]:
    """Yields the comparison of every tensor, in the order of the first checkpoint.

    A run's checkpoint and a Hugging Face folder are compared by Hugging Face names. Two distributed
    checkpoints are compared by their own names, including the optimizer state.
    """
    ours, theirs = _contents(first, second), _contents(second, first)
    files = Files()
    for name, content in ours.items():
        if name not in theirs:
            yield Difference(name, f"only in {first.folder}")
        elif content.tensor.shape != theirs[name].tensor.shape:
            yield Difference(name, f"shapes {content.tensor.shape} and {theirs[name].tensor.shape}")
        else:
            yield _compare(name, content, theirs[name], files)
    for name in theirs.keys() - ours.keys():
        yield Difference(name, f"only in {second.folder}")
    files.close()


def _contents(checkpoint: Checkpoint, other: Checkpoint) -> Mapping[str, Content]:
    if checkpoint.format == other.format == "dcp":
        folder = DcpFolder(checkpoint.folder)
        return {name: plain(folder.read(name)) for name in folder.tensors}
    return hf_contents(checkpoint)


def _compare(name: str, ours: Content, theirs: Content, files: Files) -> Difference:
    largest, changed = 0.0, 0
    for first, last in blocks(ours, _BLOCK_BYTES, math.lcm(ours.step, theirs.step)):
        a = ours.rows(files, first, last).double()
        b = theirs.rows(files, first, last).double()
        differ = (a != b) & ~(a.isnan() & b.isnan())
        if count := int(differ.sum()):
            changed += count
            largest = max(largest, float((a - b)[differ].abs().max()), key=_nan_first)
    return Difference(name, "", largest, changed / max(1, math.prod(ours.tensor.shape)))


def _nan_first(value: float) -> float:
    return math.inf if math.isnan(value) else value

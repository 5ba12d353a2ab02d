"""Applies weight deltas to the tensors of a native engine."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError

from rlrun.converters.tensors.safetensors_format import read_header
from rlrun.runner.weights.deltas.server_path.rlrun_weight_delta import Change, read


@dataclass(frozen=True, slots=True)
class DeltaFiles:
    """The files of one delta."""

    since: int
    """The version that it applies to."""
    files: tuple[str, ...]


def check_base(deltas: Sequence[DeltaFiles], held: int | None) -> None:
    """Raises ValueError unless the engine has the weights that the deltas apply to.

    `held`: the version of the weights that it holds as they were sent; None: it holds none.
    """
    if not deltas:
        raise ValueError("neither model_path nor a delta: there is nothing to load")
    if deltas[0].since != held:
        has = "none" if held is None else f"version {held}"
        raise ValueError(f"the delta applies to weights {deltas[0].since}, and this engine has {has}")


def apply_deltas(deltas: Sequence[DeltaFiles], tensors: Mapping[str, torch.Tensor]) -> None:
    """Changes the elements that the deltas list. Raises ValueError where a file does not fit."""
    for delta in deltas:
        for file in delta.files:
            for change in _read(file):
                _check(change, tensors, file)
                change.write(tensors[change.name])


def _read(file: str) -> Iterator[Change]:
    """Yields the changes in a file. Raises ValueError, naming it, for anything but a delta."""
    read_header(Path(file))
    try:
        yield from read(file, torch.device("cpu"))
    except (SafetensorError, LookupError, TypeError, AttributeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{file} is not a weight delta: {error}") from error


def _check(change: Change, tensors: Mapping[str, torch.Tensor], file: str) -> None:
    held = tensors.get(change.name)
    if held is None:
        raise ValueError(f"{file}: this engine has no tensor {change.name}")
    if tuple(held.shape) != change.shape or (change.full is None and held.dtype != change.dtype):
        raise ValueError(
            f"{file}: {change.name} is {change.dtype} {change.shape}, and this engine has it as {held.dtype} "
            f"{tuple(held.shape)}"
        )
    if change.full is None and not _is_within(change, held.numel()):
        raise ValueError(
            f"{file} is not a weight delta: {change.name} changes elements that it does not have"
        )


def _is_within(change: Change, count: int) -> bool:
    positions = change.positions
    inside = not len(positions) or (int(positions.min()) >= 0 and int(positions.max()) < count)
    return inside and len(change.steps) == len(positions)

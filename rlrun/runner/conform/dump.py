"""Reads a training batch that another trainer dumped: one `.npz` file (docs/conform.md).

    numpy.savez_compressed("dump.npz", settings=json.dumps(…), tokens=…, mask=…, log_probs=…, …, loss=…)

Arrays have B samples of R response tokens; shorter responses are padded, on either side.
"""

import math
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationError

from rlrun.models.json_files import parse_json
from rlrun.runner.batches.reduction import Reduction
from rlrun.runner.contracts.errors import DumpError
from rlrun.specs.problems.messages import describe_errors
from rlrun.specs.problems.spelling import nearest
from rlrun.specs.sections.job import AlgorithmSpec
from rlrun.specs.sections.section import Section

Array = NDArray[Any]

MAX_BYTES = 8 << 30
"""The largest sum of a dump's arrays, unpacked."""


class TrainerSettings(Section):
    """The keys of `[trainer]` that the loss depends on."""

    reduction: Reduction = "per_sample_mean"
    """As `trainer.reduction` of a spec."""


class RolloutSettings(Section):
    """The keys of `[rollout]` that the loss depends on."""

    temperature: float = Field(default=1.0, gt=0)
    """Divides the logits in all log-probs."""
    max_response_tokens: int | None = Field(default=None, ge=1)
    """The constant of `trainer.reduction = "dr_grpo"`. None: R."""


class BatchSettings(Section):
    """What the other trainer says of this batch."""

    source: str = ""
    """The trainer, its version and the step, for the report."""
    on_policy: bool = False
    """The samples are of the weights that this optimizer step updates, so every ratio is 1."""
    end_token_ids: tuple[int, ...] = ()
    """Tokens that end a response. With them the mask is checked: it is 1 up to the first of them, that one
    included. () for conversations, whose masks do not follow from their tokens."""


class Settings(Section):
    """The other trainer's settings, by the names of rlrun's spec."""

    algorithm: AlgorithmSpec = AlgorithmSpec()
    trainer: TrainerSettings = TrainerSettings()
    rollout: RolloutSettings = RolloutSettings()
    batch: BatchSettings = BatchSettings()


@dataclass(frozen=True, slots=True)
class Batch:
    """The inputs of the loss."""

    tokens: Array
    """`[B, R]` int64 response tokens."""
    mask: Array
    """`[B, R]` float32, 1 on the tokens that the other trainer trains on."""
    log_probs: Array
    """`[B, R]` float32 log-probs of the trained policy."""
    rewards: Array
    """`[B]` float64."""
    groups: Array
    """`[B]` int64: samples of one prompt have the same number."""
    old_log_probs: Array | None = None
    """`[B, R]` float32: the denominator of the ratio. None: `log_probs`, without gradient."""
    sampling_log_probs: Array | None = None
    """`[B, R]` float32 log-probs that the engine returned."""
    reference_log_probs: Array | None = None
    """`[B, R]` float32."""
    entropies: Array | None = None
    """`[B, R]` float32 entropies of the policy, in nats."""
    logits: Array | None = None
    """`[b, R, V]` float32 logits of the trained policy that predict each token of the first b samples, not
    divided by the temperature."""
    micro_batches: Array | None = None
    """`[B]` int64: the number of each sample's micro-batch."""


class Shape(NamedTuple):
    """The form of an array of the file."""

    dimensions: tuple[str, ...]
    kind: str
    """`i` for whole numbers, else `f`."""
    broadcasts: bool = False
    """One number per sample will do."""


INPUTS: Mapping[str, Shape] = {
    "tokens": Shape(("B", "R"), "i"),
    "mask": Shape(("B", "R"), "f"),
    "log_probs": Shape(("B", "R"), "f"),
    "rewards": Shape(("B",), "f"),
    "groups": Shape(("B",), "i"),
    "old_log_probs": Shape(("B", "R"), "f"),
    "sampling_log_probs": Shape(("B", "R"), "f"),
    "reference_log_probs": Shape(("B", "R"), "f"),
    "entropies": Shape(("B", "R"), "f"),
    "logits": Shape(("b", "R", "V"), "f"),
    "micro_batches": Shape(("B",), "i"),
}
"""The inputs of the loss, by their names in the file, those of every dump first."""
REQUIRED = ("tokens", "mask", "log_probs", "rewards", "groups")
RESULTS: Mapping[str, Shape] = {
    "advantages": Shape(("B", "R"), "f", broadcasts=True),
    "ratios": Shape(("B", "R"), "f", broadcasts=True),
    "kl": Shape(("B", "R"), "f"),
    "token_losses": Shape(("B", "R"), "f"),
    "loss": Shape((), "f"),
    "gradients": Shape(("B", "R"), "f"),
}
"""What the other trainer computed, in the order in which it is computed; a dump has some of them."""
_ON_TRAINED = ("log_probs", "old_log_probs", "sampling_log_probs", "reference_log_probs", "entropies")
"""Arrays whose values count on trained tokens only; elsewhere they may be anything."""


@dataclass(frozen=True, slots=True)
class Dump:
    """A batch, the settings that it was computed with, and what the other trainer computed."""

    path: Path
    settings: Settings
    batch: Batch
    results: Mapping[str, Array]
    """The arrays of `RESULTS` that the dump has; one number per sample is repeated on its tokens."""


def read_dump(path: Path) -> Dump:
    """Reads a dump. Raises DumpError, which names the file, the array and the cure."""
    arrays = _arrays(path)
    settings = parse_settings(_text(path, arrays.pop("settings", None)), f"{path}: settings")
    known = {**INPUTS, **RESULTS}
    for name in arrays:
        if name not in known:
            meant = nearest(name, list(known))
            guess = f'did you mean "{meant}"?' if meant else f"the arrays are {', '.join(known)}"
            raise DumpError(f'{path}: there is no array "{name}"; {guess}')
    for name in REQUIRED:
        if name not in arrays:
            raise DumpError(f"{path} has no array {name}; every dump needs {', '.join(REQUIRED)}")
    if not arrays.keys() & RESULTS.keys():
        raise DumpError(f"{path} has nothing to compare: add one of the arrays {', '.join(RESULTS)}")
    sizes: dict[str, int] = {}
    checked = {
        name: _checked(path, name, arrays[name], known[name], sizes) for name in known if name in arrays
    }
    batch = Batch(**{name: checked[name] for name in INPUTS if name in checked})
    _check_batch(path, batch)
    trained = batch.mask > 0
    for name, values in checked.items():
        relevant = values[trained] if name in RESULTS and values.ndim == 2 else values
        if name in RESULTS and not np.isfinite(relevant).all():
            raise DumpError(
                f"{path}: {name} has values that are not finite{_first_non_finite(values, trained)}"
            )
    return Dump(path, settings, batch, {name: checked[name] for name in RESULTS if name in checked})


def parse_settings(text: str, place: str) -> Settings:
    """Returns settings from JSON. Raises DumpError, which names the key and what it may be."""
    try:
        values = parse_json(text)
    except ValueError as error:
        raise DumpError(f"{place}: not JSON ({error}); write json.dumps({{…}})") from error
    if not isinstance(values, dict):
        raise DumpError(f"{place}: not a JSON object; write json.dumps({{…}})")
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        raise DumpError(f"{place}: {describe_errors(error, Settings, values)}") from error


def _arrays(path: Path) -> dict[str, Array]:
    """Returns the arrays of the file by name. Nothing of it is unpickled."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            if sum(member.file_size for member in members) > MAX_BYTES:
                raise DumpError(f"{path} has more than {MAX_BYTES >> 30} GiB of arrays: dump fewer samples")
            return {member.filename.removesuffix(".npy"): _array(path, archive, member) for member in members}
    except (DumpError, FileNotFoundError, PermissionError, IsADirectoryError):
        raise
    except Exception as error:  # zipfile, its codecs and numpy's header raise many kinds for damaged bytes
        raise DumpError(
            f"{path} is not a whole .npz file ({error}); write it with numpy.savez_compressed"
        ) from error


def _array(path: Path, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Array:
    """Reads one array. Its header must agree with its size before any memory is taken."""
    name = member.filename.removesuffix(".npy")
    with archive.open(member) as file:
        version = np.lib.format.read_magic(file)
        read_header = (
            np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        )
        shape, column_major, dtype = read_header(file)
        if dtype.kind not in "biufU":
            raise DumpError(f"{path}: {name} holds {dtype}, not numbers; write float32 or int64")
        data = file.read()
        if len(data) != math.prod(shape) * dtype.itemsize:
            raise DumpError(f"{path}: {name} does not have the size that it states; write the file again")
    return np.frombuffer(data, dtype).reshape(shape, order="F" if column_major else "C")


def _text(path: Path, value: Array | None) -> str:
    if value is None:
        raise DumpError(f"{path} has no settings: add settings=json.dumps({{…}}) (docs/conform.md)")
    if value.shape != () or value.dtype.kind != "U":
        raise DumpError(f"{path}: settings is not one string: write settings=json.dumps({{…}})")
    return str(value)


def _checked(path: Path, name: str, array: Array, shape: Shape, sizes: dict[str, int]) -> Array:
    """Returns an array in its own dtype and form; `sizes` are the lengths of the dimensions so far."""
    wanted = f"[{', '.join(shape.dimensions)}]" if shape.dimensions else "one number"
    if array.dtype.kind not in ("biu" if shape.kind == "i" else "biuf"):
        numbers = "whole numbers" if shape.kind == "i" else "numbers"
        raise DumpError(f"{path}: {name} holds {array.dtype}; it takes {numbers}")
    if shape.broadcasts and array.shape in ((sizes["B"],), (sizes["B"], 1)):
        array = np.repeat(array.reshape(-1, 1), sizes["R"], axis=1)
    if array.ndim != len(shape.dimensions) or 0 in array.shape:
        raise DumpError(f"{path}: {name} has the shape {array.shape}; it takes {wanted}")
    for dimension, length in zip(shape.dimensions, array.shape, strict=True):
        if sizes.setdefault(dimension, length) != length:
            raise DumpError(
                f"{path}: {name} has the shape {array.shape}; it takes {wanted}, with {dimension} = "
                f"{sizes[dimension]} as in tokens"
            )
    return array.astype(np.int64 if shape.kind == "i" else np.float64 if name == "rewards" else np.float32)


def _check_batch(path: Path, batch: Batch) -> None:
    if not np.isin(batch.mask, (0, 1)).all():
        raise DumpError(f"{path}: mask has values other than 0 and 1: weights of tokens cannot be compared")
    if not batch.mask.any():
        raise DumpError(f"{path}: mask is 0 everywhere: the batch trains nothing")
    if not np.isfinite(batch.rewards).all():
        row = int(np.flatnonzero(~np.isfinite(batch.rewards))[0])
        raise DumpError(f"{path}: the reward of sample {row} is not finite: leave the sample out")
    trained = batch.mask > 0
    for name in _ON_TRAINED:
        values = getattr(batch, name)
        if values is not None and not np.isfinite(values[trained]).all():
            raise DumpError(
                f"{path}: {name} has values that are not finite{_first_non_finite(values, trained)}"
            )
    if batch.logits is not None:
        rows, _, vocabulary = batch.logits.shape
        if rows > len(batch.tokens):
            raise DumpError(f"{path}: logits has {rows} samples, tokens has {len(batch.tokens)}")
        tokens = batch.tokens[:rows][trained[:rows]]
        if len(tokens) and not 0 <= tokens.min() <= tokens.max() < vocabulary:
            raise DumpError(f"{path}: tokens has ids that logits, with {vocabulary} columns, does not have")
        if not np.isfinite(batch.logits[trained[:rows]]).all():
            raise DumpError(f"{path}: logits has values that are not finite")


def _first_non_finite(values: Array, trained: Array) -> str:
    if values.ndim != 2:
        return ""
    row, token = np.argwhere(~np.isfinite(values) & trained)[0]
    return f", first on sample {row}, token {token}"

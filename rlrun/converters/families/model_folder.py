"""Reads and writes model folders for the trainer, one tensor at a time.

It uses the same format as `rlrun convert` (`hf_folder`, `safetensors_format`), but reads into memory and
writes from memory.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from rlrun.converters.families.expected_tensors import check_folder
from rlrun.converters.families.expert_storage import each_expert
from rlrun.converters.folders.hf_folder import INDEX, files_beside_weights, is_hf_folder, read_tensors
from rlrun.converters.tensors.precision import keeps_precision
from rlrun.converters.tensors.safetensors_format import (
    TensorInfo,
    make_header,
    make_index,
    split_shards,
    stored_tensors,
)
from rlrun.converters.tensors.stored import Files, OpenFiles, StoredTensor
from rlrun.models.architecture import Architecture
from rlrun.models.config_json import read_config
from rlrun.models.hf_tensor import HfTensor
from rlrun.models.tensor_names import SCORE_BIAS, is_beside_policy
from rlrun.specs.derived.sglang_config import with_missing_keys

SHARD_BYTES = 5 * 10**9
_CAUSAL = "ForCausalLM"
"""The end of the names of transformers' classes of models that predict the next token."""
_NORMS = ("norm.weight", "norm1.weight", "norm2.weight", "ln_q.weight")
"""Ends of the names of norms' weights; the last three are those of vision towers."""


class WeightFolder(OpenFiles):
    """The weights of a model folder, memory-mapped; a context manager."""

    def __init__(self, folder: Path, model: Architecture, further: Collection[str] = ()) -> None:
        """Opens the files. Raises ValueError as `check_folder` does."""
        super().__init__()
        self.folder = folder
        self._tensors = each_expert(stored_tensors(check_folder(folder, model, further)), model)

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def read(self, name: str) -> torch.Tensor:
        """Returns the tensor as stored. Its bytes are read when they are used."""
        tensor = self._tensors[name]
        return self._files.array(tensor.chunks[0], tensor.dtype)


def random_tensor(tensor: HfTensor, model: Architecture, seed: int) -> torch.Tensor:
    """Returns initial values that depend only on seed and name.

    Norms multiply by 1, and biases are 0; other weights are normal with standard deviation
    `initializer_range`. The decay of Gated DeltaNet is drawn as in transformers.
    """
    if tensor.name.endswith(".dt_bias"):
        return torch.ones(tensor.shape)
    if tensor.name.endswith("bias"):
        return torch.zeros(tensor.shape)
    if tensor.name.endswith(_NORMS):
        is_offset = model.offset_norms and ".linear_attn." not in tensor.name
        return torch.zeros(tensor.shape) if is_offset else torch.ones(tensor.shape)
    generator = named_generator(tensor.name, seed)
    if tensor.name.endswith(".A_log"):
        return torch.empty(tensor.shape).uniform_(0.01, 16.0, generator=generator).log()
    return torch.empty(tensor.shape).normal_(0.0, model.initializer_range, generator=generator)


def named_generator(name: str, seed: int) -> torch.Generator:
    """Returns a generator whose numbers depend only on seed and name."""
    return torch.Generator().manual_seed(seed * 1_000_003 + _digest(name))


def write_folder(
    folder: Path,
    source: Path,
    model: Architecture,
    tensors: Iterable[tuple[str, torch.Tensor]],
    shapes: Mapping[str, tuple[int, ...]],
    *,
    dtype: torch.dtype,
) -> None:
    """Writes a model folder: `tensors`, in the order of `shapes`, and small files copied from `source`.

    Its `config.json` also has the keys that SGLang needs (`rlrun.specs.derived.sglang_config`).

    A model that scores also gets a bias of 0 (`SCORE_BIAS`).

    Tensors of `source` that are beside the policy are copied. Every tensor is written in `dtype`, except
    those whose precision must not change (`keeps_precision`), which are written in float32.
    One tensor is in memory at a time. Raises OSError, for instance for a full disk.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, path in files_beside_weights(source).items():
        (folder / name).write_bytes(path.read_bytes())
    config = read_config(source)
    completed = with_missing_keys(config)
    if model.scores:
        completed |= _one_label(config)
        shapes = {**shapes, SCORE_BIAS: (1,)}
        tensors = chain(tensors, [(SCORE_BIAS, torch.zeros(1))])
    if completed != config:
        (folder / "config.json").write_text(json.dumps(completed, indent=2) + "\n", "utf-8")
    beside = _beside_policy(source, model)
    every_shape = {**shapes, **{name: tensor.shape for name, tensor in beside.items()}}
    described = {
        name: TensorInfo(torch.float32 if keeps_precision(name) else dtype, shape)
        for name, shape in every_shape.items()
    }
    shards = split_shards(described, SHARD_BYTES)
    files = Files()
    copied = ((name, files.array(tensor.chunks[0], tensor.dtype)) for name, tensor in beside.items())
    stream = chain(tensors, copied)
    for file, names in shards.items():
        write_safetensors(folder / file, {name: described[name] for name in names}, stream)
    files.close()
    if len(shards) > 1:
        (folder / INDEX).write_bytes(make_index(described, shards))


def _one_label(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the keys by which transformers' and SGLang's classes know a model that gives one score."""
    architectures = [
        name.replace(_CAUSAL, "ForSequenceClassification") for name in config.get("architectures") or []
    ]
    return {"architectures": architectures, "id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}


def _beside_policy(folder: Path, model: Architecture) -> dict[str, StoredTensor]:
    """Returns the tensors of a model folder that are exported unchanged; none where it has no weights."""
    if not is_hf_folder(folder):
        return {}
    return {name: tensor for name, tensor in read_tensors(folder).items() if is_beside_policy(name, model)}


def write_safetensors(
    path: Path, expected: Mapping[str, TensorInfo], stream: Iterator[tuple[str, torch.Tensor]]
) -> None:
    """Writes one file with the expected tensors, which are the next ones of the stream."""
    head, _ = make_header(expected)
    with path.open("wb") as file:
        file.write(head)
        for (expected_name, described), (name, tensor) in zip(expected.items(), stream, strict=False):
            assert (name, tuple(tensor.shape)) == (expected_name, described.shape), (
                f"not {expected_name}: {name}"
            )
            content = tensor.detach().to("cpu", described.dtype).contiguous()
            file.write(content.view(-1).view(torch.uint8).numpy())  # a scalar has no last dimension


def _digest(name: str) -> int:
    """Returns a number for a name, the same in every process."""
    value = 0
    for byte in name.encode():
        value = (value * 131 + byte) % 2_147_483_647
    return value

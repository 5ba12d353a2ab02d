"""Reads and writes the safetensors of a model folder, one tensor at a time.

The format: 8 bytes of header length (little endian), a JSON header of names, types, shapes and offsets, then
the bytes of the tensors (https://huggingface.co/docs/safetensors).
"""

import json
import shutil
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

import torch
from safetensors import SafetensorError, safe_open

from rlrun.converters.architecture import Architecture
from rlrun.converters.hf_names import HfTensor, hf_tensors, is_derived

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
SHARD_BYTES = 5 * 10**9
CODES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}


class WeightFolder:
    """The weights of a model folder, memory-mapped; a context manager."""

    def __init__(self, folder: Path, model: Architecture) -> None:
        """Open the files; ValueError where names or shapes are not those of the architecture."""
        self.folder = folder
        self._open = ExitStack()
        self._file_of: dict[str, safe_open] = {}
        for path in _weight_files(folder):
            try:
                file = self._open.enter_context(safe_open(path, framework="pt"))
            except (SafetensorError, OSError) as error:
                raise ValueError(f"{path} cannot be read: {error}") from None
            self._file_of.update(dict.fromkeys(file.keys(), file))
        self._check(model)

    def __enter__(self) -> "WeightFolder":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    def read(self, name: str) -> torch.Tensor:
        """The tensor as stored; its bytes stay in the file until they are used."""
        tensor: torch.Tensor = self._file_of[name].get_tensor(name)
        return tensor

    def _check(self, model: Architecture) -> None:
        expected = {tensor.name: tensor.shape for tensor in hf_tensors(model)}
        if missing := sorted(expected.keys() - self._file_of.keys()):
            raise ValueError(f"{self.folder} lacks {_some(missing)}, which its config.json asks for")
        unknown = sorted(
            name for name in self._file_of.keys() - expected.keys() if not is_derived(name, model)
        )
        if unknown:
            raise ValueError(f"{self.folder} has {_some(unknown)}, which its config.json knows nothing of")
        for name, shape in expected.items():
            stored = tuple(self._file_of[name].get_slice(name).get_shape())
            if stored != shape:
                raise ValueError(
                    f"{name} in {self.folder} has shape {stored}, its config.json asks for {shape}"
                )


def random_tensor(tensor: HfTensor, model: Architecture, seed: int) -> torch.Tensor:
    """A starting value that depends on seed and name alone: ones for norms, else normal with
    `initializer_range`.
    """
    if len(tensor.shape) == 1:
        return torch.ones(tensor.shape)
    generator = torch.Generator().manual_seed(seed * 1_000_003 + _digest(tensor.name))
    return torch.empty(tensor.shape).normal_(0.0, model.initializer_range, generator=generator)


def write_folder(
    folder: Path,
    source: Path,
    tensors: Iterable[tuple[str, torch.Tensor]],
    shapes: Mapping[str, tuple[int, ...]],
    dtype: torch.dtype,
) -> None:
    """Write a model folder: the tensors (in the order of `shapes`) as safetensors, the rest copied from
    `source`.

    Holds one tensor in memory at a time. An OSError (a full disk) reaches the caller.
    """
    folder.mkdir(parents=True, exist_ok=True)
    copy_companions(source, folder)
    shards = _shards(shapes, dtype)
    names = (
        [SINGLE]
        if len(shards) == 1
        else [f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors" for i in range(len(shards))]
    )
    stream = iter(tensors)
    for file_name, shard in zip(names, shards, strict=True):
        _write_file(folder / file_name, shard, shapes, stream, dtype)
    if len(shards) > 1:
        weight_map = {
            name: file_name for file_name, shard in zip(names, shards, strict=True) for name in shard
        }
        total = sum(_bytes(shapes[name], dtype) for name in shapes)
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n")


def copy_companions(source: Path, folder: Path) -> None:
    """Copy config, tokenizer and templates: everything small that isn't weights."""
    for path in sorted(source.iterdir()):
        if path.suffix in {".json", ".jinja", ".txt", ".model"} and path.name != INDEX:
            shutil.copyfile(path, folder / path.name)


def _weight_files(folder: Path) -> list[Path]:
    if (folder / INDEX).exists():
        names = sorted(set(json.loads((folder / INDEX).read_text())["weight_map"].values()))
        if gone := [name for name in names if not (folder / name).exists()]:
            raise ValueError(f"{folder} lacks {_some(gone)}, which {INDEX} names; download it again")
        return [folder / name for name in names]
    if (folder / SINGLE).exists():
        return [folder / SINGLE]
    raise ValueError(
        f"{folder} has no {SINGLE} and no {INDEX}; give a folder with safetensors, or set model.random_init"
    )


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _digest(name: str) -> int:
    """A number of a name that is the same in every process."""
    value = 0
    for byte in name.encode():
        value = (value * 131 + byte) % 2_147_483_647
    return value


def _bytes(shape: tuple[int, ...], dtype: torch.dtype) -> int:
    return torch.Size(shape).numel() * dtype.itemsize


def _shards(shapes: Mapping[str, tuple[int, ...]], dtype: torch.dtype) -> list[list[str]]:
    shards: list[list[str]] = [[]]
    filled = 0
    for name, shape in shapes.items():
        size = _bytes(shape, dtype)
        if shards[-1] and filled + size > SHARD_BYTES:
            shards.append([])
            filled = 0
        shards[-1].append(name)
        filled += size
    return shards


def _write_file(
    path: Path,
    names: list[str],
    shapes: Mapping[str, tuple[int, ...]],
    stream: Iterable[tuple[str, torch.Tensor]],
    dtype: torch.dtype,
) -> None:
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name in names:
        start, end = end, end + _bytes(shapes[name], dtype)
        header[name] = {"dtype": CODES[dtype], "shape": list(shapes[name]), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for expected, (name, tensor) in zip(names, stream, strict=False):
            assert name == expected and tuple(tensor.shape) == shapes[name], (
                f"expected {expected}, got {name}"
            )
            file.write(tensor.detach().to("cpu", dtype).contiguous().view(torch.uint8).numpy())

"""Plans a conversion and carries it out.

    SRC (either format) ─▶ tensors by Hugging Face name ─▶ merged, tied, cast, quantised ─▶ files of DST

Planning reads only headers. Every mistake in the source's names and shapes is found before a byte is written.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from rlrun.converters.convert.copying import Advance, ResourceLimits
from rlrun.converters.convert.destination import write_atomically
from rlrun.converters.convert.sources import cast_weight, checked_contents, config_of, optimizer_contents
from rlrun.converters.convert.verification import verify_folder
from rlrun.converters.families.adapters import group_bytes
from rlrun.converters.families.expected_tensors import STRICT, Lenience
from rlrun.converters.families.families import alias_names, check_family, map_to_parameters
from rlrun.converters.families.lora import merge_adapter
from rlrun.converters.families.mapping import Mapped
from rlrun.converters.folders.hf_folder import files_beside_weights
from rlrun.converters.folders.locate import Checkpoint, Format
from rlrun.converters.folders.output_files import OutputFile, distcp_files, safetensors_files, small_file
from rlrun.converters.quantised.kinds import Kind, quantise
from rlrun.converters.tensors.content import Content, Plain, as_bytes, blocks
from rlrun.converters.tensors.precision import is_code
from rlrun.converters.tensors.stored import Files
from rlrun.models.config_json import read_config
from rlrun.models.low_precision import DEFAULT_INT4_GROUP
from rlrun.specs.derived.sglang_config import with_missing_keys

_OPTIMIZER = "optimizer"
_MODEL_TABLES = ("text_config", "vision_config")
"""Tables of a multimodal config.json, each the config of a model."""
_DTYPE_KEYS = {"dtype", "torch_dtype"}
_EMBEDDING, _HEAD = "model.embed_tokens.weight", "lm_head.weight"
_BLOCK_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a conversion."""

    dtype: torch.dtype | None = None
    """Precision of the weights in DST. None: as stored, or for a training checkpoint that of config.json."""
    shard_bytes: int = 5 * 10**9
    """Maximum size of a file of DST; a larger tensor gets a file to itself."""
    quantise: Kind | None = None
    """Quantisation of the projections in DST. None: they are not quantised again."""
    group: int = DEFAULT_INT4_GROUP
    """How many neighbours in a row share a scale in four bits."""
    dequantise: bool = False
    """Whether quantised weights of SRC are converted to `dtype`."""
    adapter: Path | None = None
    """Folder of a LoRA adapter to merge."""
    tied: bool | None = None
    """Whether embedding and head share one tensor in DST. None: as in the source."""
    optimizer: bool = False
    """Whether to write the moments of AdamW to the folder `optimizer` in DST."""
    lenience: Lenience = STRICT
    """Which differences between the tensors and config.json are accepted."""


@dataclass(slots=True)
class Conversion:
    """A planned conversion: the files to write, and the tensors to read."""

    source: Checkpoint
    target: Format
    files: list[OutputFile]
    contents: dict[str, Content]
    """Contents of the tensors, by their names in DST."""
    sources: Files
    identity: dict[str, Any]
    """Values that are equal for two conversions that write the same bytes; decides whether one can be
    resumed."""
    mapped: Mapped = field(default_factory=Mapped)
    resumed: int = 0
    """Bytes that an earlier, interrupted conversion has already written."""

    @property
    def nbytes(self) -> int:
        """Number of bytes to write."""
        return sum(file.size for file in self.files)

    def write(
        self, destination: Path, limits: ResourceLimits, advance: Advance, verify: Advance | None
    ) -> None:
        """Writes the folder. With `verify`, the written files are first read back and compared.

        `advance` and `verify` are called with numbers of bytes. Raises ValueError if a file differs.
        """

        def check(folder: Path) -> None:
            if verify is not None:
                verify_folder(folder, self.target, self.files, self.sources, verify)

        self.resumed = write_atomically(
            destination,
            self.files,
            self.sources,
            identity=self.identity,
            limits=limits,
            advance=advance,
            extra_bytes=group_bytes(self.contents),
            check=check,
        )
        self.sources.close()


def plan_conversion(source: Checkpoint, target: Format, options: Options) -> Conversion:
    """Plans a conversion. Raises ValueError if the source is broken, or an option does not fit it."""
    if options.optimizer and (source.format, target) != ("dcp", "hf"):
        raise ValueError("only training checkpoints have an optimizer state: remove --optimizer")
    config = config_of(source)
    wide = target == "dcp" or options.dequantise or bool(options.quantise or options.adapter)
    mapped = checked_contents(source, config, options.dtype, wide=wide, lenience=options.lenience)
    contents = mapped.contents
    if options.adapter is not None:
        contents = merge_adapter(contents, options.adapter)
    contents, config = _set_tying(contents, config, options.tied)
    contents = {name: cast_weight(name, content, options.dtype) for name, content in contents.items()}
    if target == "hf":
        contents, config = _quantised(contents, config, options)
        if source.step is not None:  # as the trainer exports its runs; other folders keep their config.json
            config = with_missing_keys(config)
        files = safetensors_files(contents, options.shard_bytes)
        if options.optimizer:
            extra = safetensors_files(optimizer_contents(source, config), options.shard_bytes)
            files += [replace(file, name=f"{_OPTIMIZER}/{file.name}") for file in extra]
    else:
        if options.quantise:
            raise ValueError("a distributed checkpoint is for training and cannot be quantised")
        mapped = map_to_parameters(config, contents, str(source.folder), options.lenience)
        contents = mapped.contents
        aliases = {new: old for new, old in alias_names(config).items() if old in contents}
        files = distcp_files(contents, aliases, options.shard_bytes)
    files += _files_beside_weights(source, _with_dtype(config, options.dtype))
    return Conversion(
        source, target, files, contents, _opened(files), _identity(source, target, files, options), mapped
    )


def _quantised(
    contents: dict[str, Content], config: dict[str, Any], options: Options
) -> tuple[dict[str, Content], dict[str, Any]]:
    if options.quantise is None:
        is_quantised = any(is_code(content.tensor.dtype) for content in contents.values())
        return contents, config if is_quantised else _without_quantisation(config)
    check_family(config)  # only for known families it is known which tensors are projections
    return quantise(contents, config, options.quantise, options.group)


def _without_quantisation(config: dict[str, Any]) -> dict[str, Any]:
    """Returns a config.json that does not describe quantised weights, nor do the tables of its models."""
    return {
        key: _without_quantisation(value) if key in _MODEL_TABLES and isinstance(value, dict) else value
        for key, value in config.items()
        if key != "quantization_config"
    }


def _with_dtype(config: dict[str, Any], dtype: torch.dtype | None) -> dict[str, Any]:
    """Returns a config.json that names the precision, also where the tables of a multimodal one name it."""
    if dtype is None:
        return config
    key = "torch_dtype" if "torch_dtype" in config else "dtype"
    tables = {
        name: _with_dtype(config[name], dtype)
        for name in _MODEL_TABLES
        if isinstance(config.get(name), dict) and _DTYPE_KEYS & config[name].keys()
    }
    return config | tables | {key: str(dtype).removeprefix("torch.")}


def _files_beside_weights(source: Checkpoint, config: dict[str, Any]) -> list[OutputFile]:
    """Returns the new config.json, and copies of the tokenizer and other small files."""
    assert source.model is not None
    original = read_config(source.model)
    files = []
    for name, path in files_beside_weights(source.model).items():
        changed = name == "config.json" and config != original
        data = json.dumps(config, indent=2).encode() + b"\n" if changed else path.read_bytes()
        files.append(small_file(name, data))
    return files


def _opened(files: list[OutputFile]) -> Files:
    """Opens all files that will be read, because a running job may delete its oldest checkpoint meanwhile."""
    sources = Files()
    for content in (tensor.content for file in files for tensor in file.tensors):
        if isinstance(content, Plain):
            for chunk in content.stored.chunks:
                sources.open(chunk.path)
    return sources


def _identity(
    source: Checkpoint, target: Format, files: list[OutputFile], options: Options
) -> dict[str, Any]:
    """Returns sizes and times of the source files, the layout of the output files, and the options."""
    stats = {
        path.name: (path.stat().st_size, path.stat().st_mtime_ns)
        for folder in (source.folder, source.model, options.adapter)
        if folder is not None
        for path in sorted(folder.iterdir())
        if path.is_file()
    }
    layout = [
        (file.name, file.size, [(tensor.name, tensor.position) for tensor in file.tensors]) for file in files
    ]
    settings = {name: str(value) for name, value in asdict(options).items()}
    return {
        "source": str(source.folder.absolute()),
        "stats": stats,
        "target": target,
        "layout": layout,
        "options": settings,
    }


def _set_tying(
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

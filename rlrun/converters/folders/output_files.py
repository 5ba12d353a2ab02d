"""Plans the files that a conversion writes: their sizes, and the position of every tensor."""

from collections.abc import Mapping
from dataclasses import dataclass

from rlrun.converters.folders.dcp_format import ItemPosition, make_envelope, make_metadata
from rlrun.converters.folders.dcp_metadata import METADATA
from rlrun.converters.folders.hf_folder import INDEX
from rlrun.converters.tensors.content import Content
from rlrun.converters.tensors.safetensors_format import TensorInfo, make_header, make_index, split_shards


@dataclass(frozen=True, slots=True)
class OutputTensor:
    """A tensor, and its position in a file."""

    name: str
    position: int
    content: Content


@dataclass(frozen=True, slots=True)
class OutputFile:
    """A file that a conversion will write."""

    name: str
    size: int
    fixed: tuple[tuple[int, bytes], ...] = ()
    """Bytes other than tensors, with their positions."""
    tensors: tuple[OutputTensor, ...] = ()


def small_file(name: str, data: bytes) -> OutputFile:
    """Returns a file with fixed contents."""
    return OutputFile(name, len(data), ((0, data),))


def safetensors_files(contents: Mapping[str, Content], shard_bytes: int) -> list[OutputFile]:
    """Returns the safetensors files of a model folder, with an index if there are several."""
    described = {name: content.tensor for name, content in contents.items()}
    shards = split_shards(described, shard_bytes)
    files = []
    for file, names in shards.items():
        head, positions = make_header({name: described[name] for name in names})
        end = max((positions[name] + described[name].nbytes for name in names), default=len(head))
        tensors = tuple(OutputTensor(name, positions[name], contents[name]) for name in names)
        files.append(OutputFile(file, end, ((0, head),), tensors))
    if len(shards) > 1:
        files.append(small_file(INDEX, make_index(described, shards)))
    return files


def distcp_files(
    contents: Mapping[str, Content], aliases: Mapping[str, str], shard_bytes: int
) -> list[OutputFile]:
    """Returns the files of a distributed checkpoint. `aliases` maps second names to names in `contents`."""
    described = {name: content.tensor for name, content in contents.items()}
    files: list[OutputFile] = []
    item_positions: dict[str, ItemPosition] = {}
    for number, names in enumerate(split_shards(described, shard_bytes).values()):
        file = _distcp_file(f"__0_{number}.distcp", {name: contents[name] for name in names}, item_positions)
        files.append(file)
    return [*files, small_file(METADATA, make_metadata(described, item_positions, aliases))]


def _distcp_file(
    name: str, contents: Mapping[str, Content], item_positions: dict[str, ItemPosition]
) -> OutputFile:
    fixed, tensors = [], []
    envelopes = {tensor: make_envelope(tensor) for tensor in {c.tensor for c in contents.values()}}
    end = 0
    for tensor_name, content in contents.items():
        tensor: TensorInfo = content.tensor
        envelope = envelopes[tensor]
        begin, end = end, end + len(envelope.head)
        fixed.append((begin, envelope.head))
        tensors.append(OutputTensor(tensor_name, end, content))
        end += tensor.nbytes
        fixed.append((end, envelope.tail))
        end += len(envelope.tail)
        item_positions[tensor_name] = ItemPosition(name, begin, end - begin)
        end += -end % 64  # the bytes of a tensor are as aligned in the file as they are in its envelope
    return OutputFile(name, end, tuple(fixed), tuple(tensors))

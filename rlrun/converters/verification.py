"""Whether a written folder reads back as what was to be written."""

from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from rlrun.converters.blocks import as_bytes, blocks
from rlrun.converters.content import plain
from rlrun.converters.copying import Advance
from rlrun.converters.dcp_folder import DcpFolder
from rlrun.converters.hf_folder import read_tensors
from rlrun.converters.locate import Format
from rlrun.converters.output_files import OutputFile
from rlrun.converters.stored import Files, Stored

_BLOCK_BYTES = 16 << 20


def verify_folder(
    folder: Path, target: Format, files: Sequence[OutputFile], sources: Files, advance: Advance
) -> None:
    """Read a folder as any reader would, and compare every byte of every tensor with its source.

    ValueError names the first that differs. `advance` is called with the bytes compared.
    """
    written = Files()
    for part in sorted({Path(file.name).parent for file in files}):
        read = _reader(target, folder / part)
        tensors = [tensor for file in files if Path(file.name).parent == part for tensor in file.tensors]
        for name, content in ((tensor.name, tensor.content) for tensor in tensors):
            found = plain(read(name))
            same = found.tensor == content.tensor
            for block in blocks(content, _BLOCK_BYTES):
                expected = as_bytes(content.rows(sources, *block))
                if not same or not torch.equal(as_bytes(found.rows(written, *block)), expected):
                    raise ValueError(f"{name} in {folder} is not what was written: is the disk in order?")
                advance(len(expected))
    written.close()


def _reader(target: Format, folder: Path) -> Callable[[str], Stored]:
    return read_tensors(folder).__getitem__ if target == "hf" else DcpFolder(folder).read

"""Verifies that a source is undamaged, and that a written folder has the right contents."""

from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from rlrun.converters.convert.copying import Advance
from rlrun.converters.folders.checksums import CHECKSUMS, find_problems, read_checksums
from rlrun.converters.folders.dcp_folder import DcpFolder
from rlrun.converters.folders.dcp_metadata import METADATA
from rlrun.converters.folders.hf_folder import read_tensors
from rlrun.converters.folders.locate import Format
from rlrun.converters.folders.output_files import OutputFile
from rlrun.converters.tensors.content import as_bytes, blocks, plain
from rlrun.converters.tensors.stored import Files, StoredTensor

_BLOCK_BYTES = 16 << 20


def check_source(folder: Path, *, whole: bool) -> None:
    """Compares files of a run's checkpoint with its checksums. Raises ValueError for a damaged file.

    `whole`: reads all files of the policy; otherwise only `.metadata`. Checkpoints that rlrun did not write
    have no checksums, and are accepted.
    """
    checkpoint = folder.parent
    try:
        recorded = read_checksums(checkpoint) if folder.name == "trainer" else None
    except ValueError as error:
        raise ValueError(f"{checkpoint / CHECKSUMS} is damaged: {error}") from None
    files = {name: digest for name, digest in (recorded or {}).items() if Path(name).parent.name == "trainer"}
    table = f"trainer/{METADATA}"
    chosen = files if whole else {name: digest for name, digest in files.items() if name == table}
    for name, problem in find_problems(checkpoint, chosen).items():
        raise ValueError(f"{checkpoint / name} is damaged: {problem}; convert another step, or copy it again")


def verify_folder(
    folder: Path, target: Format, files: Sequence[OutputFile], sources: Files, advance: Advance
) -> None:
    """Reads a written folder, and compares every byte of every tensor with its source.

    Raises ValueError with the name of the first tensor that differs. `advance` is called with the number of
    compared bytes.
    """
    written = Files()
    for part in sorted({Path(file.name).parent for file in files}):
        read = _reader(target, folder / part)
        tensors = [tensor for file in files if Path(file.name).parent == part for tensor in file.tensors]
        for name, content in ((tensor.name, tensor.content) for tensor in tensors):
            stored = plain(read(name))
            same = stored.tensor == content.tensor
            for block in blocks(content, _BLOCK_BYTES):
                expected = as_bytes(content.rows(sources, *block))
                if not same or not torch.equal(as_bytes(stored.rows(written, *block)), expected):
                    raise ValueError(f"{name} in {folder} is not what was written: check the disk")
                advance(len(expected))
    written.close()


def _reader(target: Format, folder: Path) -> Callable[[str], StoredTensor]:
    return read_tensors(folder).__getitem__ if target == "hf" else DcpFolder(folder).read

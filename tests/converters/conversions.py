"""Conversions as tests ask for them."""

import io
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file
from torch.distributed.checkpoint import FileSystemReader

from rlrun.converters.convert.conversion import Options, plan_conversion
from rlrun.converters.convert.copying import ResourceLimits
from rlrun.converters.folders.locate import find_checkpoint

EFFORT = ResourceLimits(threads=2, memory=2 << 30)


def convert(source, target, destination, *, step=None, model=None, verify=True, **options):
    """Convert, reading back what was written; returns `destination`."""
    conversion = plan_conversion(find_checkpoint(source, step, model), target, Options(**options))
    conversion.write(destination, EFFORT, ignore, ignore if verify else None)
    return destination


def ignore(nbytes):
    pass


def read_hf(folder):
    """Every tensor of a folder, read by the safetensors library."""
    tensors = {}
    for path in sorted(Path(folder).glob("*.safetensors")):
        tensors |= load_file(path)
    return tensors


def read_dcp(folder):
    """Every tensor of a distributed checkpoint, read by torch."""
    stored = FileSystemReader(folder).read_metadata().state_dict_metadata
    tensors = {
        name: torch.empty(entry.size, dtype=entry.properties.dtype)
        for name, entry in stored.items()
        if hasattr(entry, "size")
    }
    dcp.load(tensors, checkpoint_id=folder, no_dist=True)
    return tensors


def same(ours, theirs):
    """Whether two tables of tensors are equal, to the bit."""
    return ours.keys() == theirs.keys() and all(
        tensor.dtype == theirs[name].dtype and equal_bits(tensor, theirs[name])
        for name, tensor in ours.items()
    )


def equal_bits(one, other):
    return one.shape == other.shape and raw(one) == raw(other)


def raw(tensor):
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def saved(tensor):
    """What torch.save makes of a tensor."""
    buffer = io.BytesIO()
    torch.save(tensor, buffer)
    return buffer.getvalue()

"""Loads a model: architecture, weights, and a KV cache that fits into memory, all the way to a scheduler."""

import dataclasses
from pathlib import Path

import numpy as np
import psutil
import torch

from rlrun.converters.families.lora import MergedFolder
from rlrun.models.architecture import Architecture
from rlrun.runner.engines.native.engine.rows import Rows
from rlrun.runner.engines.native.engine.scheduler import Scheduler
from rlrun.runner.engines.native.engine.setup import EngineSetup
from rlrun.runner.engines.native.engine.stops import Stops
from rlrun.runner.engines.native.model import flash_ops
from rlrun.runner.engines.native.model.batches import packed_prompts
from rlrun.runner.engines.native.model.cache import (
    BlockPool,
    KVCache,
    block_size,
    blocks_for,
    make_cache,
    token_bytes,
)
from rlrun.runner.engines.native.model.config import engine_architecture, weight_shapes
from rlrun.runner.engines.native.model.decoder_layers import OtherLayers
from rlrun.runner.engines.native.model.engine_parts import engine_parts
from rlrun.runner.engines.native.model.forward import Model
from rlrun.runner.engines.native.model.fused_weights import allocate, fuse
from rlrun.runner.engines.native.model.image_tower import ImageTower
from rlrun.runner.prompts.end_tokens import end_token_ids
from rlrun.runner.weights.carriers.disk.folder_tensors import FolderTensors

MEMORY_SHARE = 0.5
"""Largest share of the free memory that the KV cache takes."""


@dataclasses.dataclass(frozen=True, slots=True)
class LoadedEngine:
    """A scheduler that is ready to run, and the limits that requests are checked against."""

    architecture: Architecture
    scheduler: Scheduler
    stops: Stops
    dtype: torch.dtype
    max_length: int
    cache_tokens: int


def load(setup: EngineSetup) -> LoadedEngine:
    """Loads the model and allocates its cache. Raises ValueError for settings that cannot work."""
    architecture = engine_architecture(setup.model_folder)
    parts = engine_parts(architecture)
    if setup.draft_tokens and any(map(parts.is_recurrent, range(architecture.layers))):
        raise ValueError(
            "draft_tokens: recurrent states cannot be rolled back to before a wrong draft; set it to 0"
        )
    dtype: torch.dtype = getattr(torch, setup.dtype)
    device = pick_device(setup.device)
    length = _max_length(setup, architecture)
    folder = FolderTensors(setup.model_folder)
    folder.check(weight_shapes(architecture))
    named = allocate(architecture, dtype, device)
    folder.read(named)
    if setup.adapter is not None:
        with MergedFolder(Path(setup.model_folder), architecture, Path(setup.adapter)) as merged:
            for name in merged.adapted:
                named[name].copy_(merged.read(name))
    own_layers = not architecture.stored_tensors
    masked = not own_layers or architecture.indexer is not None  # flash attention takes no masks
    paged = not masked and flash_ops.takes(architecture.head_dim, dtype, device)
    block = block_size(paged=paged)
    states = setup.max_running + setup.kept_samples
    recurrent_bytes = (states + 1) * architecture.state_bytes(dtype.itemsize)
    cache_tokens = _cache_tokens(
        setup, token_bytes(architecture, dtype), block, device, length, reserved=recurrent_bytes
    )
    # One block more than the tokens need: a sample's prompt and its response each begin a block.
    pool = BlockPool(blocks_for(cache_tokens, block) + 1, block)
    cache = make_cache(architecture, pool.total, dtype, device, paged=paged)
    layers = None if own_layers else _transformers_layers(setup, architecture, cache, length)
    model = Model(
        architecture,
        fuse(named, architecture),
        cache,
        length,
        wide_head=setup.head_dtype == "float32",
        recurrent=parts.make_states(states, dtype, device),
        tower=_image_tower(setup, architecture, dtype, device),
        exact=setup.true_on_policy,
        layers=layers,
    )
    if layers is not None:
        model.states(packed_prompts([np.zeros(1, np.int32)], 1), [1])  # refuses what cannot be computed
    rows = Rows(setup.max_running, model.padded(setup.max_running), blocks_for(length, block) + 1, block)
    stops = Stops(architecture.vocab, end_token_ids(Path(setup.model_folder)), setup.model_folder)
    scheduler = Scheduler(model, pool, rows, stops, kept=setup.kept_samples, draft_tokens=setup.draft_tokens)
    return LoadedEngine(architecture, scheduler, stops, dtype, length, cache_tokens)


def _transformers_layers(
    setup: EngineSetup, architecture: Architecture, cache: KVCache, length: int
) -> OtherLayers:
    """Returns the layers of a family that only transformers computes."""
    # its imports take longer than all other imports of an engine
    from rlrun.runner.engines.native.model.transformers_layers import TransformersLayers

    return TransformersLayers(Path(setup.model_folder), architecture, cache, length)


def _image_tower(
    setup: EngineSetup, architecture: Architecture, dtype: torch.dtype, device: torch.device
) -> ImageTower | None:
    if architecture.vision is None:
        return None
    return ImageTower(architecture.vision, setup.model_folder, dtype, device)


def pick_device(name: str) -> torch.device:
    """Returns the device for `auto`, `cpu` or `cuda`; raises ValueError for `cuda` without a GPU."""
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("device cuda: torch sees no GPU; use cpu or auto")
    return torch.device("cuda" if name == "cuda" or (name == "auto" and torch.cuda.is_available()) else "cpu")


def _max_length(setup: EngineSetup, architecture: Architecture) -> int:
    length = setup.max_length or architecture.max_positions
    if length > architecture.max_positions:
        raise ValueError(
            f"max_length {length} exceeds the {architecture.max_positions} positions of the model in "
            f"{setup.model_folder}"
        )
    return length


def _cache_tokens(
    setup: EngineSetup, bytes_per_token: int, block: int, device: torch.device, length: int, *, reserved: int
) -> int:
    """Returns how many tokens the cache holds: as requested, or as many as fit into a share of the memory.

    `reserved`: bytes of the recurrent states, which are allocated beside the cache.
    """
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else psutil.virtual_memory().available
    room = int((free - reserved) * MEMORY_SHARE)
    if room < bytes_per_token * block:
        raise ValueError(
            f"max_running {setup.max_running} needs {reserved / 1e9:.1f} GB of recurrent states, which "
            f"leaves no room for a KV cache in the {free / 1e9:.1f} GB free: lower it"
        )
    fitting = room // bytes_per_token // block * block
    requested = setup.max_cache_tokens or setup.max_running * (length + 2 * block)
    if setup.max_cache_tokens and requested > fitting:
        raise ValueError(
            f"max_cache_tokens {requested} needs {requested * bytes_per_token / 1e9:.1f} GB; at most "
            f"{fitting} tokens fit in {MEMORY_SHARE:.0%} of the {free / 1e9:.1f} GB free"
        )
    return min(requested, fitting)

"""The vision tower of a multimodal checkpoint: its shape, its tensors, its module, positions of images.

patches of an image ─▶ tower ─▶ one embedding per merge × merge patches ─▶ at the placeholders in the text
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray
    from torch import nn

QWEN3_TOWER_DEFAULTS: Mapping[str, Any] = {
    "depth": 27,
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_heads": 16,
    "in_channels": 3,
    "patch_size": 16,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "out_hidden_size": 3584,
    "num_position_embeddings": 2304,
}
"""Defaults of transformers' vision configs of Qwen3-VL and Qwen3.5."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TowerFacts:
    """How a family's `config.json` describes the vision tower."""

    prefix: str
    """The names of the checkpoint's tensors begin with this."""
    image_token: int
    """The default of `image_token_id`."""
    loaded_by_default: bool = False
    """The tower is part of the policy unless `trainer.vision_tower` says otherwise. Otherwise checkpoints
    without a tower exist, and models are as often trained on text alone."""
    deepstack_layers: tuple[int, ...] = ()
    """The default of `deepstack_visual_indexes`; empty: the tower has no such layers."""
    defaults: Mapping[str, Any] = field(default_factory=lambda: QWEN3_TOWER_DEFAULTS)
    """Defaults of transformers' class for `vision_config`."""


Grid = tuple[int, int, int]
"""Patches of an image in time, height and width: the processor's `image_grid_thw`."""


@dataclass(frozen=True, slots=True)
class VisionTower:
    """The shape of a vision tower.

    Example (Qwen3-VL-8B): `VisionTower("qwen3_vl", "{…}", "model.visual.", image_token=151655, depth=27,
    hidden=1152, intermediate=4304, heads=16, output=4096, patch=(3, 2, 16, 16), merge=2, positions=2304,
    deepstack=3)`
    """

    family: str
    """`model_type` of `config.json`."""
    settings: str
    """`vision_config` of `config.json` as JSON text, from which transformers builds the tower."""
    prefix: str
    """The names of the checkpoint's tensors begin with this."""
    image_token: int
    """The token at the places of an image, one for each of its embeddings."""
    depth: int
    """Number of blocks."""
    hidden: int
    intermediate: int
    heads: int
    output: int
    """Size of an embedding, which is the text model's hidden size."""
    patch: tuple[int, int, int, int]
    """Channels, frames, height and width of a patch in pixels."""
    merge: int
    """An embedding stands for `merge` × `merge` patches."""
    positions: int = 0
    """Number of learned positions; 0: the tower has none (Qwen2.5-VL)."""
    deepstack: int = 0
    """Number of the tower's blocks whose output is added to the text model's first layers (Qwen3-VL)."""
    loaded: bool = True
    """Whether the tower is part of the policy. Otherwise its tensors are exported as they are."""

    @property
    def patch_size(self) -> int:
        """Number of values of a patch."""
        channels, frames, height, width = self.patch
        return channels * frames * height * width

    def num_tokens(self, grid: Grid) -> int:
        """Returns how many tokens of the text an image takes."""
        return grid[0] * grid[1] * grid[2] // self.merge**2

    def tensors(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Yields the name, without prefix, and shape of every tensor."""
        gated = not self.positions
        yield from _matrix("patch_embed.proj", (self.hidden, *self.patch), bias=not gated)
        if self.positions:
            yield "pos_embed.weight", (self.positions, self.hidden)
        for block in range(self.depth):
            yield from self._block(f"blocks.{block}", gated=gated)
        merged = self.hidden * self.merge**2
        mergers = ["merger", *(f"deepstack_merger_list.{i}" for i in range(self.deepstack))]
        for name in mergers:
            width = self.hidden if name == "merger" else merged
            yield from _norm(f"{name}.{'ln_q' if gated else 'norm'}", width, bias=not gated)
            first, second = ("mlp.0", "mlp.2") if gated else ("linear_fc1", "linear_fc2")
            yield from _matrix(f"{name}.{first}", (merged, merged))
            yield from _matrix(f"{name}.{second}", (self.output, merged))

    def _block(self, name: str, *, gated: bool) -> Iterator[tuple[str, tuple[int, ...]]]:
        hidden, inner = self.hidden, self.intermediate
        for norm in ("norm1", "norm2"):
            yield from _norm(f"{name}.{norm}", hidden, bias=not gated)
        yield from _matrix(f"{name}.attn.qkv", (3 * hidden, hidden))
        yield from _matrix(f"{name}.attn.proj", (hidden, hidden))
        if gated:
            for matrix in ("gate_proj", "up_proj"):
                yield from _matrix(f"{name}.mlp.{matrix}", (inner, hidden))
            yield from _matrix(f"{name}.mlp.down_proj", (hidden, inner))
        else:
            yield from _matrix(f"{name}.mlp.linear_fc1", (inner, hidden))
            yield from _matrix(f"{name}.mlp.linear_fc2", (hidden, inner))


def read_tower(config: Mapping[str, Any], facts: TowerFacts) -> VisionTower | None:
    """Reads the vision tower of a `config.json`; None for checkpoints that have only text. Raises KeyError
    for missing keys.
    """
    if not facts.loaded_by_default and not config.get("vision_config"):
        return None
    values = dict(facts.defaults) | config["vision_config"]
    side = values["patch_size"]
    deepstack = (
        values.get("deepstack_visual_indexes", facts.deepstack_layers) if facts.deepstack_layers else ()
    )
    return VisionTower(
        family=str(config["model_type"]),
        settings=json.dumps(config["vision_config"], sort_keys=True),
        prefix=facts.prefix,
        image_token=config.get("image_token_id", facts.image_token),
        depth=values["depth"],
        hidden=values["hidden_size"],
        intermediate=values["intermediate_size"],
        heads=values["num_heads"],
        output=values["out_hidden_size"],
        patch=(values["in_channels"], values["temporal_patch_size"], side, side),
        merge=values["spatial_merge_size"],
        positions=values["num_position_embeddings"],
        deepstack=len(deepstack),
        loaded=facts.loaded_by_default,
    )


def image_positions(
    length: int, starts: Sequence[int], grids: Sequence[Grid], merge: int
) -> "NDArray[np.int64]":
    """Returns `[3, T]`: each token's positions in time, height and width (M-RoPE, arXiv:2409.12191).

    `starts` are the indices of the images' first placeholders. Text has the same position in all three, and
    continues after an image at the largest position that the image has taken, plus one. So a text's positions
    lag behind its indices by the sum, over the images before it, of an image's tokens minus its longer side.
    """
    import numpy as np  # here, because `rlrun validate` reads families without it

    positions = np.empty((3, length), np.int64)
    index = following = 0
    for start, (frames, height, width) in zip(starts, grids, strict=True):
        rows, columns = height // merge, width // merge
        positions[:, index:start] = np.arange(following, following + start - index)
        following += start - index
        end = start + frames * rows * columns
        positions[:, start:end] = np.indices((frames, rows, columns)).reshape(3, -1) + following
        following += max(rows, columns)
        index = end
    positions[:, index:] = np.arange(following, following + length - index)
    return positions


def build_tower(tower: VisionTower, dtype: "torch.dtype") -> "nn.Module":
    """Returns transformers' vision tower on meta."""
    import torch  # here, because everything else in rlrun.models works without torch
    from transformers import AutoConfig, AutoModel

    settings = json.loads(tower.settings)
    config = AutoConfig.for_model(tower.family, vision_config=settings).vision_config
    with torch.device("meta"):
        module: nn.Module = AutoModel.from_config(config, attn_implementation="sdpa", dtype=dtype)
    return module


def fill_tower_buffers(module: "nn.Module", device: "torch.device") -> None:
    """Computes the rotary frequencies, which are not in checkpoints."""
    for part in module.modules():
        if part._buffers:
            fresh: Any = type(part)(part.config)
            for name, buffer in fresh._buffers.items():
                part._buffers[name] = None if buffer is None else buffer.to(device)


def all_embeddings(
    module: "nn.Module", patches: "torch.Tensor", grids: "torch.Tensor"
) -> "list[torch.Tensor]":
    """Returns the embeddings `[N, H]` of images, and those for the text model's first layers (Qwen3-VL)."""
    output = module(patches, grid_thw=grids)
    return [output.pooler_output, *(getattr(output, "deepstack_features", None) or ())]


def _matrix(name: str, shape: tuple[int, ...], *, bias: bool = True) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield f"{name}.weight", shape
    if bias:
        yield f"{name}.bias", shape[:1]


def _norm(name: str, width: int, *, bias: bool) -> Iterator[tuple[str, tuple[int, ...]]]:
    return _matrix(name, (width,), bias=bias)

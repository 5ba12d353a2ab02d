"""The vision tower: transformers' own module, sharded by its blocks, within rlrun's decoder.

patches ─▶ tower ─▶ embeddings, which replace those of the placeholders
              └───▶ for Qwen3-VL, embeddings that are added to the hidden states after the first layers
"""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn

from rlrun.models.vision import VisionTower, all_embeddings
from rlrun.runner.trainer.model.rank_functions import SumGradients


@dataclass(frozen=True, slots=True)
class PackedImages:
    """I images with P patches, which N tokens of a pack show.

    The samples of one prompt share its images, so several tokens may show the same embedding.
    """

    patches: torch.Tensor
    """`[P, patch size]` float32."""
    grids: torch.Tensor
    """`[I, 3]` int64: patches of each image in time, height and width."""
    embeddings: torch.Tensor
    """`[N]` int64: which of the images' embeddings each of the tokens shows."""
    tokens: torch.Tensor
    """`[N]` int64: the positions of these tokens in the pack."""
    group: dist.ProcessGroup | None = None
    """The tensor-parallel ranks that cut the pack's hidden states into equal parts, in order; None: each rank
    has those of all tokens."""


def blank_image(tower: VisionTower, device: torch.device) -> PackedImages:
    """Returns one small image of zeros that no token shows, for packs without images.

    The tower is sharded, so that every rank has to take part in gathering it for every micro-batch.
    """
    nothing = torch.zeros(0, dtype=torch.int64, device=device)
    side = tower.merge
    return PackedImages(
        torch.zeros(side * side, tower.patch_size, device=device),
        torch.tensor([[1, side, side]], device=device),
        nothing,
        nothing,
    )


def embed_images(
    module: nn.Module, images: PackedImages, dtype: torch.dtype
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Returns the embeddings `[N, H]` of the tokens that show images, and those that are added to the hidden
    states of the first layers, layer by layer.

    A frozen tower keeps nothing for the backward pass. Ranks that cut the pack's hidden states all have the
    whole tower, and embed all images: each has the gradient of its own tokens, so gradients are added up.
    """
    trained = any(parameter.requires_grad for parameter in module.parameters())
    with torch.set_grad_enabled(torch.is_grad_enabled() and trained):
        embeddings = all_embeddings(module, images.patches.to(dtype), images.grids)
        if images.group is not None:
            embeddings = [SumGradients.apply(level, images.group) for level in embeddings]
    shown = [level[images.embeddings] for level in embeddings]
    return shown[0], shown[1:]


def show_images(hidden: torch.Tensor, embeddings: torch.Tensor, images: PackedImages) -> torch.Tensor:
    """Returns hidden states `[1, T', H]` with these embeddings `[N, H]` at the tokens that show images."""
    extended, places = _with_places(hidden, images)
    return extended.index_copy(1, places, embeddings.to(hidden.dtype)[None])[:, : hidden.shape[1]]


def add_to_images(hidden: torch.Tensor, embeddings: torch.Tensor, images: PackedImages) -> torch.Tensor:
    """Returns hidden states `[1, T', H]` plus these embeddings `[N, H]` at the tokens that show images."""
    extended, places = _with_places(hidden, images)
    return extended.index_add(1, places, embeddings.to(hidden.dtype)[None])[:, : hidden.shape[1]]


def _with_places(hidden: torch.Tensor, images: PackedImages) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns hidden states, and where in them the N tokens are that show images.

    If other ranks have some of the tokens, these get one more row. To leave them out instead, the host would
    have to wait for the device, which knows their number.
    """
    if images.group is None:
        return hidden, images.tokens
    length = hidden.shape[1]
    places = images.tokens - length * dist.get_rank(images.group)
    is_own = (places >= 0) & (places < length)
    spare_row = hidden.new_zeros(1, 1, hidden.shape[2])
    return torch.cat((hidden, spare_row), dim=1), places.where(is_own, length)

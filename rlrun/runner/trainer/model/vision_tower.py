"""The vision tower: transformers' own module, sharded by its blocks, within rlrun's decoder.

patches ─▶ tower ─▶ embeddings, which replace those of the placeholders
              └───▶ for Qwen3-VL, embeddings that are added to the hidden states after the first layers
"""

from dataclasses import dataclass

import torch
from torch import nn

from rlrun.models.vision import VisionTower, all_embeddings


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

    A frozen tower keeps nothing for the backward pass.
    """
    trained = any(parameter.requires_grad for parameter in module.parameters())
    with torch.set_grad_enabled(torch.is_grad_enabled() and trained):
        embeddings = all_embeddings(module, images.patches.to(dtype), images.grids)
    shown = [level[images.embeddings] for level in embeddings]
    return shown[0], shown[1:]


def show_images(hidden: torch.Tensor, embeddings: torch.Tensor, images: PackedImages) -> torch.Tensor:
    """Returns hidden states `[1, T, H]` with these embeddings at the tokens that show images."""
    return hidden.index_copy(1, images.tokens, embeddings.to(hidden.dtype)[None])

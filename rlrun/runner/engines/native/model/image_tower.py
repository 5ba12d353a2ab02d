"""The images of prompts: the vision tower, its embeddings by image, and how prompts show them.

patches ─▶ embeddings, kept by the image's digest ─▶ at the placeholders of a pass ─▶ first layers (Qwen3-VL)
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from rlrun.models.vision import (
    Grid,
    VisionTower,
    all_embeddings,
    build_tower,
    fill_tower_buffers,
    image_positions,
)
from rlrun.runner.contracts.carriers import ImagePatches
from rlrun.runner.engines.native.model.device_copies import to_device
from rlrun.runner.weights.carriers.disk.folder_tensors import FolderTensors

CACHE_BYTES = 256 << 20
"""Most bytes of embeddings that are kept."""


@dataclass(frozen=True, slots=True, eq=False)
class PromptImages:
    """The images of a prompt."""

    patches: tuple[ImagePatches, ...] = ()
    starts: tuple[int, ...] = ()
    """Index of each image's first placeholder among the prompt's tokens."""
    lag: int = 0
    """By how much the positions of text behind the images are smaller than its indices."""

    @property
    def key(self) -> tuple[tuple[str, Grid], ...]:
        """Identifies the images: prompts may only share their keys and values if these are equal, too."""
        return tuple((image.digest, image.grid) for image in self.patches)

    @property
    def grids(self) -> list[Grid]:
        """Patches of each image in time, height and width."""
        return [image.grid for image in self.patches]


NO_IMAGES = PromptImages()


def place_images(patches: Sequence[ImagePatches], starts: Sequence[int], tower: VisionTower) -> PromptImages:
    """Returns the images of a prompt whose placeholders begin at `starts`."""
    lag = sum(tower.num_tokens(image.grid) - max(image.grid[1:]) // tower.merge for image in patches)
    return PromptImages(tuple(patches), tuple(starts), lag)


class ShownImages(NamedTuple):
    """The images of a pass over packed prompts."""

    tokens: torch.Tensor
    """`[N]` int64: the tokens that show images."""
    embeddings: torch.Tensor
    """`[1 + L, N, H]`: what they show, and what is added to them after each of the first L layers."""
    positions: NDArray[np.int64]
    """`[3, T]` positions of all tokens in time, height and width."""


class ImageTower:
    """A vision tower that is loaded with the first image, and the embeddings of the latest images."""

    def __init__(
        self, tower: VisionTower, folder: str | Path, dtype: torch.dtype, device: torch.device
    ) -> None:
        """`folder`: the model folder, which has the tower's weights until an update brings others."""
        self.tower = tower
        self._folder, self._dtype, self._device = folder, dtype, device
        self._module: nn.Module | None = None
        self._cache: OrderedDict[tuple[str, Grid], torch.Tensor] = OrderedDict()
        self._bytes = 0

    def load(self) -> None:
        """Loads the weights of the model folder, unless there are weights already.

        Raises ValueError if the folder lacks a tensor or has one of another shape.
        """
        if self._module is None:
            folder = FolderTensors(self._folder)
            folder.check(self._shapes())
            self._replace(folder.present(self._shapes()))

    @property
    def names(self) -> list[str]:
        """The names of its tensors in the model folder."""
        return list(self._shapes())

    def update(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Takes the tower's weights from an update, if it has them, and forgets all embeddings."""
        if next(iter(self._shapes())) in tensors:
            self._replace(tensors)

    def release(self) -> None:
        """Frees the weights and the embeddings; the next image loads the folder's weights again."""
        self._module = None
        self._forget()

    def show(self, prompts: Sequence[PromptImages], lengths: Sequence[int], size: int) -> ShownImages:
        """Returns the images of packed prompts of these lengths; the pass has `size` tokens."""
        tokens, embeddings = [], []
        positions = np.zeros((3, size), np.int64)
        for prompt, length, end in zip(prompts, lengths, accumulate(lengths), strict=True):
            positions[:, end - length : end] = image_positions(
                length, prompt.starts, prompt.grids, self.tower.merge
            )
            for image, start in zip(prompt.patches, prompt.starts, strict=True):
                shown = self._embeddings(image)
                first = end - length + start
                tokens.append(np.arange(first, first + shown.shape[1]))
                embeddings.append(shown)
        [indices] = to_device([np.concatenate(tokens)], self._device)
        return ShownImages(indices, torch.cat(embeddings, 1), positions)

    def _embeddings(self, image: ImagePatches) -> torch.Tensor:
        """Returns `[1 + L, tokens, H]` of an image, computed alone so that it never depends on others."""
        key = image.digest, image.grid
        if key in self._cache:
            self._cache.move_to_end(key)
            return self._cache[key]
        self.load()
        assert self._module is not None
        patches = torch.from_numpy(image.values).to(self._device, self._dtype)
        grids = torch.tensor([image.grid], device=self._device)
        embeddings = torch.stack(all_embeddings(self._module, patches, grids))
        self._cache[key] = embeddings
        self._bytes += embeddings.nbytes
        while self._bytes > CACHE_BYTES and len(self._cache) > 1:
            self._bytes -= self._cache.popitem(last=False)[1].nbytes
        return embeddings

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        return {f"{self.tower.prefix}{name}": shape for name, shape in self.tower.tensors()}

    def _replace(self, tensors: Mapping[str, torch.Tensor]) -> None:
        module = self._module
        if module is None:
            module = build_tower(self.tower, self._dtype).to_empty(device=self._device)
            fill_tower_buffers(module, self._device)
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                parameter.copy_(tensors[f"{self.tower.prefix}{name}"])
        self._module = module.requires_grad_(False).eval()
        self._forget()

    def _forget(self) -> None:
        self._cache.clear()
        self._bytes = 0

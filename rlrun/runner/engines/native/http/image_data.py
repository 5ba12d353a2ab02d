"""The images of requests: `image_data` of /generate, as SGLang takes it, and the images of chats.

`input_ids` have one placeholder for each image. The engine expands them to one for each of the image's
tokens, and counts these in `prompt_tokens`.
"""

from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlrun.models.vision import VisionTower
from rlrun.plugins.images import Image, PlacedImage, image_of_url
from rlrun.runner.contracts.placeholders import image_starts
from rlrun.runner.engines.native.engine.requests import SampleInProgress
from rlrun.runner.engines.native.model.image_tower import NO_IMAGES, PromptImages, place_images
from rlrun.runner.prompts.image_processor import ModelImages


class ImageReader:
    """Reads the images of requests, and prepares them with the model's processor."""

    def __init__(self, folder: Path, tower: VisionTower | None) -> None:
        """`tower`: the model's vision tower; None: requests must not have images."""
        self._tower = tower
        self._images = ModelImages(folder)

    def attach(self, samples: Sequence[SampleInProgress], body: Mapping[str, Any]) -> None:
        """Gives the samples of a request their images, and expands the placeholders in their prompts.

        Takes long: call it outside of the event loop. Raises ValueError for images that cannot be read, and
        for prompts that do not have one placeholder for each image.
        """
        # the samples of a prompt share its array
        by_prompt = [list(images) for _, images in groupby(samples, lambda sample: id(sample.prompt))]
        several = isinstance(body["input_ids"][0], list)
        data = body["image_data"] if several else [body["image_data"]]
        if not isinstance(data, list) or len(data) != len(by_prompt):
            raise ValueError(f"image_data must be a list of {len(by_prompt)} values, one for each prompt")
        for images, raw in zip(by_prompt, data, strict=True):
            if raw:
                self._attach(images, raw if isinstance(raw, list) else [raw])

    def place(self, images: Sequence[Image]) -> tuple[PlacedImage, ...]:
        """Returns images with their numbers of tokens. Raises ValueError if the model reads no images."""
        if images and self._tower is None:
            raise ValueError("the request has images, and this model reads none: remove them")
        return self._images.place(images)

    def locate(self, prompt: NDArray[np.int32], placed: Sequence[PlacedImage]) -> PromptImages:
        """Returns the images of a prompt that has one placeholder for each of their tokens.

        Takes long: call it outside of the event loop.
        """
        if self._tower is None or not placed:
            return NO_IMAGES
        starts = image_starts(prompt, placed, np.ones(len(prompt), np.bool_))
        patches = self._images.patches(placed)
        return place_images([patches[position.image.digest] for position in placed], starts, self._tower)

    def _attach(self, samples: Sequence[SampleInProgress], encoded: list[Any]) -> None:
        placed = self.place([image_of_url(_url(text)) for text in encoded])
        prompt = self._images.expand(samples[0].prompt, placed)
        images = self.locate(prompt, placed)
        for sample in samples:
            sample.prompt, sample.images = prompt, images


def _url(text: Any) -> str:
    """Returns a data URL; `text` is one, or base64. Paths and other URLs are refused where it is read."""
    if not isinstance(text, str):
        raise ValueError("image_data must hold data URLs or base64, as text")
    return text if ":" in text[:8] else f"data:image/png;base64,{text}"

"""The image processor of a model: how many tokens an image becomes, and the patches that the tower reads."""

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlrun.models.error_text import first_line
from rlrun.models.json_files import read_json_object
from rlrun.plugins.images import Image, PlacedImage
from rlrun.runner.contracts.carriers import ImagePatches
from rlrun.runner.contracts.placeholders import expand

PROCESSOR_FILE = "preprocessor_config.json"
"""The file of a model folder that describes the image processor."""
_THREADS = 8
"""Images that are prepared at once; one of Full HD takes half a second, mostly outside of Python's lock."""


class ImageProcessor:
    """The image processor of a Hugging Face model folder, in its version for Pillow.

    The version for torchvision rounds differently when it resizes, so engines must use this one too.
    """

    def __init__(self, folder: Path) -> None:
        """Raises ValueError if the folder has no processor, or one of another kind than Qwen's."""
        from transformers import AutoImageProcessor  # its import takes seconds and loads torch

        config = read_json_object(folder / "config.json")
        if not isinstance(placeholder := config.get("image_token_id"), int):
            raise ValueError(f"{folder}/config.json has no image_token_id, so the model reads no images")
        if not (folder / PROCESSOR_FILE).is_file():
            raise ValueError(f"{folder} has no {PROCESSOR_FILE}, which describes the model's image processor")
        try:
            self._processor: Any = AutoImageProcessor.from_pretrained(
                folder, backend="pil", trust_remote_code=False
            )
        except Exception as error:  # the boundary to other people's files, which fail to load in many ways
            raise ValueError(f"{folder}/{PROCESSOR_FILE} cannot be loaded: {first_line(error)}") from error
        if not hasattr(self._processor, "get_number_of_image_patches"):
            raise ValueError(
                f"{folder} has a {type(self._processor).__name__}, and rlrun knows how many tokens an image "
                "takes for the processors of Qwen2.5-VL, Qwen3-VL and Qwen3.5"
            )
        self.placeholder: int = placeholder
        """The token id of an image's placeholders."""

    def place(self, images: Sequence[Image]) -> tuple[PlacedImage, ...]:
        """Returns the images with their numbers of tokens, from their sizes alone.

        Raises ValueError for an image that the processor refuses, such as one of 1000 × 2 pixels.
        """
        return tuple(PlacedImage(image, self.placeholder, self._num_tokens(image)) for image in images)

    def patches(self, placed: PlacedImage) -> ImagePatches:
        """Returns what the vision tower reads of an image."""
        from PIL import Image as pillow

        with pillow.open(BytesIO(placed.image.data), formats=["PNG"]) as picture:
            outputs = self._processor(images=[picture], return_tensors="np")
        time, height, width = (int(number) for number in outputs["image_grid_thw"][0])
        values = np.ascontiguousarray(outputs["pixel_values"], dtype=np.float32)
        return ImagePatches(values, (time, height, width), placed.image.digest, placed)

    def _num_tokens(self, image: Image) -> int:
        patches: int = self._processor.get_number_of_image_patches(image.height, image.width, {})
        return patches // int(self._processor.merge_size) ** 2


class ModelImages:
    """What a model makes of images; its processor is loaded when the first image arrives."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        config = folder / "config.json"
        placeholder = read_json_object(config).get("image_token_id") if config.is_file() else None
        self.placeholder: int | None = placeholder
        """The token id of an image's placeholders; None: the model reads no images."""

    @cached_property
    def processor(self) -> ImageProcessor:
        """Returns the processor. Raises ValueError if the model has none."""
        return ImageProcessor(self._folder)

    def place(self, images: Sequence[Image]) -> tuple[PlacedImage, ...]:
        """Returns the images with their numbers of tokens; ValueError as `ImageProcessor` raises it."""
        return self.processor.place(images) if images else ()

    def expand(self, tokens: NDArray[np.int32], images: Sequence[PlacedImage]) -> NDArray[np.int32]:
        """Returns rendered tokens with one placeholder for each token of an image.

        Raises ValueError if the tokens do not have one placeholder for each image, as where a chat template
        leaves an image out, or a text without a template spells the placeholder.
        """
        return expand(tokens, images, self.placeholder)

    def patches(self, images: Iterable[PlacedImage]) -> Mapping[str, ImagePatches]:
        """Returns the patches of each image by its digest. Takes long: call it outside of the event loop."""
        unique = {placed.image.digest: placed for placed in images}
        if not unique:
            return {}
        with ThreadPoolExecutor(min(_THREADS, len(unique)), thread_name_prefix="images") as threads:
            patches = threads.map(self.processor.patches, unique.values())
            return dict(zip(unique, patches, strict=True))

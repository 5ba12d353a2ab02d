"""Stores the images of saved samples once each, by their digests, beside the files of samples.

sample ──▶ {"prompt": [[digest, 391]], …} in its line    and    rollouts/images/<digest>.png
"""

import base64
import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rlrun.plugins.images import Image, PlacedImage
from rlrun.plugins.types import Group, Sample
from rlrun.runner.host.atomic_files import write_bytes

FOLDER = "images"
"""The folder of the images, in `rollouts/`."""
_DIGEST = re.compile(r"[0-9a-f]{64}")
_SIZE = slice(16, 24)
"""Width and height in the bytes of a PNG."""

FindImage = Callable[[str], Image]
"""Returns the image with a digest; raises ValueError if it is missing or damaged."""


def image_fields(sample: Sample) -> dict[str, Any]:
    """Returns the images in a sample's record: digests, and with how many placeholders each; else nothing."""
    prompt, response = sample.prompt.images, sample.images
    if not sample.prompt.row.images and not prompt and not response:
        return {}
    placeholder = next((placed.placeholder for placed in (*prompt, *response)), None)
    fields = {
        "row": [image.digest for image in sample.prompt.row.images],
        "prompt": [[placed.image.digest, placed.num_tokens] for placed in prompt],
        "response": [[placed.image.digest, placed.num_tokens] for placed in response],
        "placeholder": placeholder,
    }
    return {"images": fields}


def row_images(record: Mapping[str, Any], find: FindImage) -> tuple[Image, ...]:
    """Returns the images of a row from a sample's record. Raises ValueError if it does not hold digests."""
    digests = record.get("images", {}).get("row", ())
    if not isinstance(digests, list | tuple) or not all(isinstance(digest, str) for digest in digests):
        raise ValueError("images.row is not a list of the digests of images")
    return tuple(map(find, digests))


def placed_images(record: Mapping[str, Any], part: str, find: FindImage) -> tuple[PlacedImage, ...]:
    """Returns the images of a sample's `prompt` or `response` from its record."""
    fields = record.get("images", {})
    return tuple(
        PlacedImage(find(digest), fields["placeholder"], num_tokens)
        for digest, num_tokens in fields.get(part, ())
    )


def write_images(rollouts: Path, samples: Iterable[Sample]) -> None:
    """Writes the images of samples that `rollouts/` does not have yet."""
    folder = rollouts / FOLDER
    for image in _images(samples).values():
        path = folder / f"{image.digest}.png"
        if not path.is_file():
            folder.mkdir(exist_ok=True)
            write_bytes(path, image.data)


def find_in_folder(rollouts: Path) -> FindImage:
    """Returns a function that reads the images of a run's `rollouts/`, each once."""
    images: dict[str, Image] = {}

    def find(digest: str) -> Image:
        if digest not in images:
            if not _DIGEST.fullmatch(digest):
                raise ValueError(f"{digest!r} is not the digest of an image")
            path = rollouts / FOLDER / f"{digest}.png"
            if not path.is_file():
                raise ValueError(f"the image {path} is missing")
            images[digest] = _stored(path.read_bytes(), digest)
        return images[digest]

    return find


def encode_images(groups: Sequence[Group]) -> dict[str, str]:
    """Returns the images of groups as JSON values by digest, for checkpoints."""
    samples = (sample for group in groups for sample in group.samples)
    return {digest: base64.b64encode(image.data).decode() for digest, image in _images(samples).items()}


def find_encoded(encoded: Mapping[str, str]) -> FindImage:
    """Returns a function that decodes the images of `encode_images`, each once."""
    images: dict[str, Image] = {}

    def find(digest: str) -> Image:
        if digest not in images:
            images[digest] = _stored(base64.b64decode(encoded[digest]), digest)
        return images[digest]

    return find


def _images(samples: Iterable[Sample]) -> dict[str, Image]:
    images: dict[str, Image] = {}
    for sample in samples:
        placed = (*sample.prompt.images, *sample.images)
        images |= {image.digest: image for image in (*sample.prompt.row.images, *(p.image for p in placed))}
    return images


def _stored(data: bytes, digest: str) -> Image:
    if hashlib.sha256(data).hexdigest() != digest:
        raise ValueError(f"the image {digest}.png was changed or is damaged")
    width, height = (int.from_bytes(data[_SIZE][at : at + 4], "big") for at in (0, 4))
    return Image(data, digest, width, height)

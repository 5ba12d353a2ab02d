"""The images of rows and samples: encoded files, checked where they arrive, and their numbers of tokens.

    file, bytes or data URL ──▶ checked_image ──▶ Image ──▶ (by the framework) PlacedImage in a Prompt

Every image is decoded once and stored as an RGB PNG. Trainer and engines therefore see the same pixels, no
matter how their libraries decode JPEG, rotate photos or treat transparency.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import io
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

MAX_BYTES = 64 * 2**20
"""Largest encoded image that is read."""
MAX_PIXELS = 2**25
"""Largest number of pixels that is decoded, 5792 × 5792. No processor of a supported model keeps more than
2**24, and 20 bytes per pixel are needed for a moment."""
_ALWAYS_DECODED = 2**24
_MAX_PIXELS_PER_BYTE = 64
"""Of images with more than `_ALWAYS_DECODED` pixels. Photographs have 10: a small file with so many pixels is
one colour, and was made to fill the memory."""
_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")
"""Formats that are decoded. Pillow knows many more, some of which run other programs (EPS)."""
_DATA_URL = re.compile(r"data:image/[\w.+-]+;base64,", re.IGNORECASE)
_ORIENTATION = 0x0112
"""The EXIF tag of how a camera was held."""


@dataclass(frozen=True, slots=True)
class Image:
    """An image that was decoded as a whole when it was read.

    Example: `Image(data=b"\\x89PNG…", digest="9f86d081…", width=640, height=480)`
    """

    data: bytes = field(repr=False)
    """The image as an RGB PNG file."""
    digest: str
    """SHA-256 of `data`, as hexadecimal digits; images with the same digest are the same image."""
    width: int
    """Width in pixels."""
    height: int
    """Height in pixels."""

    def data_url(self) -> str:
        """Returns the image as a `data:` URL, as OpenAI's chat messages have it."""
        return f"data:image/png;base64,{base64.b64encode(self.data).decode()}"


@dataclass(frozen=True, slots=True)
class PlacedImage:
    """An image whose placeholders are in a sequence of tokens: one placeholder for each of its tokens.

    Example: `PlacedImage(image, placeholder=151655, num_tokens=391)`
    """

    image: Image
    placeholder: int
    """The token id of the placeholders."""
    num_tokens: int
    """How many consecutive placeholders stand for the image."""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result of a tool that returns images."""

    text: str
    images: tuple[Image, ...] = ()
    """Images that the policy sees after the text."""


@dataclass(frozen=True, slots=True)
class PixelLimits:
    """The numbers of pixels to which images are scaled before the model's processor sees them."""

    most: int | None = None
    """Larger images are scaled down to this many pixels; None: none are."""
    least: int | None = None
    """Smaller images are scaled up to this many pixels; None: none are."""


class UnusableImage(ValueError):
    """Raised for an image that is not damaged, and that rlrun does not read; the message says why."""


def checked_image(data: bytes, limits: PixelLimits = PixelLimits()) -> Image:
    """Returns the image of an encoded file, scaled to `limits`.

    Raises ValueError for data that is not an image, is damaged, or is too large.
    """
    from PIL import Image as pillow  # needs the run extra; reading a spec does not need it
    from PIL import UnidentifiedImageError

    if not data:
        raise ValueError("the image has 0 bytes")
    if len(data) > MAX_BYTES:
        raise ValueError(f"the image has {len(data)} bytes; at most {MAX_BYTES} are read: make it smaller")
    try:
        with pillow.open(io.BytesIO(data), formats=_FORMATS) as picture:
            _check_size(picture, len(data))
            picture.load()
            if _is_canonical(picture, limits):
                return _image(data, picture)
            return _encoded(_scaled(_as_rgb(picture), limits))
    except UnidentifiedImageError:
        raise ValueError(f"these {len(data)} bytes are not an image in {', '.join(_FORMATS)}") from None
    except pillow.DecompressionBombError as error:
        raise ValueError(f"the image is too large: {error}") from None
    except UnusableImage:
        raise
    except Exception as error:  # a boundary: for a damaged file Pillow's decoders may raise anything
        raise ValueError(f"the image cannot be decoded: {error}") from error


def image_of_url(url: str, limits: PixelLimits = PixelLimits()) -> Image:
    """Returns the image of a `data:` URL. Raises ValueError for other URLs, and as `checked_image` does."""
    match = _DATA_URL.match(url)
    if match is None:
        raise ValueError(
            f"an image's URL must begin with data:image/…;base64, and this one begins with {url[:24]!r}: "
            "rlrun does not download images that conversations name"
        )
    if (len(url) - match.end()) * 3 // 4 > MAX_BYTES:
        raise ValueError(f"the image has more than the {MAX_BYTES} bytes that are read: make it smaller")
    try:
        return checked_image(base64.b64decode(url[match.end() :], validate=True), limits)
    except binascii.Error as error:
        raise ValueError(f"the image's data URL is not base64: {error}") from None


def _check_size(picture: Picture, size: int) -> None:
    """Raises ValueError, before any pixel is decoded, for an image with too many of them or without any."""
    pixels = picture.width * picture.height
    if not pixels:
        raise UnusableImage(f"the image has {picture.width} × {picture.height} pixels")
    most = min(MAX_PIXELS, max(_ALWAYS_DECODED, _MAX_PIXELS_PER_BYTE * size))
    if pixels > most:
        raise UnusableImage(
            f"the image has {picture.width} × {picture.height} pixels; at most {most} are decoded of a file "
            f"of {size} bytes: scale it down"
        )


def _is_canonical(picture: Picture, limits: PixelLimits) -> bool:
    """Returns whether a file can stay as it is: every library decodes it to the same pixels."""
    if picture.format != "PNG" or picture.mode != "RGB" or "transparency" in picture.info:
        return False  # n_frames reads all frames of files in some other formats
    is_single = getattr(picture, "n_frames", 1) == 1
    return is_single and _scale(picture, limits) is None and picture.getexif().get(_ORIENTATION, 1) == 1


def _as_rgb(picture: Picture) -> Picture:
    """Returns the first frame, upright, with transparent parts in white."""
    from PIL import Image as pillow
    from PIL import ImageOps

    picture = ImageOps.exif_transpose(picture)
    if picture.mode in ("I", "F") or picture.mode.startswith("I;"):  # 16 bits: convert() would clip to 255
        low, high = picture.getextrema()
        if not (
            isinstance(low, (int, float)) and isinstance(high, (int, float)) and 0 <= low <= high <= 65535
        ):
            raise UnusableImage(f"the image's values are from {low} to {high}; at most 16 bits are supported")
        return picture.convert("I").point(lambda value: value / 257).convert("L").convert("RGB")
    if picture.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in picture.info:
        upper = picture.convert("RGBA")
        below = pillow.new("RGBA", upper.size, "white")
        return pillow.alpha_composite(below, upper).convert("RGB")
    return picture.convert("RGB")


def _scale(picture: Picture, limits: PixelLimits) -> float | None:
    """Returns the factor for both sides that brings an image within the limits; None if it is within them."""
    pixels = picture.width * picture.height
    for limit, exceeds in (
        (limits.most, limits.most and pixels > limits.most),
        (limits.least, limits.least and pixels < limits.least),
    ):
        if limit and exceeds:
            return float((limit / pixels) ** 0.5)
    return None


def _scaled(picture: Picture, limits: PixelLimits) -> Picture:
    factor = _scale(picture, limits)
    if factor is None:
        return picture
    from PIL import Image as pillow

    size = (max(1, round(picture.width * factor)), max(1, round(picture.height * factor)))
    return picture.resize(size, pillow.Resampling.BICUBIC)


def _encoded(picture: Picture) -> Image:
    file = io.BytesIO()
    picture.save(file, "PNG", compress_level=1)
    return _image(file.getvalue(), picture)


def _image(data: bytes, picture: Picture) -> Image:
    return Image(data, hashlib.sha256(data).hexdigest(), picture.width, picture.height)

"""Images are checked and normalised where they arrive."""

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from rlrun.plugins.images import PixelLimits, checked_image, image_of_url
from tests.pictures import picture


def pixels(data: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(data)))


def encoded(image: Image.Image, kind: str = "PNG", **save: object) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **save)
    return file.getvalue()


def bomb(width: int = 60_000, height: int = 60_000) -> bytes:
    """A PNG of a few hundred bytes that says that it has 3.6 billion pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = zlib.compress(bytes(1000))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def test_an_rgb_png_stays_as_it_is_and_has_its_digest() -> None:
    image = checked_image(picture())
    assert (image.data, image.width, image.height) == (picture(), 56, 28)
    assert image.digest != checked_image(picture(seed=1)).digest
    assert image_of_url(image.data_url()) == image


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "0 bytes"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "not an image in PNG, JPEG"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "not an image"),
        (picture()[:-200], "cannot be decoded"),
        (picture(format="JPEG")[:-300], "cannot be decoded"),
        (picture()[:60] + bytes(40) + picture()[100:], "cannot be decoded"),
        (bomb(), "the image is too large"),
        (bomb(5_000, 5_000), "5000 × 5000 pixels; at most 16777216 are decoded of a file of 74 bytes"),
    ],
    ids=["empty", "svg", "eps", "torn png", "torn jpeg", "damaged", "bomb", "small bomb"],
)
def test_what_is_not_a_usable_image_is_refused(data: bytes, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        checked_image(data)


def test_all_kinds_become_rgb_pngs_with_the_pixels_that_people_see() -> None:
    grey = Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8))
    assert pixels(checked_image(encoded(grey)).data)[1, 0].tolist() == [8, 8, 8]
    clear = Image.new("RGBA", (4, 4), (255, 0, 0, 0))
    assert pixels(checked_image(encoded(clear)).data)[0, 0].tolist() == [255, 255, 255]
    deep = Image.fromarray(np.full((4, 4), 65535, np.uint16))
    assert pixels(checked_image(encoded(deep)).data)[0, 0].tolist() == [255, 255, 255]
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was held upright
    turned = checked_image(encoded(Image.new("RGB", (8, 4)), "JPEG", exif=exif))
    assert (turned.width, turned.height) == (4, 8)
    first = Image.new("RGB", (4, 4), "red")
    film = encoded(first, "GIF", save_all=True, append_images=[Image.new("RGB", (4, 4), "blue")])
    assert pixels(checked_image(film).data)[0, 0].tolist() == [255, 0, 0]


def test_images_are_scaled_to_the_limits() -> None:
    smaller = checked_image(picture(100, 50), PixelLimits(most=1250))
    assert (smaller.width, smaller.height) == (50, 25)
    larger = checked_image(picture(10, 5), PixelLimits(least=5000))
    assert (larger.width, larger.height) == (100, 50)


@pytest.mark.parametrize("url", ["http://127.0.0.1/a.png", "file:///etc/passwd", "data:text/plain;base64,AA"])
def test_only_data_urls_are_images_of_conversations(url: str) -> None:
    with pytest.raises(ValueError, match="must begin with data:image"):
        image_of_url(url)


def test_a_data_url_that_is_not_base64_is_refused() -> None:
    with pytest.raises(ValueError, match="not base64"):
        image_of_url("data:image/png;base64,???")

"""Reads the images of a row: files, bytes, tables of Hugging Face's image columns, data URLs and addresses.

"images": ["a.png", {"bytes": …, "path": …}, "data:image/png;base64,…"]  ──▶  (Image, Image, Image)
"""

import re
import time
from collections.abc import Mapping, Sequence
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, build_opener

from pydantic import Field

from rlrun.models.foreign_files import read_bytes
from rlrun.plugins.images import MAX_BYTES, Image, PixelLimits, checked_image, image_of_url
from rlrun.specs.paths import SpecPath
from rlrun.specs.sections.section import Section

_ADDRESS = re.compile(r"([a-z][a-z0-9+.-]*)://", re.IGNORECASE)
_SECONDS = 30.0
"""The longest that one download may wait for the server."""
_MOST_SECONDS = 120.0
"""The longest that one download may take."""
_PART_BYTES = 1 << 20


class ImageKeys(Section):
    """Where a row's images are, and which files and addresses it may name."""

    images_key: str | None = None
    """Key of a row's images: one image, or a list of them, each as the path of a file, the bytes of one, a
    table with `bytes` or `path` (an image column of Hugging Face), or a `data:` URL. A row without this key
    has no images. None: rows have no images but those in parts of messages."""
    image_marker: str = Field(default="<image>", min_length=1)
    """Text in a prompt that stands for the next image of `images_key`. Parts of type `image` in messages do
    the same. If a prompt names no image, all of them are put before the text of its first user message."""
    image_folder: SpecPath | None = None
    """Folder that the paths of images are relative to; images outside of it are refused. None: the folder of
    the data file, or the dataset's folder."""
    image_hosts: tuple[str, ...] = ()
    """Hosts from which images may be downloaded, such as `["images.example.org"]`, each time that a row is
    read. Addresses of other hosts are refused."""
    image_max_pixels: int | None = Field(default=None, ge=1)
    """Larger images are scaled down to this many pixels. None: only the model's processor scales them."""
    image_min_pixels: int | None = Field(default=None, ge=1)
    """Smaller images are scaled up to this many pixels. None: only the model's processor scales them."""

    @property
    def pixel_limits(self) -> PixelLimits:
        """The numbers of pixels to which images are scaled."""
        return PixelLimits(self.image_max_pixels, self.image_min_pixels)


def read_image(item: Any, keys: ImageKeys, root: Path | None) -> Image:
    """Returns an image in any of its forms. `root`: the folder of paths; None: paths are refused.

    Raises ValueError or OSError for an image that cannot be read.
    """
    if isinstance(item, Mapping):
        return read_image(_of_table(item), keys, root)
    if isinstance(item, (bytes, bytearray)):
        return checked_image(bytes(item), keys.pixel_limits)
    if not isinstance(item, str) or not item:
        raise ValueError(f"is neither a path, bytes, a table with bytes or path, nor a URL: {_shown(item)}")
    if item[:5].lower() == "data:":
        return image_of_url(item, keys.pixel_limits)
    address = _ADDRESS.match(item)
    if address is None:
        return checked_image(_file(item, root), keys.pixel_limits)
    if address[1].lower() not in ("http", "https"):
        raise ValueError(f"{item[:80]!r} is an address of kind {address[1]!r}; use paths, https or data URLs")
    return checked_image(_download(item, keys.image_hosts), keys.pixel_limits)


def _of_table(table: Mapping[str, Any]) -> Any:
    """Returns the content of a table as image columns and chat messages have it; bytes win over a path."""
    for key in ("bytes", "path", "image", "url"):
        if table.get(key) is not None:
            return table[key]
    inner = table.get("image_url")
    if isinstance(inner, Mapping) and inner.get("url") is not None:
        return inner["url"]
    raise ValueError(
        f"a table of an image has bytes or path, and this one has {', '.join(table) or 'no keys'}"
    )


def _file(path: str, root: Path | None) -> bytes:
    """Returns the content of a file within `root`. Links are followed before the check."""
    if root is None:
        raise ValueError(f"{path!r} is a path: set image_folder to the folder that holds the images")
    if "\0" in path:
        raise ValueError("the path has a null character")
    top, file = root.resolve(), (root / path).resolve()
    if not file.is_relative_to(top):
        raise ValueError(f"{path!r} is outside of {top}; set image_folder to a folder that holds all images")
    if not file.is_file():
        raise ValueError(f"there is no file {file}")
    if (size := file.stat().st_size) > MAX_BYTES:
        raise ValueError(f"{path!r} has {size} bytes; at most {MAX_BYTES} are read: make it smaller")
    return read_bytes(file, MAX_BYTES)


class _SameHosts(HTTPRedirectHandler):
    """Follows redirects to allowed hosts only."""

    def __init__(self, hosts: Sequence[str]) -> None:
        self._hosts = hosts

    def redirect_request(self, *request: Any) -> Any:
        """Raises ValueError for a redirect to another host; the last argument is the new address."""
        _check_host(request[-1], self._hosts)
        return super().redirect_request(*request)


def _download(url: str, hosts: Sequence[str]) -> bytes:
    _check_host(url, hosts)
    deadline = time.monotonic() + _MOST_SECONDS
    data = bytearray()
    try:
        with build_opener(_SameHosts(hosts)).open(url, timeout=_SECONDS) as answer:
            while len(data) <= MAX_BYTES and (part := answer.read1(_PART_BYTES)):
                data += part
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{url} did not send the image within {_MOST_SECONDS:g} s")
    except HTTPException as error:
        raise ValueError(f"{url[:80]!r} cannot be downloaded: {error!r}") from None
    return bytes(data)


def _check_host(url: str, hosts: Sequence[str]) -> None:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or parts.hostname not in hosts:
        raise ValueError(
            f"images are downloaded only from hosts that image_hosts names, and not from {parts.hostname!r}: "
            "store the images as files, or add the host"
        )


def _shown(item: Any) -> str:
    text = repr(item)
    return f"{type(item).__name__} {text if len(text) <= 40 else text[:40] + '…'}"

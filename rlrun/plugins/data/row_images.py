"""Reads the images of a row, and finds out at which positions of its messages the prompt names them.

"images": ["a.png", {"bytes": …, "path": …}, "data:image/png;base64,…"]  ──▶  (Image, Image, Image)

{"prompt": "Which is larger? <image><image>", "images": ["a.png", "b.png"]}
  ──▶  [text, image, image] in the message's content, and (Image, Image)
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
_MAX_SECONDS = 120.0
"""The longest that one download may take."""
_PART_BYTES = 1 << 20
Prompt = str | list[dict[str, Any]]


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
    deadline = time.monotonic() + _MAX_SECONDS
    data = bytearray()
    try:
        with build_opener(_SameHosts(hosts)).open(url, timeout=_SECONDS) as answer:
            while len(data) <= MAX_BYTES and (part := answer.read1(_PART_BYTES)):
                data += part
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{url} did not send the image within {_MAX_SECONDS:g} s")
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


def with_images(
    prompt: Prompt, values: Mapping[str, Any], keys: ImageKeys, folder: Path | None
) -> tuple[Prompt, tuple[Image, ...]]:
    """Returns a record's prompt, in which a part `{"type": "image"}` stands for each image, and the images.

    `folder`: that of the data, if it has one. A prompt without images is returned as it is. Raises ValueError
    for an image that cannot be used, and for a prompt that names more or fewer images than the record has.
    """
    column = _column(values, keys)
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    if keys.images_key is None and not any(_image_parts(message) for message in messages):
        return prompt, ()
    marked = [_marked(message, keys.image_marker) for message in messages] if keys.images_key else messages
    named = [part for message in marked for part in _image_parts(message)]
    if column and not any(len(part) == 1 for part in named):
        marked = _before_text(marked, len(column))
        named = [part for message in marked for part in _image_parts(message)]
    unnamed = sum(len(part) == 1 for part in named)
    if unnamed != len(column):
        raise ValueError(
            f"the prompt names {unnamed} images by {keys.image_marker!r} or parts of type 'image', and "
            f"{keys.images_key!r} has {len(column)}: name each image once"
        )
    if not named:
        return prompt, ()
    root, rest = Path(keys.image_folder) if keys.image_folder is not None else folder, iter(column)
    items = [next(rest) if len(part) == 1 else part["image"] for part in named]
    return [_bare(message) for message in marked], tuple(
        _numbered(number, item, keys, root) for number, item in enumerate(items, start=1)
    )


def _image_parts(message: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Returns the parts of a message that are images; those with an image of their own have it as `image`."""
    content = message.get("content")
    return [part for part in content if part["type"] == "image"] if isinstance(content, list) else []


def _column(values: Mapping[str, Any], keys: ImageKeys) -> list[Any]:
    value = None if keys.images_key is None else values.get(keys.images_key)
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _marked(message: dict[str, Any], marker: str) -> dict[str, Any]:
    """Returns a message in which each marker in a text is a part of type image."""
    content = message.get("content")
    texts = [{"type": "text", "text": content}] if isinstance(content, str) else content or []
    if not any(marker in part.get("text", "") for part in texts):
        return message
    parts: list[dict[str, Any]] = []
    for part in texts:
        pieces = part["text"].split(marker) if part["type"] == "text" else []
        parts += [] if pieces else [part]
        for number, piece in enumerate(pieces):
            parts += [{"type": "image"}] if number else []
            parts += [{"type": "text", "text": piece}] if piece else []
    return {**message, "content": parts}


def _before_text(messages: list[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    """Returns the messages with all images at the beginning of the first message of the user."""
    first = next((i for i, message in enumerate(messages) if message["role"] == "user"), None)
    if first is None:
        raise ValueError("the row has images, and its prompt has no message of the user to put them into")
    content = messages[first]["content"]
    texts = [{"type": "text", "text": content}] if isinstance(content, str) else list(content)
    changed = {**messages[first], "content": [{"type": "image"}] * count + texts}
    return [*messages[:first], changed, *messages[first + 1 :]]


def _bare(message: dict[str, Any]) -> dict[str, Any]:
    """Returns a message whose parts name images without holding them."""
    if not _image_parts(message):
        return message
    parts = [{"type": "image"} if part["type"] == "image" else part for part in message["content"]]
    return {**message, "content": parts}


def _numbered(number: int, item: Any, keys: ImageKeys, root: Path | None) -> Image:
    try:
        return read_image(item, keys, root)
    except (ValueError, OSError) as error:
        raise ValueError(f"image {number}: {error}") from error

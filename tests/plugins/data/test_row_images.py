"""Rows with images: where images come from, and which part of the prompt each of them belongs to."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlrun.plugins.data.jsonl import Jsonl, JsonlParams
from rlrun.plugins.images import checked_image
from rlrun.plugins.registry import build
from rlrun.plugins.types import Row
from tests.pictures import picture

RED, BLUE = picture(seed=1), picture(seed=2)
PART = {"type": "image"}


@pytest.fixture
def read(tmp_path: Path) -> Callable[..., Row]:
    """Reads one row of a JSONL file beside the images `red.png` and `blue.png`."""
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "red.png").write_bytes(RED)
    (folder / "blue.png").write_bytes(BLUE)
    (tmp_path / "secret.png").write_bytes(RED)
    (folder / "link.png").symlink_to(tmp_path / "secret.png")

    def read_row(values: dict[str, Any], **keys: Any) -> Row:
        (folder / "rows.jsonl").write_text(json.dumps(values))
        params = {"path": str(folder / "rows.jsonl"), "images_key": "images", **keys}
        return Jsonl(JsonlParams.model_validate(params))[0]

    return read_row


def digests(row: Row) -> list[str]:
    return [image.digest for image in row.images]


def test_markers_name_the_images_in_order(read: Callable[..., Row]) -> None:
    row = read({"prompt": "Is <image> like <image>?", "images": ["red.png", "blue.png"]})
    [message] = row.prompt
    texts = [{"type": "text", "text": text} for text in ("Is ", " like ", "?")]
    assert message["content"] == [texts[0], PART, texts[1], PART, texts[2]]  # type: ignore[index]
    assert digests(row) == [checked_image(RED).digest, checked_image(BLUE).digest]


def test_a_prompt_that_names_no_image_has_them_first(read: Callable[..., Row]) -> None:
    chat = [{"role": "system", "content": "Look."}, {"role": "user", "content": "What is it?"}]
    row = read({"prompt": chat, "images": "red.png"})
    assert row.prompt[1]["content"] == [PART, {"type": "text", "text": "What is it?"}]  # type: ignore[index]


def test_messages_may_hold_their_images(read: Callable[..., Row]) -> None:
    url = checked_image(RED).data_url()
    parts = [
        {"type": "text", "text": "Compare"},
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "image", "image": "blue.png", "text": None},
        {"type": "image"},
    ]
    row = read({"prompt": [{"role": "user", "content": parts}], "images": ["red.png"]})
    assert row.prompt[0]["content"] == [parts[0], PART, PART, PART]  # type: ignore[index]
    assert digests(row) == [checked_image(data).digest for data in (RED, BLUE, RED)]


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"prompt": "<image> <image>", "images": ["red.png"]}, "names 2 images .* 'images' has 1"),
        ({"prompt": "<image>", "images": []}, "names 1 images .* has 0"),
        ({"prompt": "a <image>", "images": ["red.png", "blue.png"]}, "names 1 images .* has 2"),
        ({"prompt": "q", "images": ["gone.png"]}, "image 1: there is no file .*gone.png"),
        ({"prompt": "q", "images": ["red.png", "../secret.png"]}, "image 2: .* is outside of"),
        ({"prompt": "q", "images": ["link.png"]}, "is outside of"),
        ({"prompt": "q", "images": ["/etc/passwd"]}, "is outside of"),
        ({"prompt": "q", "images": ["https://example.org/a.png"]}, "only from hosts that image_hosts names"),
        ({"prompt": "q", "images": ["file:///etc/passwd"]}, "address of kind 'file'"),
        ({"prompt": "q", "images": ["rows.jsonl"]}, "not an image"),
        ({"prompt": "q", "images": [7]}, "neither a path"),
        ({"prompt": "q", "images": [{"label": 3}]}, "bytes or path"),
        ({"prompt": "q", "images": ["red.png\0"]}, "null character"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_a_bad_image_names_its_row(read: Callable[..., Row], values: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=rf"rows.jsonl:1: .*{problem}"):
        read(values)


def test_allowed_folders_and_markers_are_keys(read: Callable[..., Row], tmp_path: Path) -> None:
    row = read(
        {"prompt": "[img]?", "images": ["secret.png"]}, image_folder=str(tmp_path), image_marker="[img]"
    )
    assert digests(row) == [checked_image(RED).digest]


def test_without_images_key_a_marker_is_text(read: Callable[..., Row]) -> None:
    row = read({"prompt": "What does <image> mean in HTML?"}, images_key=None)
    assert row.prompt == "What does <image> mean in HTML?"


def test_rows_that_differ_in_their_images_only_are_not_the_same(tmp_path: Path) -> None:
    (tmp_path / "red.png").write_bytes(RED)
    (tmp_path / "blue.png").write_bytes(BLUE)
    rows = [{"prompt": "q", "images": [name]} for name in ("red.png", "blue.png", "red.png")]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    keys = {"path": str(tmp_path / "rows.jsonl"), "images_key": "images", "unique": True}
    assert len(build("data", "jsonl", keys)) == 2


def test_image_columns_of_hugging_face_are_read(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    rows = [{"prompt": "<image><image>", "images": [{"bytes": RED}, {"bytes": BLUE}], "one": {"bytes": RED}}]
    table = datasets.Dataset.from_list(rows)
    table = table.cast_column("images", datasets.List(datasets.Image()))
    table.cast_column("one", datasets.Image()).save_to_disk(tmp_path / "saved")
    table.to_parquet(tmp_path / "rows.parquet")
    for kind, path in (("hf", "saved"), ("parquet", "rows.parquet")):
        source = build("data", kind, {"path": str(tmp_path / path), "images_key": "images"})
        assert digests(source[0]) == [checked_image(RED).digest, checked_image(BLUE).digest]
    source = build(
        "data", "hf", {"path": str(tmp_path / "saved"), "images_key": "one", "prompt_template": "q"}
    )
    assert digests(source[0]) == [checked_image(RED).digest]


@pytest.mark.parametrize("url", ["http://example.org/a b", "http://example.org:x/", "http://[::1/a.png"])
def test_an_address_that_is_none_is_an_error_of_its_row(read: Callable[..., Row], url: str) -> None:
    with pytest.raises(ValueError, match=r"rows.jsonl:1: image 1: "):
        read({"prompt": "q", "images": [url]}, image_hosts=["example.org"])

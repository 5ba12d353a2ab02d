"""Headers of safetensors files: those of the library are read, others are refused in words."""

import json

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from rlrun.converters.folders.hf_folder import files_beside_weights, read_tensors
from rlrun.converters.tensors.content import plain
from rlrun.converters.tensors.safetensors_format import (
    CODES,
    TensorInfo,
    make_header,
    make_index,
    read_header,
    split_shards,
)
from rlrun.converters.tensors.stored import Files
from tests.converters.conversions import read_hf
from tests.tiny_models import make_tiny_model

FUZZ = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "model.safetensors"
    save_file({"a.weight": torch.arange(6.0).view(2, 3), "b": torch.ones(2, dtype=torch.bfloat16)}, path)
    return path


def with_header(path, edit):
    """The file with another header, as long as it needs to be."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    text = edit(header)
    text = json.dumps(header).encode() if text is None else text
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])


@pytest.mark.parametrize("dtype", CODES)
def test_every_type_is_read_as_the_library_wrote_it(dtype, tmp_path):
    path = tmp_path / "x.safetensors"
    tensor = torch.arange(6).view(2, 3).to(dtype)
    save_file({"x": tensor, "scalar": tensor[1, 1].clone(), "empty": tensor[:0].clone()}, path)
    read, files = read_header(path), Files()
    assert torch.equal(plain(read["x"]).rows(files, 0, 2).float(), tensor.float())
    assert torch.equal(plain(read["x"]).rows(files, 1, 2).float(), tensor[1:].float())
    assert plain(read["scalar"]).rows(files, 0, 1).float().item() == 4 or dtype == torch.bool
    assert read["empty"].shape == (0, 3)


@pytest.mark.parametrize("dtype", CODES)
def test_every_header_is_read_by_the_library(dtype, tmp_path):
    path = tmp_path / "x.safetensors"
    tensors = {
        "one": TensorInfo(dtype, (3, 2)),
        "two": TensorInfo(dtype, ()),
        "none": TensorInfo(dtype, (0,)),
    }
    head, positions = make_header(tensors)
    path.write_bytes(head + bytes(7 * dtype.itemsize))
    assert len(head) % 8 == 0 and positions["one"] == len(head)
    assert {name: (t.dtype, tuple(t.shape)) for name, t in load_file(path).items()} == {
        name: (tensor.dtype, tensor.shape) for name, tensor in tensors.items()
    }


def test_shards_are_filled_in_order():
    tensors = {
        name: TensorInfo(torch.uint8, (size,)) for name, size in zip("abcde", (4, 4, 9, 1, 1), strict=True)
    }
    assert list(split_shards(tensors, 8).values()) == [["a", "b"], ["c"], ["d", "e"]]
    assert next(iter(split_shards(tensors, 8))) == "model-00001-of-00003.safetensors"
    assert split_shards(tensors, 100) == {"model.safetensors": list("abcde")}
    assert json.loads(make_index(tensors, {"x": ["a"]})) == {
        "metadata": {"total_size": 19},
        "weight_map": {"a": "x"},
    }


def move(name, *offsets):
    return lambda header: header[name].update(data_offsets=list(offsets))


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda header: header["b"].update(dtype="F4"), "b has an unknown type"),
        (lambda header: header["b"].update(shape=[-2]), "b has an invalid shape or invalid offsets"),
        (lambda header: header["b"].update(shape=[2.0]), "b has an invalid shape or invalid offsets"),
        (lambda header: header["b"].update(shape=[3]), "b has 4 bytes, its shape needs 6"),
        (lambda header: header.update(b=7), "b has an unknown type"),
        (lambda header: header.pop("b") and None, "has 28 bytes of tensors, but its header lists 24"),
        (move("b", 20, 24), "does not begin where the tensor before it ends"),
        (move("b", 28, 32), "b does not begin where the tensor before it ends"),
        (lambda _: b"[]", "its header is not a table"),
        (lambda _: b"{,}", "its header is not valid JSON"),
        (lambda _: b"[" * 10**5, "its header is not valid JSON"),
        (lambda _: b'{"a":{},"a":{}}', "one entry for each tensor"),
    ],
)
def test_headers_that_are_wrong(file, edit, message):
    with_header(file, edit)
    with pytest.raises(ValueError, match=message):
        read_header(file)


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", "a\\b", "a\x1b[31m", "a\nb", "", "a..b"])
def test_names_that_are_paths_or_worse(file, name):
    with_header(file, lambda header: header.update({name: header.pop("b")}))
    with pytest.raises(ValueError, match="such a name is not accepted"):
        read_header(file)


@pytest.mark.parametrize("size", [0, 5, 8, 40, -1, -5])
def test_files_that_are_cut_off(file, size):
    file.write_bytes(file.read_bytes()[:size])
    with pytest.raises(ValueError, match=r"model.safetensors cannot be read: .*; download or copy it again"):
        read_header(file)


@FUZZ
@given(data=st.data())
def test_any_change_of_a_byte_is_read_or_refused(data, tmp_path_factory):
    path = tmp_path_factory.mktemp("fuzz") / "x.safetensors"
    save_file({"a": torch.arange(6.0), "b": torch.ones(2, 2)}, path)
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(
        content[: data.draw(st.integers(0, len(content)))] if data.draw(st.booleans()) else content
    )
    try:
        tensors = read_header(path)
    except ValueError as error:
        assert str(path) in str(error)
        return
    for tensor in tensors.values():
        plain(tensor).rows(Files(), 0, tensor.shape[0] if tensor.shape else 1)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)
ENTRY = st.fixed_dictionaries(
    {},
    optional={
        "dtype": st.sampled_from([*CODES.values(), "X", None]),
        "shape": st.lists(st.integers(-2, 2**70), max_size=3) | JSON,
        "data_offsets": st.lists(st.integers(-2, 2**70), max_size=3) | JSON,
    },
)


@FUZZ
@given(st.dictionaries(st.text(max_size=4), ENTRY | JSON, max_size=4) | JSON, st.binary(max_size=40))
def test_any_header_is_read_or_refused(header, data):
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.safetensors"
        text = json.dumps(header).encode()
        path.write_bytes(len(text).to_bytes(8, "little") + text + data)
        try:
            read_header(path)
        except ValueError as error:
            assert str(path) in str(error)


@pytest.fixture
def folder(tmp_path):
    return make_tiny_model(tmp_path / "model")


def index_of(folder, weight_map):
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


@pytest.mark.parametrize(
    ("weight_map", "message"),
    [
        ({"model.norm.weight": "model-00002.safetensors"}, "lacks model-00002.safetensors"),
        ({"model.norm.weight": "../model/model.safetensors"}, "which is not in the folder"),
        ({"model.norm.weight": "/etc/passwd"}, "which is not in the folder"),
        ({"model.norm.weight": "model.safetensors"}, "which model.safetensors.index.json places in None"),
        ({"model.norm.weight": 3}, "must give a file for each tensor"),
        ([], "must give a file for each tensor"),
    ],
)
def test_indices_that_are_wrong(folder, weight_map, message):
    index_of(folder, weight_map)
    with pytest.raises(ValueError, match=message):
        read_tensors(folder)


def test_an_index_names_what_is_not_there(folder):
    index_of(folder, dict.fromkeys([*read_hf(folder), "more.weight"], "model.safetensors"))
    with pytest.raises(ValueError, match=r"lacks more.weight, which model.safetensors.index.json lists"):
        read_tensors(folder)


@pytest.mark.parametrize("text", ["", "{}", "[1]", "nonsense", '{"weight_map": null}'])
def test_indices_that_are_none(folder, text):
    (folder / "model.safetensors.index.json").write_text(text)
    with pytest.raises(ValueError, match="is not an index"):
        read_tensors(folder)


def test_links_that_lead_out_of_the_folder(folder, tmp_path):
    (tmp_path / "secret").write_text("{}")
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer.json").symlink_to(tmp_path / "secret")
    with pytest.raises(ValueError, match=r"tokenizer.json is a link that leads out of its folder"):
        files_beside_weights(folder)
    weights = folder / "model.safetensors"
    weights.rename(tmp_path / "elsewhere.safetensors")
    weights.symlink_to(tmp_path / "elsewhere.safetensors")
    with pytest.raises(ValueError, match=r"model.safetensors is a link that leads out of its folder"):
        read_tensors(folder)


def test_links_of_the_hub_s_cache_are_followed(folder, tmp_path):
    cached = tmp_path / "models--a--b" / "snapshots" / "c0ffee"
    blobs = tmp_path / "models--a--b" / "blobs"
    cached.mkdir(parents=True)
    blobs.mkdir()
    for number, path in enumerate(sorted(folder.iterdir())):
        path.rename(blobs / str(number))
        (cached / path.name).symlink_to(f"../../blobs/{number}")
    assert len(read_tensors(cached)) == 25
    assert "tokenizer.json" in files_beside_weights(cached)

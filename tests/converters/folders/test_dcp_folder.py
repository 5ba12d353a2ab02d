"""Distributed checkpoints: what torch writes is read, what is written torch reads, the rest is refused."""

import io
import os
import pickle
import shutil
import zipfile

import pytest
import torch
import torch.distributed.checkpoint as dcp
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.checkpoint.filesystem import FileSystemReader

from rlrun.converters.folders.dcp_folder import DcpFolder
from rlrun.converters.folders.dcp_format import make_envelope
from rlrun.converters.tensors.content import plain
from rlrun.converters.tensors.safetensors_format import CODES, TensorInfo
from rlrun.converters.tensors.stored import Files
from tests.converters.conversions import read_dcp, same, saved

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
TENSORS = {
    "layers.0.weight": torch.arange(12.0).view(3, 4),
    "layers.1.weight": torch.nn.Parameter(torch.randn(5, 2).bfloat16()),
    "part": torch.arange(10)[3:7],
    "empty": torch.empty(0, 3),
    "step": torch.tensor(7),
}


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dcp")
    dcp.save(TENSORS | {"object": {"a": "text"}}, checkpoint_id=folder, no_dist=True)
    return folder


@pytest.fixture
def folder(written, tmp_path):
    return shutil.copytree(written, tmp_path / "dcp")


def read_all(folder):
    opened, files = DcpFolder(folder), Files()
    tensors = {name: plain(opened.read(name)) for name in opened.tensors}
    return {
        name: content.rows(files, 0, content.tensor.shape[0] if content.tensor.shape else 1).view(
            content.tensor.shape
        )
        for name, content in tensors.items()
    }


def test_what_torch_wrote_is_read(folder):
    assert same({name: tensor.detach() for name, tensor in TENSORS.items()}, read_all(folder))
    assert DcpFolder(folder).scalar("step") == 7
    assert DcpFolder(folder).scalar("part") is DcpFolder(folder).scalar("none") is None


@pytest.mark.parametrize("shape", [(), (0, 3), (7,), (3, 5)], ids=str)
@pytest.mark.parametrize("dtype", CODES)
def test_an_envelope_is_what_torch_would_save(dtype, shape):
    tensor = torch.zeros(shape).to(dtype)
    envelope = make_envelope(TensorInfo(dtype, shape))
    item = envelope.head + bytes(tensor.nbytes) + envelope.tail
    read = torch.load(io.BytesIO(item), weights_only=True)
    assert read.shape == tensor.shape and read.dtype == dtype and read.float().sum() < 1e-30
    assert len(item) == len(saved(tensor))


def test_transposed_tensors_are_refused(tmp_path):
    dcp.save({"x": torch.zeros(2, 3).t()}, checkpoint_id=tmp_path, no_dist=True)
    with pytest.raises(ValueError, match=r"x at 0: it is stored with strides \(1, 3\)"):
        DcpFolder(tmp_path).read("x")


def rewrite(folder, edit):
    table = FileSystemReader(folder).read_metadata()
    edit(table)
    (folder / ".metadata").write_bytes(pickle.dumps(table))


def info(table, name="layers.0.weight"):
    return next(info for index, info in table.storage_data.items() if index.fqn == name)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda t: setattr(info(t), "relative_path", "../dcp/__0_0.distcp"), "which is not in the folder"),
        (lambda t: setattr(info(t), "relative_path", "/etc/passwd"), "which is not in the folder"),
        (lambda t: setattr(info(t), "relative_path", "__9_0.distcp"), "lacks __9_0.distcp"),
        (lambda t: setattr(info(t), "offset", 10**9), "is truncated: layers.0.weight would end at byte"),
        (lambda t: setattr(info(t), "offset", -1), "not the metadata of a checkpoint"),
        (lambda t: setattr(info(t), "offset", info(t).offset + 8), "does not hold layers.0.weight"),
        (lambda t: setattr(info(t), "transform_descriptors", ["zstd"]), "stored compressed"),
        (lambda t: t.storage_data.clear(), "not the metadata of a checkpoint"),
        (lambda t: t.state_dict_metadata.clear(), "it has no tensors"),
        (lambda t: setattr(t, "state_dict_metadata", None), "not the metadata of a checkpoint"),
    ],
)
def test_metadata_that_is_wrong(folder, edit, message):
    rewrite(folder, edit)
    with pytest.raises(ValueError, match=message):
        read_all(folder)


def resize(table, **changes):
    for key, value in changes.items():
        setattr(table.state_dict_metadata["layers.0.weight"].chunks[0], key, torch.Size(value))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sizes": (2, 4)}, "the chunks of layers.0.weight do not cover the whole tensor"),
        ({"sizes": (4, 4)}, "a chunk that reaches beyond it"),
        ({"sizes": (3, 4, 1)}, "not the metadata of a checkpoint"),
    ],
)
def test_chunks_that_do_not_fit(folder, changes, message):
    rewrite(folder, lambda table: resize(table, **changes))
    with pytest.raises(ValueError, match=message):
        DcpFolder(folder)


@pytest.mark.parametrize("name", ["../x", "a/b", "a\x1b[2J"])
def test_names_that_are_paths(folder, name):
    def edit(table):
        table.state_dict_metadata[name] = table.state_dict_metadata.pop("empty")
        index = next(index for index in table.storage_data if index.fqn == "empty")
        table.storage_data[type(index)(name, index.offset)] = table.storage_data.pop(index)

    rewrite(folder, edit)
    with pytest.raises(ValueError, match="such a name is not accepted"):
        DcpFolder(folder)


class Evil:
    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return os.mkdir, (str(self.mark),)


def test_metadata_runs_no_code(folder, tmp_path):
    (folder / ".metadata").write_bytes(pickle.dumps(Evil(tmp_path / "owned")))
    with pytest.raises(ValueError, match=r"it holds posix.mkdir, which no metadata needs"):
        DcpFolder(folder)
    assert not (tmp_path / "owned").exists()


def test_tensors_run_no_code(folder, tmp_path):
    item = saved(Evil(tmp_path / "owned"))
    (folder / "__0_0.distcp").write_bytes(item)
    rewrite(folder, lambda table: info(table).__dict__.update(offset=0, length=len(item)))
    with pytest.raises(ValueError, match=r"it holds posix.mkdir, which no tensor needs"):
        DcpFolder(folder).read("layers.0.weight")
    assert not (tmp_path / "owned").exists()


def test_compressed_records_are_refused_before_they_are_unpacked(folder, tmp_path):
    """2 kB of them would become 2 MB, and 2 MB 2 GB."""
    bomb = io.BytesIO()
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as records:
        records.writestr("archive/byteorder", bytes(2 << 20))
        records.writestr("archive/data.pkl", b"")
    (folder / "__0_0.distcp").write_bytes(bomb.getvalue())
    rewrite(folder, lambda table: info(table).__dict__.update(offset=0, length=len(bomb.getvalue())))
    with pytest.raises(ValueError, match=r"its record archive/byteorder is compressed"):
        DcpFolder(folder).read("layers.0.weight")


def test_folders_that_are_no_checkpoint(tmp_path):
    with pytest.raises(ValueError, match=r"lacks .metadata"):
        DcpFolder(tmp_path)


def test_links_out_of_the_folder(folder, tmp_path):
    (folder / "__0_0.distcp").rename(tmp_path / "elsewhere")
    (folder / "__0_0.distcp").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="a link that leads out of its folder"):
        read_all(folder)


@settings(deadline=None)
@given(data=st.data(), name=st.sampled_from([".metadata", "__0_0.distcp"]))
def test_any_change_of_a_byte_is_read_or_refused(data, name, written, tmp_path_factory):
    folder = shutil.copytree(written, tmp_path_factory.mktemp("fuzz") / "dcp")
    content = bytearray((folder / name).read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    end = data.draw(st.integers(0, len(content))) if data.draw(st.booleans()) else None
    (folder / name).write_bytes(content[:end])
    try:
        read_all(folder)
    except ValueError as error:
        assert str(folder) in str(error) or "tensor named" in str(error)
    finally:
        shutil.rmtree(folder.parent)


def test_torch_reads_two_names_of_one_tensor(tmp_path):
    from tests.converters.conversions import convert
    from tests.tiny_models import make_tiny_model

    read = read_dcp(convert(make_tiny_model(tmp_path / "hf", tied=True), "dcp", tmp_path / "dcp"))
    assert torch.equal(read["lm_head.weight"], read["tok_embeddings.weight"])
    assert (tmp_path / "dcp" / "__0_0.distcp").stat().st_size < 1.2 * sum(
        tensor.nbytes for name, tensor in read.items() if name != "lm_head.weight"
    )

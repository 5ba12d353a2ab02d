"""Loading a checkpoint runs no code of its files; checksums are recorded while files are written."""

import os
import pickle
import posix

import pytest
import torch
from torch.distributed.checkpoint import filesystem
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, MetadataIndex

from rlrun.converters.folders.checksums import checksum
from rlrun.runner.trainer.checkpoints.distributed import load_weights, weights_state, write_state

WEIGHTS = {"w": torch.arange(600.0).reshape(30, 20), "scalar": torch.tensor(3), "empty": torch.zeros(0, 2)}


@pytest.fixture
def folder(tmp_path):
    write_state(tmp_path / "dcp", weights_state(WEIGHTS))
    return tmp_path / "dcp"


def table_of(folder):
    """The table as torch reads it; it is ours, and does no harm."""
    return pickle.loads((folder / ".metadata").read_bytes())


def fresh():
    return {name: torch.zeros_like(tensor) for name, tensor in WEIGHTS.items()}


def test_digests_are_those_of_the_files(tmp_path):
    digests = write_state(tmp_path / "dcp", weights_state(WEIGHTS))
    files = {str(path): path.read_bytes() for path in (tmp_path / "dcp").iterdir()}
    assert digests == {path: checksum(data) for path, data in files.items()}
    loaded = fresh()
    load_weights(tmp_path / "dcp", loaded)
    assert all(torch.equal(loaded[name], tensor) for name, tensor in WEIGHTS.items())


class Call:
    """Calls a function when it is unpickled."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def in_a_list(call, folder):
    return [call]


def beside_the_table(call, folder):
    table = table_of(folder)
    table.planner_data = call
    return table


def as_a_name(call, folder):
    table = table_of(folder)
    table.state_dict_metadata[call] = None
    return table


@pytest.mark.parametrize("wrap", [in_a_list, beside_the_table, as_a_name])
@pytest.mark.parametrize(
    ("function", "named"),
    [
        (os.system, "posix.system"),
        (posix.mkdir, "posix.mkdir"),
        (eval, "(builtins|__builtin__).eval"),  # the older protocol has the older name
        (getattr, "(builtins|__builtin__).getattr"),
        (torch.load, "torch.serialization.load"),
        (torch.hub.load, "torch.hub.load"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_table_that_calls_a_function_is_refused(folder, tmp_path, wrap, function, named):
    wrapped = wrap(Call(function, f"touch {tmp_path}/owned"), folder)
    for protocol in (2, 4, 5):
        (folder / ".metadata").write_bytes(pickle.dumps(wrapped, protocol))
        with pytest.raises(ValueError, match=f"it holds {named}, which no metadata needs"):
            load_weights(folder, fresh())
    assert not (tmp_path / "owned").exists()


def test_an_entry_that_is_no_tensor_would_be_unpickled_and_is_refused(folder, tmp_path):
    payload = pickle.dumps(Call(os.mkdir, str(tmp_path / "owned")))
    table = table_of(folder)
    table.state_dict_metadata["parameters.scalar"] = BytesStorageMetadata()
    index = next(index for index in table.storage_data if index.fqn == "parameters.scalar")
    info = table.storage_data.pop(index)
    (folder / "payload").write_bytes(payload)
    table.storage_data[MetadataIndex("parameters.scalar")] = filesystem._StorageInfo(
        "payload", 0, len(payload), getattr(info, "transform_descriptors", None)
    )
    (folder / ".metadata").write_bytes(pickle.dumps(table))
    with pytest.raises(ValueError, match=r"'parameters\.scalar' is not a tensor"):
        load_weights(folder, fresh())
    assert not (tmp_path / "owned").exists()


def test_a_table_that_refers_to_another_folder_is_refused(folder):
    table = table_of(folder)
    for info in table.storage_data.values():
        info.relative_path = "../dcp/__0_0.distcp"
    (folder / ".metadata").write_bytes(pickle.dumps(table))
    with pytest.raises(ValueError, match="which is not in the folder"):
        load_weights(folder, fresh())


def test_a_tensor_that_calls_a_function_is_refused(folder, tmp_path):
    table = table_of(folder)
    path = tmp_path / "evil.pt"
    torch.save(Call(os.mkdir, str(tmp_path / "owned")), path)
    (folder / "__0_0.distcp").write_bytes(path.read_bytes())
    for info in table.storage_data.values():
        info.offset, info.length = 0, path.stat().st_size
    (folder / ".metadata").write_bytes(pickle.dumps(table))
    with pytest.raises(ValueError, match="is damaged"):
        load_weights(folder, fresh())
    assert not (tmp_path / "owned").exists()

"""A model of two gigabytes: exact, within its memory, and killed on the way."""

import json
import os
import signal
import subprocess
import sys

import pytest
import torch
from safetensors import safe_open

from rlrun.converters.tensors.safetensors_format import TensorInfo, make_header, make_index, split_shards
from rlrun.models.config_json import architecture
from rlrun.models.tensor_names import hf_tensors
from tests.converters.conversions import raw
from tests.waiting import wait_until

pytestmark = pytest.mark.slow
CONFIG = {
    "model_type": "llama",
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 64_000,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 512,
    "dtype": "bfloat16",
}
SCRIPT = """
from pathlib import Path
from rlrun.cli.main import run
try:
    run()
finally:  # not by getrusage, which counts what the test held when this began
    lines = Path("/proc/self/status").read_text().splitlines()
    print(next(line.split()[1] for line in lines if line.startswith("VmHWM")))
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """Random bits: every pattern that bfloat16 has, NaNs among them."""
    folder = tmp_path_factory.mktemp("large") / "hf"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    tensors = {t.name: TensorInfo(torch.bfloat16, t.shape) for t in hf_tensors(architecture(CONFIG))}
    shards = split_shards(tensors, 10**9)
    for file, names in shards.items():
        with (folder / file).open("wb") as stream:
            stream.write(make_header({name: tensors[name] for name in names})[0])
            for name in names:
                stream.write(os.urandom(tensors[name].nbytes))
    (folder / "model.safetensors.index.json").write_bytes(make_index(tensors, shards))
    assert sum(tensor.nbytes for tensor in tensors.values()) > 2 * 10**9
    return folder


def command(*arguments):
    """`rlrun convert`, which prints its peak memory at last, in KiB."""
    return [sys.executable, "-c", SCRIPT, "convert", *map(str, arguments)]


def tensors_of(folder):
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118
                yield name, file.get_tensor(name)


def test_there_and_back_is_exact_and_bounded(source, tmp_path):
    for arguments in (
        ("hf-to-dcp", source, tmp_path / "dcp"),
        ("dcp-to-hf", tmp_path / "dcp", tmp_path / "back"),
    ):
        done = subprocess.run(
            command(*arguments, "--memory", "1.2GiB"), capture_output=True, text=True, check=True
        )
        assert int(done.stdout.split()[-1]) * 1024 < 1.2 * 2**30
    read = dict(tensors_of(tmp_path / "back"))
    assert all(raw(tensor) == raw(read.pop(name)) for name, tensor in tensors_of(source))
    assert not read


def test_killed_on_the_way_and_completed(source, tmp_path):
    arguments = ("hf-to-hf", source, tmp_path / "out", "--dtype", "float16", "--shard-size", "200MB")
    process = subprocess.Popen(command(*arguments), stdout=subprocess.DEVNULL)
    partial = tmp_path / ".out.partial"
    wait_until(lambda: len(list(partial.glob("*.safetensors"))) >= 3, "three shards")
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "out").exists()
    done = subprocess.run(command(*arguments, "--verify"), capture_output=True, text=True, check=True)
    assert "had already been written; read back and compared: equal" in done.stdout
    read = dict(tensors_of(tmp_path / "out"))
    for name, tensor in tensors_of(source):
        assert torch.equal(tensor.half().nan_to_num(), read[name].nan_to_num())

"""What the trainer's ranks wrote together becomes the same Hugging Face folder as their own export."""

import json
import shutil

import pytest
import torch

from rlrun.converters.convert.conversion import Options, plan_conversion
from rlrun.converters.convert.describe import describe
from rlrun.converters.folders.dcp_folder import DcpFolder
from rlrun.converters.folders.locate import find_checkpoint
from rlrun.converters.tensors.precision import keeps_precision
from tests.converters.conversions import EFFORT, convert, ignore, read_hf, same
from tests.converters.trainer_process import save_on_ranks
from tests.tiny_models import make_tiny_model

MODELS = {
    "qwen3": {"family": "qwen3"},
    "tied": {"family": "qwen3", "tied": True},
    "llama": {"family": "llama"},
    "moe": {"family": "qwen3_moe"},
    "moe on expert-parallel ranks": {"family": "qwen3_moe"},
    "deepseek": {"family": "deepseek_v3"},
    "gpt-oss": {"family": "gpt_oss"},
    "gpt-oss on expert-parallel ranks": {"family": "gpt_oss"},
}
SHARDED, EXPERTS = {"fsdp": 2, "tensor": 2}, {"fsdp": 4, "expert": 2}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Float32 weights of models whose config says bfloat16: exporting must round them."""
    root, cases = tmp_path_factory.mktemp("runs"), []
    for name, model in MODELS.items():
        folder = make_tiny_model(root / "models" / name, **model)
        config = json.loads((folder / "config.json").read_text()) | {"dtype": "bfloat16"}
        (folder / "config.json").write_text(json.dumps(config))
        run = root / name
        run.mkdir()
        (run / "spec.lock.json").write_text(json.dumps({"model": {"folder": str(folder)}}))
        cases.append(
            {"model": str(folder), "run": str(run), "parallel": EXPERTS if "expert" in name else SHARDED}
        )
    save_on_ranks(4, cases)
    return root


@pytest.mark.parametrize("name", MODELS)
def test_a_sharded_checkpoint_is_what_the_trainer_exports(name, runs, tmp_path):
    run = runs / name
    out = convert(run, "hf", tmp_path / "out")
    source = read_hf(runs / "models" / name)
    rounded = {
        name: tensor if keeps_precision(name) else tensor.bfloat16() for name, tensor in source.items()
    }
    assert same(rounded, read_hf(out))
    exported = {path.name: path.read_bytes() for path in (run / "model").iterdir()}
    assert exported == {path.name: path.read_bytes() for path in out.iterdir()}


def test_it_is_in_parts(runs):
    found = find_checkpoint(runs / "moe")
    folder = DcpFolder(found.folder)
    assert folder.num_chunks("parameters.layers.0.attention.wo.weight") == 4
    description = describe(found)
    assert description.step == 3 and description.family == "qwen3_moe"
    assert description.parameters == sum(
        tensor.numel() for tensor in read_hf(runs / "models" / "moe").values()
    )


def test_the_optimizer_s_state_can_be_kept(runs, tmp_path):
    out = convert(runs / "moe", "hf", tmp_path / "out", optimizer=True)
    weights, moments = read_hf(out), read_hf(out / "optimizer")
    assert {name.partition(".")[0] for name in moments} == {"exp_avg", "exp_avg_sq"}
    assert {name.partition(".")[2] for name in moments} == weights.keys()
    assert all(tensor.dtype == torch.float32 for tensor in moments.values())


def test_a_running_job_may_remove_what_is_being_read(runs, tmp_path):
    run = shutil.copytree(runs / "qwen3", tmp_path / "run")
    conversion = plan_conversion(find_checkpoint(run), "hf", Options())
    shutil.rmtree(run)
    conversion.write(tmp_path / "out", EFFORT, ignore, None)
    assert same(read_hf(runs / "qwen3" / "model"), read_hf(tmp_path / "out"))

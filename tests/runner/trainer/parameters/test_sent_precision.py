"""The dtypes of the tensors that engines get."""

import torch
from safetensors.torch import load_file

from rlrun.models.config_json import read_architecture
from rlrun.runner.engines.native.model.fused_weights import allocate
from rlrun.runner.weights.carriers.disk.folder_tensors import FolderTensors
from rlrun.runner.weights.page_locking import HOST
from tests.runner.trainer.parity_worker import written
from tests.runner.trainer.trainer_cases import MODELS, make_rank, make_spec
from tests.tiny_models import make_tiny_model


def test_the_bias_by_which_experts_are_chosen_is_never_rounded(tmp_path):
    folder = make_tiny_model(tmp_path / "model", pad_token_id=None, **MODELS["deepseek"])
    spec = make_spec(folder)
    spec = spec.model_copy(update={"engine": spec.engine.model_copy(update={"dtype": "bfloat16"})})
    stored = load_file(folder / "model.safetensors")
    biases = [name for name in stored if name.endswith("correction_bias")]
    assert any((stored[name] != stored[name].bfloat16()).any() for name in biases)
    rank = make_rank(folder, spec)
    sent = written(rank, 0)
    rank.close()
    model = read_architecture(folder)
    at_start = allocate(model, torch.bfloat16, HOST)
    FolderTensors(folder).read(at_start)
    for held in (sent, at_start):
        assert all(torch.equal(held[name], stored[name]) for name in biases)
        others = {tensor.dtype for name, tensor in held.items() if name not in biases}
        assert others == {torch.bfloat16}

"""Training in low precision on CPU ranks: every layout agrees with one rank, resumes bit for bit, and sends
float32 masters to engines.
"""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tests.runner.trainer.trainer_cases import run_ranks
from tests.tiny_models import make_tiny_model

pytest.importorskip("torchao", reason="pip install 'rlrun[low-precision]'")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
WORKER = Path(__file__).with_name("low_precision_worker.py")
SIZES = {"hidden_size": 128, "intermediate_size": 256, "head_dim": 64, "num_hidden_layers": 4}
EXPERTS = {"moe_intermediate_size": 128, "num_experts": 4}
LATENT = {"q_lora_rank": 128, "kv_lora_rank": 128, "qk_nope_head_dim": 32, "qk_rope_head_dim": 32}
LATENT |= {"v_head_dim": 64, "moe_intermediate_size": 128}
MODELS = {
    "qwen3": SIZES,
    "qwen3_moe": SIZES | EXPERTS,
    "deepseek_v3": SIZES | LATENT,
    "gpt_oss": SIZES | {"intermediate_size": 128},
}
FLOAT8, MXFP8 = {"precision": "float8"}, {"precision": "mxfp8"}
BLOCKS = FLOAT8 | {"float8_recipe": "blockwise"}
LORA = {"lora": {"rank": 4, "alpha": 8}}
FROZEN = {"freeze": ["model.embed_tokens.*", "model.layers.0.*"]}
FULL, SELECTIVE = {"activation_checkpointing": "full"}, {"activation_checkpointing": "selective"}
CASES = {
    "alone-float8": ("qwen3", {}, FLOAT8),
    "alone-mxfp8": ("qwen3", {}, MXFP8),
    "alone-blocks-lora": ("qwen3", {}, BLOCKS | LORA),
    "alone-blocks-frozen": ("qwen3", {}, BLOCKS | FROZEN | FULL),
    "alone-moe": ("qwen3_moe", {}, BLOCKS),
    "alone-deepseek": ("deepseek_v3", {}, BLOCKS | SELECTIVE),
    "alone-gpt-oss": ("gpt_oss", {}, FLOAT8),
    "fsdp": ("qwen3", {"fsdp": 2}, FLOAT8 | FULL),
    "fsdp-mxfp8": ("qwen3", {"fsdp": 2}, MXFP8),
    "fsdp-lora": ("qwen3", {"fsdp": 2}, BLOCKS | LORA),
    "tensor": ("qwen3", {"tensor": 2}, FLOAT8),
    "tensor-blocks": ("qwen3", {"tensor": 2}, BLOCKS | SELECTIVE),
    "tensor-lora": ("qwen3", {"tensor": 2}, MXFP8 | LORA),
    "context": ("qwen3", {"context": 2}, BLOCKS),
    "pipeline": ("qwen3", {"pipeline": 2}, BLOCKS),
    "zero-bubble": ("qwen3", {"pipeline": 2, "pipeline_schedule": "ZBVZeroBubble"}, FLOAT8),
    "experts": ("qwen3_moe", {"fsdp": 2, "expert": 2}, BLOCKS),
    "experts-tensor": ("qwen3_moe", {"tensor": 2, "expert": 2}, MXFP8),
    "deepseek": ("deepseek_v3", {"fsdp": 2, "expert": 2}, FLOAT8),
    "gpt-oss": ("gpt_oss", {"tensor": 2, "expert": 2}, FLOAT8),
}


class Runs:
    """What every rank of each case gave; those on as many ranks share a process group."""

    def __init__(self, root, wanted):
        self.root, self._wanted, self._results = root, wanted, {}

    def folder(self, family):
        """A model's folder."""
        folder = self.root / family
        if not folder.exists():
            make_tiny_model(folder, family, pad_token_id=None, scale=0.1, **MODELS[family])
        return folder

    def of(self, name):
        """The results of a case by rank."""
        if name not in self._results:
            several = bool(CASES[name][1])
            self._run([each for each in CASES if bool(CASES[each][1]) == several and each in self._wanted])
        return self._results[name]

    def _run(self, names):
        ranks = 2 if CASES[names[0]][1] else 1
        out = self.root / f"ranks-{ranks}"
        out.mkdir()
        arguments = [
            {
                "name": name,
                "folder": str(self.folder(CASES[name][0])),
                "parallel": CASES[name][1],
                "trainer": {"dtype": "bfloat16"} | CASES[name][2],
                "checkpoint": str(self.root / "checkpoints" / name),
            }
            for name in names
        ]
        run_ranks(WORKER, ranks, arguments, out, timeout=1000)
        for name in names:
            self._results[name] = [
                torch.load(out / f"{name}-{rank}.pt", weights_only=False) for rank in range(ranks)
            ]


@pytest.fixture(scope="module")
def runs(tmp_path_factory, request):
    chosen = [item for item in request.session.items if item.path == request.path]
    wanted = {item.callspec.params["case"] for item in chosen if hasattr(item, "callspec")}
    return Runs(tmp_path_factory.mktemp("runs"), wanted)


@pytest.mark.parametrize("case", CASES)
def test_a_resumed_run_repeats_bit_for_bit(case, runs):
    for rank in runs.of(case):
        assert rank["saved"] and not rank["differing"]


@pytest.mark.parametrize("case", CASES)
def test_engines_get_the_masters(case, runs):
    """The model's own weights, as they are stored: nothing of the low precision reaches them. A frozen model
    on one rank is held in bfloat16.
    """
    family, _, settings = CASES[case]
    sent, stored = runs.of(case)[0]["before"], load_file(runs.folder(family) / "model.safetensors")
    assert sent.keys() == stored.keys()
    adapted = "lora" in settings
    for name in {"model.norm.weight", "lm_head.weight"} if adapted else stored.keys():
        mine, theirs = sent[name].float(), stored[name].float()
        assert torch.equal(mine, theirs) or (adapted and torch.equal(mine, theirs.bfloat16().float())), name


@pytest.mark.parametrize("case", CASES)
def test_metrics_say_what_is_emulated(case, runs):
    emulated = "mxfp8" in CASES[case][2].values() or "blockwise" in CASES[case][2].values()
    for rank in runs.of(case):
        assert rank["metrics"].get("perf/precision_emulated", 0) == emulated
        assert np.isfinite(rank["metrics"]["train/grad_norm"]) and rank["metrics"]["train/grad_norm"] > 0

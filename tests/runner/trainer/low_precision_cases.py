"""The cases of training in low precision, and what each of their ranks gave."""

from pathlib import Path

import torch

from tests.runner.trainer.trainer_cases import run_ranks
from tests.tiny_models import make_tiny_model

WORKER = Path(__file__).with_name("low_precision_worker.py")
SIZES = {"hidden_size": 128, "intermediate_size": 256, "head_dim": 64, "num_hidden_layers": 4}
EXPERTS = {"moe_intermediate_size": 128, "num_experts": 4}
LATENT = {"q_lora_rank": 128, "kv_lora_rank": 128, "qk_nope_head_dim": 32, "qk_rope_head_dim": 32}
LATENT |= {"v_head_dim": 64, "moe_intermediate_size": 128}
MODELS = {
    "qwen3": SIZES,
    "qwen3_moe": SIZES | EXPERTS,
    "deepseek_v3": SIZES | LATENT,
    "glm_moe_dsa": SIZES | LATENT | {"index_head_dim": 32, "index_n_heads": 128},
    "gpt_oss": SIZES | {"intermediate_size": 128},
}
FLOAT8, MXFP8, INT4 = {"precision": "float8"}, {"precision": "mxfp8"}, {"precision": "int4_qat"}
BLOCKS = FLOAT8 | {"float8_recipe": "blockwise"}
PRECISIONS = {"float8": FLOAT8, "mxfp8": MXFP8, "blocks": BLOCKS, "int4": INT4}
LORA = {"lora": {"rank": 4, "alpha": 8}}
FROZEN = {"freeze": ["model.embed_tokens.*", "model.layers.0.*"]}
FULL, SELECTIVE = {"activation_checkpointing": "full"}, {"activation_checkpointing": "selective"}
FEATURES = {
    "on-host": FULL | {"offload": "all"},
    "half-on-host": SELECTIVE | {"offload": "optimizer"},
    "8-bit": {"optimizer": "adamw_8bit"},
}
"""Settings that leave the products as they are."""
CASES = {
    "alone-blocks-frozen": ("qwen3", {}, BLOCKS | FROZEN | FULL),
    "alone-deepseek": ("deepseek_v3", {}, BLOCKS | SELECTIVE),
    "alone-glm-5": ("glm_moe_dsa", {}, BLOCKS | SELECTIVE),
    "alone-gpt-oss": ("gpt_oss", {}, FLOAT8),
    "tensor": ("qwen3", {"tensor": 2}, FLOAT8),
    "tensor-blocks": ("qwen3", {"tensor": 2}, BLOCKS | SELECTIVE),
    "tensor-lora": ("qwen3", {"tensor": 2}, MXFP8 | LORA),
    "tensor-int4": ("qwen3", {"tensor": 2}, INT4 | SELECTIVE),
    "context": ("qwen3", {"context": 2}, BLOCKS),
    "pipeline": ("qwen3", {"pipeline": 2}, BLOCKS),
    "pipeline-int4": ("qwen3_moe", {"pipeline": 2}, INT4),
    "zero-bubble": ("qwen3", {"pipeline": 2, "pipeline_schedule": "ZBVZeroBubble"}, FLOAT8),
    "experts-tensor": ("qwen3_moe", {"tensor": 2, "expert": 2}, MXFP8),
    "deepseek": ("deepseek_v3", {"fsdp": 2, "expert": 2}, FLOAT8),
    "gpt-oss": ("gpt_oss", {"tensor": 2, "expert": 2}, FLOAT8),
    "fsdp-muon-wide": ("qwen3", {"fsdp": 2}, FLOAT8 | {"optimizer": "muon", "head_dtype": "float32"}),
    "fsdp-balanced": ("qwen3_moe", {"fsdp": 2}, FLOAT8 | {"moe": {"balancing": "bias"}}),
}
for _name, _precision in PRECISIONS.items():
    CASES[f"alone-{_name}"] = ("qwen3", {}, _precision)
    CASES[f"alone-{_name}-on-host"] = ("qwen3", {}, _precision | FEATURES["on-host"])
    CASES[f"fsdp-{_name}"] = ("qwen3", {"fsdp": 2}, _precision)
    CASES[f"alone-moe-{_name}"] = ("qwen3_moe", {}, _precision)
    CASES[f"experts-moe-{_name}"] = ("qwen3_moe", {"fsdp": 2, "expert": 2}, _precision)
for _name in ("float8", "int4"):
    for _feature, _settings in FEATURES.items():
        CASES[f"fsdp-{_name}-{_feature}"] = ("qwen3", {"fsdp": 2}, PRECISIONS[_name] | _settings)
for _name in ("float8", "blocks"):
    CASES[f"alone-{_name}-lora"] = ("qwen3", {}, PRECISIONS[_name] | LORA)
    CASES[f"fsdp-{_name}-lora"] = ("qwen3", {"fsdp": 2}, PRECISIONS[_name] | LORA)


class Runs:
    """What every rank of each case gave; those on as many ranks share a process group."""

    def __init__(self, root, wanted):
        self.root, self._wanted, self._results = root, wanted, {}

    def folder(self, family):
        """Returns the folder of a tiny model of a family."""
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
                "trainer": {"dtype": "bfloat16", "max_grad_norm": 1e9} | CASES[name][2],
                "checkpoint": str(self.root / "checkpoints" / name),
            }
            for name in names
        ]
        run_ranks(WORKER, ranks, arguments, out)
        for name in names:
            self._results[name] = [
                torch.load(out / f"{name}-{rank}.pt", weights_only=False) for rank in range(ranks)
            ]


def pairs_of_features():
    """Each case with a feature, after the case without it."""
    features = sorted(FEATURES, key=len, reverse=True)
    ends = {name: next((end for end in features if name.endswith(f"-{end}")), None) for name in CASES}
    return [(name.removesuffix(f"-{end}"), name) for name, end in ends.items() if end]


def pairs_of_layouts():
    """Each case of FSDP or expert parallelism, after the same settings on one rank."""
    alone = {
        name: f"alone-{name.partition('-')[2]}" for name in CASES if name.startswith(("fsdp", "experts"))
    }
    return [(alone[name], name) for name in alone if alone[name] in CASES]

"""The planned bytes of quantised engines are those of converted folders; those of adapters, SGLang's."""

import pytest
import torch

from rlrun.models.adapters import LoraShape, adapters
from rlrun.models.config_json import architecture, read_architecture, with_vision_tower
from rlrun.runner.planning.memory import size_engine
from rlrun.runner.planning.model_size import parameter_count
from rlrun.runner.planning.served_weights import adapter_room_bytes, served_weight_bytes
from tests.converters.conversions import convert, read_hf
from tests.data.published_models import PUBLISHED
from tests.resolved_specs import resolved_engine
from tests.runner.planning.test_memory import QWEN3_8B
from tests.tiny_models import make_tiny_model

SIZES = {"hidden_size": 128, "intermediate_size": 256, "head_dim": 32, "vocab_size": 512}


@pytest.mark.parametrize(
    ("kind", "family"), [(None, "qwen3"), ("fp8-block", "qwen3_moe"), ("int4-group", "qwen3_moe")]
)
def test_bytes_are_those_of_a_converted_folder(kind, family, tmp_path):
    sizes = SIZES | ({"moe_intermediate_size": 128} if family == "qwen3_moe" else {})
    folder = make_tiny_model(tmp_path / "model", family, dtype=torch.bfloat16, **sizes)
    model, served = read_architecture(folder), folder
    if kind is not None:
        served = convert(folder, "hf", tmp_path / "served", quantise=kind)
    tensors = {name: tensor for name, tensor in read_hf(served).items() if not name.endswith("_shape")}
    stored = sum(tensor.nbytes for tensor in tensors.values())
    planned, how = served_weight_bytes(model, resolved_engine(model=str(served)))
    assert abs(planned - stored) <= 0.001 * stored  # blocks at the edges of small matrices
    assert {None: "× 2 bytes", "fp8-block": "FP8", "int4-group": "0.5625 bytes (INT4)"}[kind] in how


@pytest.mark.parametrize(("kind", "setting"), [("sglang", "none"), ("native", "none"), ("native", "frozen")])
def test_servers_hold_the_vision_tower_that_the_trainer_leaves_out(kind: str, setting: str) -> None:
    engine, tower = resolved_engine(type=kind), "none" if (kind, setting) == ("native", "none") else "frozen"
    model = architecture(PUBLISHED["Qwen3-VL-8B"][0])
    weights = [
        size_engine(with_vision_tower(model, each), engine, 1024, 2**40).phase.part_bytes("weights")
        for each in (setting, tower)
    ]
    assert weights[0] == weights[1]
    assert weights[0] == parameter_count(with_vision_tower(model, tower)) * 2


QKV, O_PROJ = (3 * 4096, 6144), (4096, 4096)
GATE_UP, DOWN = (2 * 4096, 24576), (12288, 4096)
"""Numbers of both factors of rank 1 in a layer of Qwen3-8B: q, k and v, as well as gate and up, are fused."""


@pytest.mark.parametrize(
    ("ranks", "tensor", "numbers"),
    [
        ({8: ()}, 1, 8 * sum(map(sum, (QKV, O_PROJ, GATE_UP, DOWN)))),
        ({8: ("q_proj", "v_proj")}, 1, 8 * sum(QKV)),
        ({8: ("gate_proj", "up_proj", "o_proj")}, 1, 8 * (sum(GATE_UP) + sum(O_PROJ))),
        ({8: ("q_proj", "v_proj"), 16: ("down_proj",)}, 1, 16 * (sum(QKV) + sum(DOWN))),
        ({8: ("q_proj", "v_proj", "o_proj")}, 2, 8 * (QKV[0] + QKV[1] // 2 + O_PROJ[0] // 2 + O_PROJ[1])),
    ],
    ids=["all", "fused with k", "no attention inputs", "two adapters", "two GPUs"],
)
def test_a_server_has_slots_of_the_largest_rank_for_every_adapted_matrix(ranks, tensor, numbers):
    served = [
        each for rank, targets in ranks.items() for each in adapters(QWEN3_8B, LoraShape(rank, 1, targets))
    ]
    assert adapter_room_bytes(QWEN3_8B, served, 3, 2, tensor) == 3 * 2 * 36 * numbers

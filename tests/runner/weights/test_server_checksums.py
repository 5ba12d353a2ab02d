"""Which tensors are looked at, and what each rank of a server must hold of them."""

import hashlib
from pathlib import Path

import pytest
import torch

from rlrun.models.architecture import Architecture
from rlrun.models.config_json import read_architecture
from rlrun.models.tensor_names import hf_tensors
from rlrun.runner.contracts.errors import EngineError
from rlrun.runner.contracts.weight_updates import Checksums
from rlrun.runner.engines.client.weight_client import check_checksums
from rlrun.runner.weights.form import Form
from rlrun.runner.weights.server_checksums import ChecksumRecorder, ComparedTensors, Sha256Hashes, rank_part
from tests.tiny_models import make_tiny_model

FORM = Form(torch.float32)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Architecture:
    return read_architecture(make_tiny_model(tmp_path_factory.mktemp("model")))


def test_fused_matrices_are_put_together_from_each_ranks_rows(model: Architecture) -> None:
    torch.manual_seed(0)
    tensors = {one.name: torch.randn(one.shape) for one in hf_tensors(model)}
    seen = ChecksumRecorder(2, ComparedTensors(model, "all", 0, FORM, 2))
    for name, tensor in tensors.items():
        seen.add(name, tensor)
    found = seen.checksums()
    layer = "model.layers.1.self_attn"
    q, k, v = (tensors[f"{layer}.{one}_proj.weight"] for one in "qkv")
    held = torch.cat([q[32:], k[16:], v[16:]])
    expected = hashlib.sha256(held.contiguous().view(-1).view(torch.uint8).numpy()).hexdigest()[:16]
    assert found.ranks[1][f"{layer}.qkv_proj.weight"] == expected
    assert found.skipped_names == ()
    assert found.ranks[0].keys() == found.ranks[1].keys()


@pytest.mark.parametrize(
    ("name", "shape", "rank", "expected"),
    [
        ("model.layers.0.mlp.up_proj.weight", (96, 4), 0, (64, 4)),
        ("model.layers.0.mlp.up_proj.weight", (96, 4), 1, (64, 4)),
        ("model.layers.0.mlp.down_proj.weight", (4, 96), 1, (4, 64)),
        ("model.layers.0.self_attn.o_proj.weight", (4, 96), 1, (4, 48)),
        ("model.embed_tokens.weight", (320, 4), 1, (160, 4)),
        ("model.layers.0.self_attn.q_norm.weight", (16,), 1, (16,)),
    ],
)
def test_a_ranks_part(name: str, shape: tuple[int, ...], rank: int, expected: tuple[int, ...]) -> None:
    part = rank_part(name, torch.ones(shape), rank, 2)
    assert part.shape == expected
    whole = sum(float(rank_part(name, torch.ones(shape), one, 2).sum()) for one in range(2))
    assert whole == torch.Size(shape).numel() * (2 if len(shape) == 1 else 1)


def test_a_sample_has_every_vector_and_each_layers_matrices_in_turn(model: Architecture) -> None:
    seen: set[str] = set()
    for version in range(model.layers + 1):
        choice = ComparedTensors(model, "sample", version, FORM, 1)
        vectors = {name for name in choice.compared if "norm" in name}
        assert len(vectors) == 4 * model.layers + 1
        assert not choice.compared & set(choice.left_out)
        seen |= choice.compared
    assert seen == ComparedTensors(model, "all", 0, FORM, 1).compared


@pytest.mark.parametrize("family", ["deepseek_v3", "gpt_oss", "qwen3_moe"])
def test_only_tensors_whose_place_is_known_are_looked_at(family: str, tmp_path: Path) -> None:
    model = read_architecture(make_tiny_model(tmp_path, family))
    names = ComparedTensors(model, "all", 0, FORM, 2).compared
    assert names
    if family == "qwen3_moe":
        assert "model.layers.0.mlp.gate.weight" in names
        assert not any("experts" in name for name in names)
    else:
        assert all(name.endswith("norm.weight") for name in names)


def test_norms_that_ranks_divide_are_compared_on_one_rank_only(tmp_path: Path) -> None:
    model = read_architecture(make_tiny_model(tmp_path, "minimax_m2"))
    one, two = (ComparedTensors(model, "all", 0, FORM, ranks).compared for ranks in (1, 2))
    layers = range(model.layers)
    assert one - two == {f"model.layers.{i}.self_attn.{x}_norm.weight" for i in layers for x in "qk"}
    assert {"model.norm.weight", "model.layers.1.input_layernorm.weight"} <= two


def test_what_differs_is_named() -> None:
    sent = Checksums(({"a": "1", "b": "2"}, {"a": "3", "b": "4"}), ())

    def answer(*ranks: dict[str, str]) -> list[dict[str, object]]:
        return [
            {"checksums": held, "parallelism_info": [{"tp_rank": rank}]} for rank, held in enumerate(ranks)
        ]

    check_checksums("http://x", sent, answer({"a": "1", "b": "2", "c": "9"}, {"a": "3", "b": "4"}))
    for held, message in (
        (
            answer({"a": "1", "b": "2"}, {"a": "0", "b": "4"}),
            r"holds other bytes than were sent for a \(rank 1",
        ),
        (answer({"a": "1"}, {"a": "3", "b": "4"}), "does not hold b"),
        (answer({"a": "0", "b": "0"}), r"for a \(rank 0\), and 1 more of 2 tensors compared"),
    ):
        with pytest.raises(EngineError, match=message):
            check_checksums("http://x", sent, held)


def test_hashing_leaves_a_parameter_that_can_be_parked() -> None:
    """A trainer that shares its device with engines empties the storages of its frozen model."""
    weight = torch.arange(8.0)
    hashes = Sha256Hashes()
    hashes.add("weight", weight)
    assert weight.untyped_storage().resizable()
    assert hashes.by_name() == {"weight": hashlib.sha256(weight.numpy().tobytes()).hexdigest()[:16]}
